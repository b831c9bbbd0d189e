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
from ...domain.channel_kinds import (
    CHANNEL_KINDS,
    DUE_IN_ROOM,
    DUE_TO_NOBODY,
    DUE_TO_PERSON,
    JOB,
    SCHEDULE_CHANNEL,
    ChannelKind,
)
from ...domain.identifiers import SCHEDULE_NAMESPACE
from ...domain.initiative.schedules import GRACE, CronTimes, decide_missed
from ...domain.jid import bare_jid
from ...domain.messages import (
    DUE_AT,
    EVERY,
    NO_CONTEXT,
    REPLY_THREAD,
    ROOT_SENDER,
    SCHEDULE,
    InboundRequest,
    Refused,
    RequestContext,
)
from ...domain.texts.json_text import dump_json
from ...storage import SUSPENDED, WAITING, AgentRepository, Commit, SaveStep, StoredSchedule, from_micros, to_micros
from ..intake.request_intake import RequestIntake
from .decorator import EveryHandler
from .due_times import DueTimes

log = logging.getLogger(__name__)

MAX_SCHEDULES = 100
"""The most schedules of one person with an agent."""
MAX_PAYLOAD_BYTES = 2**18
"""The largest payload of a schedule, as JSON in UTF-8."""
EVERY_KIND, REMINDER, LATER = "every", "reminder", "job"
"""The kinds of schedules: `@every`, `session.remind` and `session.later`."""
_BATCH = 100
_RETRY = timedelta(minutes=1)
_NO_ACCESS = "the person has no access; admit them, or cancel it"
_NO_ROOM = "the agent is not in the room; invite it again and run the schedule, or cancel it"
_ROOM_METADATA = ("room", "nickname", "occupant")


