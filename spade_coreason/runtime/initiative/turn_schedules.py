"""The schedules that one turn makes, each a durable step: a turn that runs again makes none twice."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from ...contracts import Missed, Schedule
from ...contracts.authoring import Payload
from ...domain.messages import InboundRequest
from ...domain.schedules import CronTimes
from ..turns.steps import JournalAccess, run_step
from .scheduler import LATER, REMINDER, Scheduler


class TurnSchedules:
    """The schedules of a turn, as `Session` has them. `zone` is that of the person, for times that repeat."""

    def __init__(
        self, scheduler: Scheduler, journal: JournalAccess, incoming: InboundRequest, zone: str, clock: Callable[[], datetime]
    ) -> None:
        self._scheduler = scheduler
        self._journal = journal
        self._incoming = incoming
        self._zone = zone
        self._clock = clock

    async def remind(self, when: datetime | timedelta | str, payload: Payload, missed: Missed) -> str:
        """Make a schedule, as `Session.remind`."""
        times = CronTimes(when, self._zone) if isinstance(when, str) else None
        due_at = _find_due_time(when, times, self._clock())
        if missed not in ("once", "skip"):
            raise ValueError(f'missed must be "once" or "skip", not {missed!r}')
        text = when.isoformat() if isinstance(when, datetime) else str(when)

        async def create(when: str, payload: Any, missed: Missed, idempotency_key: str) -> str:
            new = self._scheduler.make(idempotency_key, REMINDER, self._incoming, payload, due_at, times, missed)
            await self._scheduler.add(new)
            return idempotency_key

        return str(await run_step(self._journal, "session.remind", create, (text, payload, missed), "retry"))

    async def later(self, payload: Payload) -> str:
        """Make a job, as `Session.later`."""

        async def create(payload: Any, idempotency_key: str) -> str:
            new = self._scheduler.make(idempotency_key, LATER, self._incoming, payload, self._clock(), None, "once")
            await self._scheduler.add(new)
            return idempotency_key

        return str(await run_step(self._journal, "session.later", create, (payload,), "retry"))

    async def cancel(self, schedule_id: str) -> bool:
        """Cancel a schedule of the owner of the conversation, as `Session.cancel_schedule`."""
        owner = self._incoming.owner

        async def cancel(schedule_id: str) -> bool:
            return await self._scheduler.cancel(schedule_id, owner)

        return bool(await run_step(self._journal, "session.cancel_schedule", cancel, (str(schedule_id),), "retry"))

    async def find_all(self) -> list[Schedule]:
        """Return the schedules of the owner of the conversation, as `Session.schedules`."""
        return await self._scheduler.find_all(self._incoming.owner)


def check_when(when: object) -> None:
    """Raise ValueError if a reminder cannot have this time."""
    if not isinstance(when, datetime | timedelta | str):
        raise ValueError(
            f"a reminder is due at a datetime, after a timedelta, or at the times of a cron text, not {when!r:.200}"
        )


def _find_due_time(when: datetime | timedelta | str, times: CronTimes | None, now: datetime) -> datetime:
    check_when(when)
    if times is not None:
        return times.next_after(now)
    try:
        if isinstance(when, timedelta):
            if when < timedelta(0):
                raise ValueError(f"a reminder cannot be due {-when} ago; give a time to come")
            return now + when
        assert isinstance(when, datetime)
        if when.tzinfo is None:
            raise ValueError(f'{when} has no time zone; add one: when.replace(tzinfo=ZoneInfo("Europe/Berlin"))')
        return when.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"a reminder cannot be due so late: {when}") from error
