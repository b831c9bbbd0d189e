"""The schedules of one agent, as turns and operators make, list and cancel them. `intake.scheduler` runs them when due."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ...contracts import Missed, Schedule
from ...domain.channel_kinds import DUE_IN_ROOM, DUE_TO_NOBODY, DUE_TO_PERSON, JOB, SCHEDULE_CHANNEL
from ...domain.initiative.schedules import CronTimes
from ...domain.messages import NO_HEADERS, REPLY_THREAD, ROOM_HEADERS, ROOT_SENDER, InboundRequest, RequestContext
from ...domain.texts.json_text import dump_json
from ...storage import SCHEDULE, AgentRepository, SaveStep, Task, from_micros
from ..tasks import AgentTasks

MAX_SCHEDULES = 100
"""The most schedules of one person with an agent."""
MAX_PAYLOAD_BYTES = 2**18
"""The largest payload of a schedule, as JSON in UTF-8."""
REMINDER, LATER = "reminder", "job"
"""The kinds of schedules that a turn makes: by `session.remind` and `session.later`."""
_ROOM_METADATA = ("room", "nickname", "occupant")


class AgentSchedules:
    """The stored schedules of one agent. `zone` is the time zone of those that name none.

    The data of a task are its `kind`, `cron` ("" for a time that comes once), `zone` and `missed`, and `request`: the fields of
    what it asks at each due time. A task is deleted in the transaction that puts its last request into the inbox.
    """

    def __init__(self, repository: AgentRepository, tasks: AgentTasks, zone: str) -> None:
        self.agent = repository.agent
        self.zone = zone
        self.clock = tasks.now
        self._queue = repository.schedules
        self._tasks = tasks

    async def add(self, new: Task, save_step: SaveStep | None) -> None:
        """Store a schedule, unless there is one with its id. ValueError if its owner has too many; StoreError.

        `save_step` stores its id as the result of the step that makes it. Once it is due, a step that ran again would not find
        it any more, and would make a second one.
        """

        def decide(own: int, of_others: int) -> Task | None:
            return new if own + of_others < MAX_SCHEDULES else None

        if await self._queue.create(new, decide, save_step=save_step) is None:
            raise ValueError(f"{new.owner} has {MAX_SCHEDULES} schedules with {self.agent} already; cancel one first")
        self._tasks.alarm.wake_at(new.due)

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
        is_hidden = given.hides_person or (root == "" and not incoming.is_from_room)
        request = InboundRequest(
            due_kind,
            incoming.sender,
            "",
            schedule_id if is_job else thread,
            _check_payload(payload),
            "",
            metadata,
            ROOM_HEADERS if due_kind.is_room else NO_HEADERS,
            context=RequestContext(given.hops, given.root_sender, hides_person=is_hidden),
            room=incoming.room._replace(author=""),
            owner=incoming.owner,
        )
        return self.make_task(schedule_id, kind, request, due_at, times, missed, root or "")

    def make_task(
        self,
        key: str,
        kind: str,
        request: InboundRequest,
        due_at: datetime,
        times: CronTimes | None,
        missed: Missed,
        root: str = "",
    ) -> Task:
        """Return the task of a schedule with a request."""
        cron, zone = ("", "") if times is None else (times.cron, times.zone)
        data = {"kind": kind, "cron": cron, "zone": zone, "missed": missed, "request": json.loads(request.to_json())}
        thread = request.metadata.get(REPLY_THREAD, request.thread)  # a job goes with the conversation that began it
        return self._queue.make(key, request.owner, thread, root, dump_json(data), self._tasks.now(), due_at=due_at)

    async def find_all(self, owner: str | None = None) -> list[Schedule]:
        """Return the schedules of one owner (a bare JID) or of all, the next due ones first. StoreError."""
        return [to_public(task) for task in await self._queue.load(owner=owner)]

    async def cancel(self, schedule_id: str, owner: str | None = None, save_step: SaveStep | None = None) -> bool:
        """Delete a schedule, of one owner if given. Return False if there is none. StoreError.

        `save_step` stores that as the result of a step.
        """
        async with self._tasks.reserve(SCHEDULE, schedule_id):
            return await self._queue.delete(schedule_id, save_step, owner=owner)


def to_public(task: Task) -> Schedule:
    """Return a schedule as agents and operators read it."""
    values = task.values
    request = InboundRequest.from_fields(values["request"], SCHEDULE_CHANNEL)
    shown = values["cron"], values["zone"], values["missed"], task.state, task.reason
    when = from_micros(task.created_at), task.due
    return Schedule(task.key, values["kind"], task.owner, request.thread, dict(request.payload), *shown, *when)


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