class Scheduler:
    """The schedules of one agent, a source of due times. `zone` is the time zone of those that name none."""

    def __init__(
        self,
        repository: AgentRepository,
        intake: RequestIntake,
        access: AccessPolicy,
        is_room: Callable[[str], bool],
        handlers: Sequence[EveryHandler],
        zone: str,
        clock: Callable[[], datetime],
    ) -> None:
        self._agent = repository.agent
        self._repository = repository.schedules
        self._intake = intake
        self._access = access
        self._is_room = is_room
        self._handlers = handlers
        self._zone = zone
        self._clock = clock
        self._changing: set[str] = set()
        """The ids of those that are cancelled or run now, until that is stored. The clock leaves them alone."""
        self._changes = 0
        """The number of changes: what was loaded before one is loaded again."""
        self.due_times: DueTimes | None = None
        """The clock of the agent, once it is there."""

    async def open(self, *, has_stored: bool) -> None:
        """Store the due times of `@every`, and forget those of methods that are gone. StoreError.

        `has_stored` is False if none are stored.
        """
        if not (has_stored or self._handlers):
            return
        stored = {schedule.schedule_id: schedule for schedule in await self._repository.load_of_kind(EVERY_KIND)}
        now = self._clock()
        for handler in self._handlers:
            mark, schedule_id = handler.mark, str(uuid5(SCHEDULE_NAMESPACE, f"{self._agent}\0{handler.name}"))
            times = CronTimes(mark.cron, mark.zone or self._zone)
            known = stored.pop(schedule_id, None)
            wanted = times.cron, times.zone, mark.missed, WAITING  # one that could not run is tried again
            if known is not None and (known.cron, known.zone, known.missed, known.state) == wanted:
                continue
            if known is not None:
                await self._repository.delete(schedule_id)
            due = to_micros(times.next_after(now))
            origin = json.dumps({"kind": DUE_TO_NOBODY.name, "name": handler.name})
            new = StoredSchedule(
                id=self._repository.next_id(),
                agent=self._agent,
                schedule_id=schedule_id,
                kind=EVERY_KIND,
                owner=self._agent,
                root="",
                thread=f"every:{handler.name}",
                origin=origin,
                payload="{}",
                cron=times.cron,
                zone=times.zone,
                missed=mark.missed,
                state=WAITING,
                reason="",
                created_at=to_micros(now),
                due_at=due,
                wake_at=due,
            )
            await self._repository.create(new, max_of_owner=10_000)
            self._wake_at(times.next_after(now))
        for schedule_id in stored:
            await self._repository.delete(schedule_id)

    # What people and operators ask for

    async def add(self, new: StoredSchedule, save_step: SaveStep | None) -> None:
        """Store a schedule, unless there is one with its id. ValueError if its owner has too many; StoreError.

        `save_step` stores its id as the result of the step that makes it. Once it is due, a step that ran again would not find
        it any more, and would make a second one.
        """
        if not await self._repository.create(new, MAX_SCHEDULES, save_step):
            raise ValueError(f"{new.owner} has {MAX_SCHEDULES} schedules with {self._agent} already; cancel one first")
        self._wake_at(from_micros(new.wake_at))

    def make(
        self,
        schedule_id: str,
        kind: str,
        incoming: InboundRequest,
        payload: Any,
        due_at: datetime,
        times: CronTimes | None,
        missed: Missed,
    ) -> StoredSchedule:
        """Return a new schedule that a request asks for, not stored yet. ValueError if the payload is unsuitable."""
        due, is_job = to_micros(due_at), kind == LATER
        root = incoming.stored_root or ""
        return StoredSchedule(
            id=self._repository.next_id(),
            agent=self._agent,
            schedule_id=schedule_id,
            kind=kind,
            owner=incoming.owner,
            root="" if root == incoming.owner else root,
            thread=schedule_id if is_job else _find_thread(incoming),
            origin=_dump_origin(incoming, is_job=is_job),
            payload=_dump_payload(payload),
            cron="" if times is None else times.cron,
            zone="" if times is None else times.zone,
            missed=missed,
            state=WAITING,
            reason="",
            created_at=to_micros(self._clock()),
            due_at=due,
            wake_at=due,
        )

    async def find_all(self, owner: str | None = None) -> list[Schedule]:
        """Return the schedules of one owner (a bare JID) or of all, the next due ones first. StoreError."""
        return [to_public(stored) for stored in await self._repository.load_all(owner)]

    async def cancel(self, schedule_id: str, owner: str | None = None, save_step: SaveStep | None = None) -> bool:
        """Delete a schedule, of one owner if given. Return False if there is none. StoreError.

        `save_step` stores that as the result of a step.
        """
        self._changing.add(schedule_id)
        try:
            return await self._repository.delete(schedule_id, owner, save_step)
        finally:
            self._changing.discard(schedule_id)
            self._changes += 1  # the clock may have read it before

    async def run_now(self, schedule_id: str) -> bool:
        """Let a schedule be due now, once more than its times say. One that is suspended goes on. False if there is none.

        ValueError if its person has no access, the agent is not in its room, or a limit refuses the request. StoreError.
        """
        stored = await self._repository.find(schedule_id)
        if stored is None:
            return False
        if problem := self._find_problem(stored):
            raise ValueError(problem)
        now = self._clock()
        rows = [stored.moved(CronTimes(stored.cron, stored.zone).next_after(now)).update if stored.cron else stored.deletion]
        self._changing.add(schedule_id)
        try:
            outcome = self._intake.receive_due(make_request(stored, now), rows)
            if isinstance(outcome, Refused):
                raise ValueError(outcome.message)
            done = await outcome
        finally:
            self._changing.discard(schedule_id)
            self._changes += 1  # the clock may have read it before
        self._wake_at(now)
        return done

    def resume(self) -> None:
        """Let the suspended schedules go on whose people have access again."""

        def may_run(stored: StoredSchedule) -> bool:
            return stored.reason in (_NO_ACCESS, _NO_ROOM) and not self._find_problem(stored)

        self._repository.resume(may_run).on_stored(lambda number: self._wake_at(self._clock()) if number else None)

    def forget(self) -> None:
        """Hand over nothing that was loaded before now, because rows are being deleted."""
        self._changes += 1

    # The clock

    async def run_due(self, now: datetime) -> None:
        """Hand over what is due."""
        changes, commits = self._changes, []
        due = await self._repository.load_due(now, _BATCH)
        if changes != self._changes:
            return  # the clock loads it again
        for stored in due:
            if stored.schedule_id not in self._changing:
                commits.append(self._run_or_suspend(stored, now))
        if commits:
            await Commit.join(commits)  # otherwise the next look would find the same

    async def find_next_due(self) -> datetime | None:
        """Return when the first schedule is to be looked at."""
        return await self._repository.find_next_due()

    def _find_problem(self, stored: StoredSchedule) -> str:
        """Return why a schedule may not run, and what to do; "" if it may. As in a live room, an unknown occupant may."""
        if stored.owner == self._agent:
            return ""
        origin = json.loads(stored.origin)
        person = stored.owner
        if address := origin.get("address"):
            if not self._is_room(bare_jid(address)):
                return _NO_ROOM
            person = origin.get("occupant")
        return "" if person is None or self._access.is_allowed(person) else _NO_ACCESS

    def _suspend(self, stored: StoredSchedule, reason: str) -> Commit[bool]:
        log.info("%s: the schedule %s of %s is suspended: %s", self._agent, stored.schedule_id, stored.owner, reason)
        return self._repository.store([stored.moved(stored.due, state=SUSPENDED, reason=reason).update])

    def _run_or_suspend(self, stored: StoredSchedule, now: datetime) -> Commit[bool]:
        try:
            problem = self._find_problem(stored)
            if problem == _NO_ACCESS and not self._access.is_known:
                return self._repository.store([stored.moved(stored.due, now + _RETRY).update])
            return self._suspend(stored, problem) if problem else self._run(stored, now)
        except Exception:  # one that cannot be read must not hold up the others
            log.exception("%s: the schedule %s cannot run", self._agent, stored.schedule_id)
            return self._suspend(stored, "it cannot run; see the log")

    def _run(self, stored: StoredSchedule, now: datetime) -> Commit[bool]:
        times = CronTimes(stored.cron, stored.zone) if stored.cron else None
        missed: Missed = "skip" if stored.missed == "skip" else "once"
        decision = decide_missed(times, stored.due, now, missed, waited_until=from_micros(stored.wake_at))
        after = stored.deletion if decision.next_due is None else stored.moved(decision.next_due).update
        # What is due while one of it waits for its turn is one run with it.
        if decision.runs_at is None or (times is not None and self._intake.has_due(stored.owner, stored.schedule_id)):
            log.info("%s: skipped a due time of %s, %s: it was missed", self._agent, stored.schedule_id, stored.due)
            return self._repository.store([after])
        missed_at = now + GRACE if missed == "skip" else None
        outcome = self._intake.receive_due(make_request(stored, decision.runs_at), [after], missed_at)
        if not isinstance(outcome, Refused):
            return outcome
        again = now + timedelta(seconds=outcome.retry_after_s or _RETRY.total_seconds())
        next_due = decision.next_due
        moved = stored.moved(next_due) if next_due is not None and next_due < again else stored.moved(stored.due, again)
        log.info(
            "%s: a due time of %s waits until %s: %s", self._agent, stored.owner, from_micros(moved.wake_at), outcome.message
        )
        return self._repository.store([moved.update])

    def _wake_at(self, due_at: datetime) -> None:
        if self.due_times is not None:
            self.due_times.wake_at(due_at)


