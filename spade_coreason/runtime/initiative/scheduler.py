"""The scheduler of one agent: a due time becomes a request, in one transaction with the next due time.

What happens to a request afterwards is what happens to any other: inbox, order, steps, time limit, audit.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

from ...contracts import Missed, Schedule
from ...domain.access import AccessPolicy
from ...domain.channel_kinds import DUE_IN_ROOM, DUE_TO_NOBODY, DUE_TO_PERSON, JOB, SCHEDULE_CHANNEL
from ...domain.identifiers import SCHEDULE_NAMESPACE
from ...domain.initiative.schedules import GRACE, CronTimes, decide_missed
from ...domain.jid import bare_jid
from ...domain.messages import (
    DUE_AT,
    EVERY,
    REPLY_THREAD,
    ROOT_SENDER,
    SCHEDULE as SCHEDULE_METADATA,
    InboundRequest,
    Refused,
    RequestContext,
)
from ...domain.texts.json_text import dump_json
from ...storage import (
    SCHEDULE,
    SUSPENDED,
    WAITING,
    AgentRepository,
    Row,
    SaveStep,
    Task,
    addition_of,
    deletion_of,
    from_micros,
    update_of,
)
from ..intake.request_intake import RequestIntake
from ..tasks import Next, TaskRunner
from .decorator import EveryHandler

log = logging.getLogger(__name__)

MAX_SCHEDULES = 100
"""The most schedules of one person with an agent."""
MAX_PAYLOAD_BYTES = 2**18
"""The largest payload of a schedule, as JSON in UTF-8."""
EVERY_KIND, REMINDER, LATER = "every", "reminder", "job"
"""The kinds of schedules: `@every`, `session.remind` and `session.later`."""
_RETRY = timedelta(minutes=1)
_NO_ACCESS = "the person has no access; admit them, or cancel it"
_NO_ROOM = "the agent is not in the room; invite it again and run the schedule, or cancel it"
_ROOM_METADATA = ("room", "nickname", "occupant")


class Scheduler:
    """The schedules of one agent (`TaskHandler`). `zone` is the time zone of those that name none.

    The data of a task are its `kind`, `cron` ("" for a time that comes once), `zone` and `missed`, and `request`: the fields of
    what it asks at each due time. A task is deleted in the transaction that puts its last request into the inbox.
    """

    waits = False
    failed = SUSPENDED, "it cannot run; see the log"
    most = 1000

    def __init__(
        self,
        repository: AgentRepository,
        runner: TaskRunner,
        intake: RequestIntake,
        access: AccessPolicy,
        is_room: Callable[[str], bool],
        handlers: Sequence[EveryHandler],
        zone: str,
    ) -> None:
        self._agent = repository.agent
        self._queue = repository.schedules
        self._runner = runner
        self._intake = intake
        self._access = access
        self._is_room = is_room
        self._handlers = handlers
        self._zone = zone

    async def open(self, *, has_stored: bool) -> None:
        """Store the due times of `@every`, and forget those of methods that are gone. StoreError.

        `has_stored` is False if none are stored.
        """
        if not (has_stored or self._handlers):
            return
        own = await self._queue.load(owner=self._agent)
        stored = {task.key: task for task in own if task.values["kind"] == EVERY_KIND}
        now = self._runner.now()
        for handler in self._handlers:
            mark, key = handler.mark, str(uuid5(SCHEDULE_NAMESPACE, f"{self._agent}\0{handler.name}"))
            times, thread = CronTimes(mark.cron, mark.zone or self._zone), f"every:{handler.name}"
            metadata = {EVERY: handler.name}
            request = InboundRequest(DUE_TO_NOBODY, self._agent, "", thread, {}, "", metadata=metadata, owner=self._agent)
            new = self._make(key, EVERY_KIND, request, times.next_after(now), times, mark.missed)
            known = stored.pop(key, None)
            if known is not None:
                if (known.values, known.state) == (new.values, WAITING):  # one that could not run is tried again
                    continue
                await self._queue.delete(key)
            await self._queue.store([addition_of(new)])
            self._runner.wake_at(new.due)
        for key in stored:
            await self._queue.delete(key)

    # What people and operators ask for

    async def add(self, new: Task, save_step: SaveStep | None) -> None:
        """Store a schedule, unless there is one with its id. ValueError if its owner has too many; StoreError.

        `save_step` stores its id as the result of the step that makes it. Once it is due, a step that ran again would not find
        it any more, and would make a second one.
        """

        def decide(own: int, of_others: int) -> Task | None:
            return new if own + of_others < MAX_SCHEDULES else None

        if await self._queue.create(new, decide, save_step=save_step) is None:
            raise ValueError(f"{new.owner} has {MAX_SCHEDULES} schedules with {self._agent} already; cancel one first")
        self._runner.wake_at(new.due)

    def make(
        self,
        schedule_id: str,
        kind: str,
        incoming: InboundRequest,
        payload: Any,
        due_at: datetime,
        times: CronTimes | None,
        missed: Missed,
    ) -> Task:
        """Return a new schedule that a request asks for, not stored yet. ValueError if the payload is unsuitable."""
        given, root, is_job = incoming.context, incoming.stored_root, kind == LATER
        tells_person = REPLY_THREAD in incoming.metadata  # a job that a person began
        reaches_person = incoming.kind.is_human or tells_person or is_asked_directly(incoming)
        is_room = incoming.kind.is_room or (tells_person and incoming.is_from_room)
        due_kind = JOB if is_job else DUE_IN_ROOM if is_room else DUE_TO_PERSON if reaches_person else DUE_TO_NOBODY
        thread = incoming.metadata.get(REPLY_THREAD, incoming.thread)
        metadata = {}
        if incoming.is_from_room:
            metadata = {name: incoming.metadata[name] for name in _ROOM_METADATA if name in incoming.metadata}
        elif root and root != incoming.owner:
            metadata[ROOT_SENDER] = root
        if is_job and reaches_person and not (incoming.is_from_room and not is_room):
            metadata[REPLY_THREAD] = thread
        is_hidden = given.hides_person or (root == "" and not incoming.address)
        request = InboundRequest(
            due_kind,
            incoming.sender,
            "",
            schedule_id if is_job else thread,
            _check_payload(payload),
            "",
            "groupchat" if due_kind.is_room else "chat",
            metadata,
            context=RequestContext(given.hops, given.root_sender, hides_person=is_hidden),
            owner=incoming.owner,
            address=incoming.address,
            nickname=incoming.nickname,
        )
        return self._make(schedule_id, kind, request, due_at, times, missed, root or "")

    def _make(
        self,
        key: str,
        kind: str,
        request: InboundRequest,
        due_at: datetime,
        times: CronTimes | None,
        missed: Missed,
        root: str = "",
    ) -> Task:
        cron, zone = ("", "") if times is None else (times.cron, times.zone)
        data = {"kind": kind, "cron": cron, "zone": zone, "missed": missed, "request": json.loads(request.to_json())}
        thread = request.metadata.get(REPLY_THREAD, request.thread)  # a job goes with the conversation that began it
        return self._queue.make(key, request.owner, thread, root, dump_json(data), self._runner.now(), due_at=due_at)

    async def find_all(self, owner: str | None = None) -> list[Schedule]:
        """Return the schedules of one owner (a bare JID) or of all, the next due ones first. StoreError."""
        return [to_public(task) for task in await self._queue.load(owner=owner)]

    async def cancel(self, schedule_id: str, owner: str | None = None, save_step: SaveStep | None = None) -> bool:
        """Delete a schedule, of one owner if given. Return False if there is none. StoreError.

        `save_step` stores that as the result of a step.
        """
        async with self._runner.reserve(SCHEDULE, schedule_id):
            return await self._queue.delete(schedule_id, save_step, owner=owner)

    async def run_now(self, schedule_id: str) -> bool:
        """Let a schedule be due now, once more than its times say. One that is suspended goes on. False if there is none.

        ValueError if its person has no access, the agent is not in its room, or a limit refuses the request. StoreError.
        """
        async with self._runner.reserve(SCHEDULE, schedule_id):
            if (task := await self._queue.find(schedule_id)) is None:
                return False
            if problem := self._find_problem(task):
                raise ValueError(problem)
            times, now = _times_of(task.values), self._runner.now()
            after = None if times is None else task.moved(now, due_at=times.next_after(now))
            outcome = self._intake.receive_due(make_request(task, now), [_row_of(task, after)])
            if isinstance(outcome, Refused):
                raise ValueError(outcome.message)
            return await outcome

    def resume(self) -> None:
        """Let the suspended schedules go on whose people have access again."""

        def decide(task: Task) -> Task | None:
            may_run = task.reason in (_NO_ACCESS, _NO_ROOM) and not self._find_problem(task)
            return task.moved(self._runner.now()) if may_run else None

        self._runner.watch(self._queue.change(decide, state=SUSPENDED))

    # The clock

    def run(self, task: Task, now: datetime) -> Next:
        """Put the request of a due time into the inbox, in one transaction with the next due time."""
        if problem := self._find_problem(task):
            if problem == _NO_ACCESS and not self._access.is_known:
                return task.moved(now, wake_at=now + _RETRY)
            log.info("%s: the schedule %s of %s is suspended: %s", self._agent, task.key, task.owner, problem)
            return task.moved(now, SUSPENDED, problem)
        values = task.values
        times, missed = _times_of(values), values["missed"]
        decision = decide_missed(times, task.due, now, missed, waited_until=from_micros(task.wake_at))
        next_due = decision.next_due
        after = None if next_due is None else task.moved(now, due_at=next_due)
        # What is due while one of it waits for its turn is one run with it.
        if decision.runs_at is None or (times is not None and self._intake.has_due(task.owner, task.key)):
            log.info("%s: skipped a due time of %s, %s: it was missed", self._agent, task.key, task.due)
            return after
        missed_at = now + GRACE if missed == "skip" else None
        outcome = self._intake.receive_due(make_request(task, decision.runs_at), [_row_of(task, after)], missed_at)
        if not isinstance(outcome, Refused):
            if next_due is not None:
                self._runner.wake_at(next_due)
            return outcome
        again = now + timedelta(seconds=outcome.retry_after_s or _RETRY.total_seconds())
        moved = after if after is not None and next_due is not None and next_due < again else task.moved(now, wake_at=again)
        log.info(
            "%s: a due time of %s waits until %s: %s", self._agent, task.owner, from_micros(moved.wake_at), outcome.message
        )
        return moved

    def _find_problem(self, task: Task) -> str:
        """Return why a schedule may not run, and what to do; "" if it may. As in a live room, an unknown occupant may."""
        if task.owner == self._agent:
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


def to_public(task: Task) -> Schedule:
    """Return a schedule as agents and operators read it."""
    values = task.values
    request = InboundRequest.from_fields(values["request"], SCHEDULE_CHANNEL)
    shown = values["cron"], values["zone"], values["missed"], task.state, task.reason
    when = from_micros(task.created_at), task.due
    return Schedule(task.key, values["kind"], task.owner, request.thread, dict(request.payload), *shown, *when)


def _times_of(values: Mapping[str, Any]) -> CronTimes | None:
    return CronTimes(values["cron"], values["zone"]) if values["cron"] else None


def is_asked_directly(incoming: InboundRequest) -> bool:
    """Return True for a request of a program that no agent has passed on, such as the chat of the command line.

    What is due in its conversation goes to its account as a text. Two agents could write to each other without end so.
    """
    return incoming.kind.is_program and not (incoming.hops or incoming.chain)


def _check_payload(payload: Any) -> dict[str, Any]:
    if isinstance(payload, str):
        payload = {"query": payload}
    if not isinstance(payload, Mapping):
        raise ValueError(f"the payload of a schedule is a text or a dict, not {payload!r:.200}")
    text = dump_json(dict(payload))
    if (size := len(text.encode())) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"the payload of a schedule has {size:,} bytes (limit: {MAX_PAYLOAD_BYTES:,}); store it, and name it")
    parsed: dict[str, Any] = json.loads(text)
    return parsed
