"""The schedules that one turn makes, each a durable step: a turn that runs again makes none twice.

The step and its schedule are stored in one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from ...contracts import Missed, Schedule
from ...contracts.authoring import Payload
from ...domain.callers import is_caller
from ...domain.initiative.schedules import GRACE, CronTimes
from ...domain.messages import InboundRequest
from ...memory import ActivePerson
from ..steps.step_journal import StepJournal
from .schedules import LATER, REMINDER, AgentSchedules

_ANSWER_NOW = "answer it now, or write to a person: people.notify(jid, …)"


class TurnSchedules:
    """The schedules of a turn, as `Session` has them. Times that repeat are of the zone of `person`."""

    def __init__(self, schedules: AgentSchedules, journal: StepJournal, incoming: InboundRequest, person: ActivePerson) -> None:
        self._schedules = schedules
        self._journal = journal
        self._incoming = incoming
        self._zone = person.preferences.zone or schedules.zone
        self._clock = schedules.clock

    async def remind(self, when: datetime | timedelta | str, payload: Payload, missed: Missed) -> str:
        """Make a schedule, as `Session.remind`."""
        times = CronTimes(when, self._zone) if isinstance(when, str) else None
        due_at = _find_due_time(when, times, self._clock())
        if missed not in ("once", "skip"):
            raise ValueError(f'missed must be "once" or "skip", not {missed!r}')
        # A time that an agent computes from its clock is another one when the turn runs again.
        text = when if isinstance(when, str) else "once"
        return await self._create(REMINDER, payload, (text, payload, missed), due_at, times, missed)

    async def later(self, payload: Payload) -> str:
        """Make a job, as `Session.later`."""
        return await self._create(LATER, payload, (payload,), self._clock(), None, "once")

    async def cancel(self, schedule_id: str) -> bool:
        """Cancel a schedule of the owner of the conversation, as `Session.cancel_schedule`."""
        step = await self._journal.open_step("session.cancel_schedule", (str(schedule_id),), "retry")
        if step.is_finished:
            return bool(step.result)
        return await self._schedules.cancel(str(schedule_id), self._incoming.owner, self._journal.close_step_with(step))

    async def find_all(self) -> list[Schedule]:
        """Return the schedules of the owner of the conversation, as `Session.schedules`."""
        return await self._schedules.find_all(self._incoming.owner)

    async def _create(
        self, kind: str, payload: Payload, args: Sequence[Any], due_at: datetime, times: CronTimes | None, missed: Missed
    ) -> str:
        name = "session.later" if kind == LATER else "session.remind"
        if is_caller(self._incoming.owner):
            raise ValueError(f"{name}: a caller of a door fetches replies, and nothing is sent to it later; {_ANSWER_NOW}")
        step = await self._journal.open_step(name, args, "retry")
        if not step.is_finished:
            if missed == "skip" and due_at < self._clock() - GRACE:
                raise ValueError(f'{name}: {due_at} is over, and would be skipped; give a time to come, or missed="once"')
            new = self._schedules.make(step.key, kind, self._incoming, payload, due_at, times, missed)
            await self._schedules.add(new, self._journal.close_step_with(step))
        return step.key


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