def make_request(stored: StoredSchedule, due_at: datetime) -> InboundRequest:
    """Return the request of a due time."""
    origin = json.loads(stored.origin)
    kind = CHANNEL_KINDS[origin["kind"]]
    due_text = due_at.astimezone(UTC).isoformat()
    metadata = {SCHEDULE: stored.schedule_id, DUE_AT: due_text}
    metadata |= {name: origin[name] for name in _ROOM_METADATA if name in origin}
    if stored.kind == EVERY_KIND:
        metadata[EVERY] = origin["name"]
    if REPLY_THREAD in origin:
        metadata[REPLY_THREAD] = origin[REPLY_THREAD]
    if stored.root and "address" not in origin:
        metadata[ROOT_SENDER] = stored.root
    stored_context = origin.get("context", {})
    known = {name: stored_context[name] for name in RequestContext._fields if name in stored_context}
    return InboundRequest(
        kind,
        origin.get("sender", stored.owner),
        "",
        stored.thread,
        json.loads(stored.payload),
        "",
        "groupchat" if kind.is_room else "chat",
        metadata,
        request_id=uuid5(UUID(stored.schedule_id), due_text),
        context=RequestContext(**known) if known else NO_CONTEXT,
        owner=stored.owner,
        address=origin.get("address", ""),
        nickname=origin.get("nickname", ""),
        channel_name=SCHEDULE_CHANNEL,
    )


