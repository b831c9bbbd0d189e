"""The scheduler of one agent: a due time becomes a request, in one transaction with the next due time.

What happens to a request afterwards is what happens to any other: inbox, order, steps, time limit, audit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

from ...domain.access import AccessPolicy
from ...domain.channel_kinds import DUE_TO_NOBODY, SCHEDULE_CHANNEL
from ...domain.identifiers import SCHEDULE_NAMESPACE
from ...domain.initiative.schedules import GRACE, CronTimes, decide_missed
from ...domain.jid import bare_jid
from ...domain.messages import DUE_AT, EVERY, SCHEDULE as SCHEDULE_METADATA, InboundRequest, Refused
from ...storage import (
    SCHEDULE,
    SUSPENDED,
    WAITING,
    AgentRepository,
    Row,
    Task,
    addition_of,
    deletion_of,
    from_micros,
    update_of,
)
from ..initiative.decorator import EveryHandler
from ..initiative.schedules import AgentSchedules
from ..mailboxes.withdrawal import Withdrawal
from ..tasks import AgentTasks, Next
from .request_intake import RequestIntake

log = logging.getLogger(__name__)

EVERY_KIND = "every"
"""The kind of the schedules that `@every` makes."""
_RETRY = timedelta(minutes=1)
_NO_ACCESS = "the person has no access; admit them, or cancel it"
_NO_ROOM = "the agent is not in the room; invite it again and run the schedule, or cancel it"


class Scheduler(AgentSchedules):
    """The schedules of one agent, with what runs them (`TaskHandler`)."""

    waits = False
    failed = SUSPENDED, "it cannot run; see the log"
    most = 1000

    def __init__(
        self,
        repository: AgentRepository,
        tasks: AgentTasks,
        zone: str,
        intake: RequestIntake,
        withdrawal: Withdrawal,
        access: AccessPolicy,
        is_room: Callable[[str], bool],
        handlers: Sequence[EveryHandler],
    ) -> None:
        super().__init__(repository, tasks, zone)
        self._intake = intake
        self._withdrawal = withdrawal
        self._access = access
        self._is_room = is_room
        self._handlers = handlers
        tasks.add_handler(SCHEDULE, self)

    async def open(self, *, has_stored: bool) -> None:
        """Store the due times of `@every`, and forget those of methods that are gone. StoreError.

        `has_stored` is False if none are stored.
        """
        if not (has_stored or self._handlers):
            return
        own = await self._queue.load(owner=self.agent)
        stored = {task.key: task for task in own if task.values["kind"] == EVERY_KIND}
        now = self._tasks.now()
        for handler in self._handlers:
            mark, key = handler.mark, str(uuid5(SCHEDULE_NAMESPACE, f"{self.agent}\0{handler.name}"))
            times, thread = CronTimes(mark.cron, mark.zone or self.zone), f"every:{handler.name}"
            metadata = {EVERY: handler.name}
            request = InboundRequest(DUE_TO_NOBODY, self.agent, "", thread, {}, "", metadata=metadata, owner=self.agent)
            new = self.make_task(key, EVERY_KIND, request, times.next_after(now), times, mark.missed)
            known = stored.pop(key, None)
            if known is not None:
                if (known.values, known.state) == (new.values, WAITING):  # one that could not run is tried again
                    continue
                await self._queue.delete(key)
            await self._queue.store([addition_of(new)])
            self._tasks.alarm.wake_at(new.due)
        for key in stored:
            await self._queue.delete(key)

    # What operators ask for

    async def run_now(self, schedule_id: str) -> bool:
        """Let a schedule be due now, once more than its times say. One that is suspended goes on. False if there is none.

        ValueError if its person has no access, the agent is not in its room, or a limit refuses the request. StoreError.
        """
        async with self._tasks.reserve(SCHEDULE, schedule_id):
            if (task := await self._queue.find(schedule_id)) is None:
                return False
            if problem := self._find_problem(task):
                raise ValueError(problem)
            times, now = _times_of(task.values), self._tasks.now()
            after = None if times is None else task.moved(now, due_at=times.next_after(now))
            outcome = self._intake.receive_due(make_request(task, now), [_row_of(task, after)])
            if isinstance(outcome, Refused):
                raise ValueError(outcome.message)
            return await outcome

    def resume(self) -> None:
        """Let the suspended schedules go on whose people have access again."""

        def decide(task: Task) -> Task | None:
            may_run = task.reason in (_NO_ACCESS, _NO_ROOM) and not self._find_problem(task)
            return task.moved(self._tasks.now()) if may_run else None

        self._tasks.watch(self._queue.change(decide, state=SUSPENDED))

    # The clock

    def run(self, task: Task, now: datetime) -> Next:
        """Put the request of a due time into the inbox, in one transaction with the next due time."""
        if problem := self._find_problem(task):
            if problem == _NO_ACCESS and not self._access.is_known:
                return task.moved(now, wake_at=now + _RETRY)
            log.info("%s: the schedule %s of %s is suspended: %s", self.agent, task.key, task.owner, problem)
            return task.moved(now, SUSPENDED, problem)
        values = task.values
        times, missed = _times_of(values), values["missed"]
        decision = decide_missed(times, task.due, now, missed, waited_until=from_micros(task.wake_at))
        next_due = decision.next_due
        after = None if next_due is None else task.moved(now, due_at=next_due)
        # What is due while one of it waits for its turn is one run with it.
        if decision.runs_at is None or (times is not None and self._withdrawal.has_due(task.owner, task.key)):
            log.info("%s: skipped a due time of %s, %s: it was missed", self.agent, task.key, task.due)
            return after
        missed_at = now + GRACE if missed == "skip" else None
        outcome = self._intake.receive_due(make_request(task, decision.runs_at), [_row_of(task, after)], missed_at)
        if not isinstance(outcome, Refused):
            if next_due is not None:
                self._tasks.alarm.wake_at(next_due)
            return outcome
        again = now + timedelta(seconds=outcome.retry_after_s or _RETRY.total_seconds())
        moved = after if after is not None and next_due is not None and next_due < again else task.moved(now, wake_at=again)
        log.info("%s: a due time of %s waits until %s: %s", self.agent, task.owner, from_micros(moved.wake_at), outcome.message)
        return moved

    def _find_problem(self, task: Task) -> str:
        """Return why a schedule may not run, and what to do; "" if it may. As in a live room, an unknown occupant may."""
        if task.owner == self.agent:
            return ""
        request = task.values["request"]
        person: str | None = task.owner
        if address := request.get("address"):
            if not self._is_room(bare_jid(address)):
                return _NO_ROOM
            person = request.get("metadata", {}).get("occupant")
        return "" if person is None or self._access.is_allowed(person) else _NO_ACCESS


def _row_of(task: Task, after: Task | None) -> tuple[int, Row]:
    """Return the row that stores what is left of a schedule after a due time."""
    return deletion_of(task) if after is None else update_of(after)


def make_request(task: Task, due_at: datetime) -> InboundRequest:
    """Return the request of a due time."""
    fields, text = task.values["request"], due_at.astimezone(UTC).isoformat()
    fields["metadata"] = {SCHEDULE_METADATA: task.key, DUE_AT: text, **fields.get("metadata", {})}
    return InboundRequest.from_fields({**fields, "request_id": str(uuid5(UUID(task.key), text))}, SCHEDULE_CHANNEL)


def _times_of(values: Mapping[str, Any]) -> CronTimes | None:
    return CronTimes(values["cron"], values["zone"]) if values["cron"] else None