def to_public(stored: StoredSchedule) -> Schedule:
    """Return a schedule as agents and operators read it."""
    return Schedule(
        stored.schedule_id,
        stored.kind,
        stored.owner,
        stored.thread,
        json.loads(stored.payload),
        stored.cron,
        stored.zone,
        "skip" if stored.missed == "skip" else "once",
        stored.state,
        stored.reason,
        from_micros(stored.created_at),
        stored.due,
    )


def is_asked_directly(incoming: InboundRequest) -> bool:
    """Return True for a request of a program that no agent has passed on, such as the chat of the command line.

    What is due in its conversation goes to its account as a text. Two agents could write to each other without end so.
    """
    return incoming.kind.is_program and not (incoming.hops or incoming.chain)


def _find_thread(incoming: InboundRequest) -> str | None:
    """Return the thread of the conversation of a request; of a job, that of the conversation that began it."""
    thread: str | None = incoming.metadata.get(REPLY_THREAD, incoming.thread)
    return thread


def _dump_origin(incoming: InboundRequest, *, is_job: bool) -> str:
    tells_person = REPLY_THREAD in incoming.metadata  # a job that a person began
    reaches_person = incoming.kind.is_human or tells_person or is_asked_directly(incoming)
    is_room = incoming.kind.is_room or (tells_person and incoming.is_from_room)
    kind: ChannelKind = DUE_IN_ROOM if is_room else DUE_TO_PERSON if reaches_person else DUE_TO_NOBODY
    origin: dict[str, Any] = {"kind": JOB.name if is_job else kind.name, "sender": incoming.sender}
    if incoming.is_from_room:
        origin |= {"address": incoming.address, "nickname": incoming.nickname}
        origin |= {name: incoming.metadata[name] for name in _ROOM_METADATA if name in incoming.metadata}
    if is_job and reaches_person and not (incoming.is_from_room and not is_room):
        origin[REPLY_THREAD] = _find_thread(incoming)
    given = incoming.context
    is_hidden = given.hides_person or (incoming.stored_root == "" and not incoming.address)
    context = {"hops": given.hops, "root_sender": given.root_sender, "hides_person": is_hidden}
    if any(context.values()):
        origin["context"] = context
    return json.dumps(origin)


def _dump_payload(payload: Any) -> str:
    if isinstance(payload, str):
        payload = {"query": payload}
    if not isinstance(payload, Mapping):
        raise ValueError(f"the payload of a schedule is a text or a dict, not {payload!r:.200}")
    text = dump_json(dict(payload))
    if (size := len(text.encode())) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"the payload of a schedule has {size:,} bytes (limit: {MAX_PAYLOAD_BYTES:,}); store it, and name it")
    return text
