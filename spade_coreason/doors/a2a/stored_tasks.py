"""Tasks as storage has them: requests that wait or run, and turns that have answered one."""

from __future__ import annotations

import asyncio
import base64
import math
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from a2a.types import a2a_pb2
from a2a.utils.errors import InvalidParamsError
from google.protobuf.json_format import ParseDict
from pydantic_core import from_json

from ...contracts.times import utc_now
from ...domain.identifiers import candidate_conversation_ids, recover_thread
from ...storage import DUPLICATE_DAYS, KnownRequest, OwnTurn
from ..agents import DoorAgent
from ..caller import Caller
from .messages import data_part, make_message, parts_of
from .progress import ASKED_ANOTHER, make_status, question_parts, text_or_link

THREAD_PREFIX = "a2a:"
"""The beginning of the threads of this door. So a task of another door is none of this one, and no conversation is shared."""
_PAGE = 8
"""The most stored tasks that are in memory at once. Each may have a text of some MiB."""
_PAGE_BYTES = 2**17
"""The bytes of tasks with which a page ends, however many were asked for. To write them as JSON takes 80 ns each."""
_MAX_COUNTED = 10_000
"""The most stored tasks that are read to count those of one state."""
_MAX_COUNTED_CHARACTERS = 2**24
"""The most characters of them that are read for it."""
_ENDED = {a2a_pb2.TASK_STATE_COMPLETED, a2a_pb2.TASK_STATE_FAILED}


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """The tasks that a caller asks for."""

    context_id: str = ""
    state: int = a2a_pb2.TASK_STATE_UNSPECIFIED
    after: datetime | None = None
    has_history: bool = True
    """True if the messages of the caller are shown."""
    has_artifacts: bool = True

    def accepts(self, task: a2a_pb2.Task) -> bool:
        """Return True if a task is asked for."""
        if self.context_id and task.context_id != self.context_id:
            return False
        if self.after is not None and moment_of(task) < self.after:
            return False
        return self.state in (a2a_pb2.TASK_STATE_UNSPECIFIED, task.status.state)


_ALL = TaskFilter()


@dataclass(frozen=True, slots=True)
class TaskPage:
    """Some of the tasks that a caller asks for: those changed last come first."""

    tasks: list[a2a_pb2.Task]
    next_token: str
    total: int


def moment_of(task: a2a_pb2.Task) -> datetime:
    """Return the time of the last change of a task."""
    return task.status.timestamp.ToDatetime(tzinfo=utc_now().tzinfo)


class StoredTasks:
    """The tasks of one agent. A task of another caller, or older than seven days, is not found."""

    def __init__(self, agent: DoorAgent) -> None:
        self._agent = agent

    async def find(self, caller: Caller, task_id: UUID) -> KnownRequest | None:
        """Return the request with the id of a task, or None."""
        known = await self._agent.requests.find(caller, task_id)
        if known is None or (known.turn_row and known.turn is None):
            return None  # there is none, or its turn was deleted
        thread = self._thread_of(known, caller)
        return known if thread is None or thread.startswith(THREAD_PREFIX) else None

    def _thread_of(self, known: KnownRequest, caller: Caller) -> str | None:
        """Return the thread of a request; None if it was closed without a turn, so that storage does not have it."""
        if known.request is not None:
            return from_json(known.request).get("thread") or ""
        if known.conversation_id is None:
            return None
        return recover_thread(known.conversation_id, caller.address, self._agent.jid) or ""

    async def load(self, caller: Caller, task_id: UUID, known: KnownRequest) -> a2a_pb2.Task:
        """Make the task of a request."""
        task = await self._make(caller, task_id, known)
        await self._add_answers(caller, [task])
        return task

    async def _add_answers(self, caller: Caller, tasks: list[a2a_pb2.Task]) -> None:
        """Add the questions that the caller has answered, and the answers, to the histories of tasks."""
        by_id = {UUID(task.id): task for task in tasks}
        for asked, answer in await self._agent.find_answers(caller, by_id):
            task = by_id[asked.request_id]
            parts = [a2a_pb2.Part(text=answer) if isinstance(answer, str) else data_part(answer)]
            task.history.append(make_message(asked.id, task.id, task.context_id, question_parts(asked)))
            task.history.append(make_message(f"{asked.id}-answer", task.id, task.context_id, parts, is_user=True))

    async def _make(self, caller: Caller, task_id: UUID, known: KnownRequest) -> a2a_pb2.Task:
        context_id = (self._thread_of(known, caller) or "").removeprefix(THREAD_PREFIX)
        if known.turn is not None:
            return make_answered_task(str(task_id), context_id, from_json(known.turn))
        if known.request is not None:
            return await self._make_open(caller, from_json(known.request), known.received_at, is_parked=known.is_parked)
        status = make_status(a2a_pb2.TASK_STATE_CANCELED, str(task_id), context_id, now=known.received_at)
        return a2a_pb2.Task(id=str(task_id), context_id=context_id, status=status)

    async def _make_open(
        self, caller: Caller, request: Mapping[str, Any], received_at: datetime, *, is_parked: bool
    ) -> a2a_pb2.Task:
        task_id, context_id = request["request_id"], request["thread"].removeprefix(THREAD_PREFIX)
        state, parts = a2a_pb2.TASK_STATE_WORKING, []
        if is_parked:
            questions = await self._agent.find_questions(caller, UUID(task_id))
            if questions:
                state, parts = a2a_pb2.TASK_STATE_INPUT_REQUIRED, question_parts(questions[0])
            elif await self._agent.waits_for_others(caller, UUID(task_id)):
                parts = [a2a_pb2.Part(text=ASKED_ANOTHER)]
        message_id = request.get("metadata", {}).get("message_id", task_id)
        sent = parts_of(request.get("payload", {}))
        message = make_message(message_id, task_id, context_id, sent, is_user=True)
        status = make_status(state, task_id, context_id, parts, received_at)
        return a2a_pb2.Task(id=task_id, context_id=context_id, status=status, history=[message])

    async def list_page(self, caller: Caller, wanted: TaskFilter, size: int, token: str) -> TaskPage:
        """Return a page of the tasks of a caller. `token` is that of the page before, or "".

        Raise InvalidParamsError for any other token.
        """
        before_row, before_time = _read_token(token)
        payloads: dict[str, Mapping[str, Any]] = {}
        open_tasks = [task for task in await self._load_open(caller, payloads) if wanted.accepts(task)]
        following = [task for task in open_tasks if before_time is None or _micros(task) < before_time]
        tasks: list[a2a_pb2.Task] = []
        row, time, page_bytes, has_more = before_row, before_time, 0, False
        async for answered_row, task in self._merge(following, self._iterate_answered(caller, wanted, before_row, size)):
            if len(tasks) == size or page_bytes > _PAGE_BYTES:
                has_more = True
                break
            if wanted.has_history and task.id in payloads:  # only those that are shown: a part takes 2 us for each value
                del task.history[0].parts[:]
                task.history[0].parts.extend(parts_of(payloads[task.id]))
            tasks.append(task)
            page_bytes += task.ByteSize()
            row, time = (row, _micros(task)) if answered_row is None else (answered_row, time)
        if wanted.has_history:
            await self._add_answers(caller, tasks)
        total = len(open_tasks) + await self._count_answered(caller, wanted)
        return TaskPage(tasks, _make_token(row, time) if has_more else "", total)

    async def _merge(
        self, open_tasks: list[a2a_pb2.Task], answered: AsyncIterator[tuple[int, a2a_pb2.Task]]
    ) -> AsyncIterator[tuple[int | None, a2a_pb2.Task]]:
        """Yield tasks in the order of their last changes, those that are answered with their rows."""
        async for row, task in answered:
            while open_tasks and moment_of(open_tasks[0]) >= moment_of(task):
                yield None, open_tasks.pop(0)
            yield row, task
        for task in open_tasks:
            yield None, task

    async def _load_open(self, caller: Caller, payloads: dict[str, Mapping[str, Any]]) -> list[a2a_pb2.Task]:
        """Return the tasks that are not over, the latest first. What was sent to them goes into `payloads`, by their ids."""
        tasks = []
        for received_at, is_parked, text in await self._agent.requests.list_open(caller):
            request = from_json(text)
            if (request.get("thread") or "").startswith(THREAD_PREFIX) and request.get("request_id"):
                payloads[request["request_id"]] = request.pop("payload")
                tasks.append(await self._make_open(caller, request, received_at, is_parked=is_parked))
            await asyncio.sleep(0)
        return sorted(tasks, key=moment_of, reverse=True)

    async def _iterate_answered(
        self, caller: Caller, wanted: TaskFilter, before_row: int | None, size: int, max_characters: float = math.inf
    ) -> AsyncIterator[tuple[int, a2a_pb2.Task]]:
        if wanted.state != a2a_pb2.TASK_STATE_UNSPECIFIED and wanted.state not in _ENDED:
            return
        limit = min(size + 1, _PAGE)
        while True:
            turns = await self._list_turns(caller, wanted, limit, before_row)
            for turn in turns:
                task = self._make_answered(caller, turn, wanted)
                await asyncio.sleep(0)
                if wanted.after is not None and moment_of(task) < wanted.after:
                    return
                if wanted.accepts(task):
                    yield turn.row, task
            max_characters -= sum(len(turn.body) for turn in turns)
            if len(turns) < limit or max_characters < 0:
                return
            before_row = turns[-1].row

    async def _count_answered(self, caller: Caller, wanted: TaskFilter) -> int:
        if wanted.state == a2a_pb2.TASK_STATE_UNSPECIFIED and wanted.after is None:
            repository = self._agent.repository
            return await repository.turns.count_own(caller.address, THREAD_PREFIX, _oldest(), self._ids(caller, wanted))
        count = 0
        wanted = replace(wanted, has_history=False, has_artifacts=False)
        async for _ in self._iterate_answered(caller, wanted, None, _PAGE, _MAX_COUNTED_CHARACTERS):
            count += 1
            if count == _MAX_COUNTED:
                break
        return count

    async def _list_turns(self, caller: Caller, wanted: TaskFilter, limit: int, before_row: int | None) -> list[OwnTurn]:
        repository, ids = self._agent.repository, self._ids(caller, wanted)
        return await repository.turns.list_own(caller.address, THREAD_PREFIX, _oldest(), limit, before_row, ids)

    def _ids(self, caller: Caller, wanted: TaskFilter) -> list[str]:
        if not wanted.context_id:
            return []
        return candidate_conversation_ids(THREAD_PREFIX + wanted.context_id, caller.address, self._agent.jid)

    def _make_answered(self, caller: Caller, turn: OwnTurn, wanted: TaskFilter) -> a2a_pb2.Task:
        thread = recover_thread(turn.conversation_id, caller.address, self._agent.jid) or ""
        body = from_json(turn.body)
        return make_answered_task(body["meta"]["request_id"], thread.removeprefix(THREAD_PREFIX), body, wanted)


def make_answered_task(task_id: str, context_id: str, turn: Mapping[str, Any], wanted: TaskFilter = _ALL) -> a2a_pb2.Task:
    """Make the task of a turn that has answered or failed. Its text is one artifact, and each of its data another one."""
    output, meta = turn["output"], turn.get("meta", {})
    ended_at = datetime.fromisoformat(turn["timestamp"]) + timedelta(milliseconds=meta.get("duration_ms", 0))
    error = output.get("error")
    state = a2a_pb2.TASK_STATE_COMPLETED if error is None else a2a_pb2.TASK_STATE_FAILED
    parts = [a2a_pb2.Part(text=error["user_message"])] if error else []
    sent = parts_of(turn["input"] if wanted.has_history else {})
    user = make_message(meta.get("message_id", task_id), task_id, context_id, sent, is_user=True)
    task = a2a_pb2.Task(
        id=task_id, context_id=context_id, status=make_status(state, task_id, context_id, parts, ended_at), history=[user]
    )
    task.artifacts.extend(_make_artifacts(task_id, output) if wanted.has_artifacts else ())
    facts = {name: meta[name] for name in ("usage", "incident") if name in meta}
    if error is not None:
        facts |= {name: error[name] for name in ("code", "recoverable") if error.get(name) is not None}
    if facts:
        ParseDict(facts, task.metadata)
    return task


def _make_artifacts(task_id: str, output: Mapping[str, Any]) -> Iterator[a2a_pb2.Artifact]:
    if output.get("text"):
        yield a2a_pb2.Artifact(artifact_id=f"{task_id}-text", parts=[text_or_link(output["text"])])
    for number, block in enumerate(output.get("data", ()), 1):
        hint = {"view_hint": block["view_hint"]} if block.get("view_hint") else {}
        ident, name = str(block.get("id", f"{task_id}-data-{number}")), block.get("title") or ""
        artifact = a2a_pb2.Artifact(artifact_id=ident, name=name, parts=[data_part(block["data"])])
        if hint:
            ParseDict(hint, artifact.metadata)
        yield artifact


def _oldest() -> datetime:
    return utc_now() - timedelta(days=DUPLICATE_DAYS)


def _micros(task: a2a_pb2.Task) -> int:
    return int(task.status.timestamp.ToMicroseconds())


def _make_token(row: int | None, time: int | None) -> str:
    text = ",".join("" if number is None else str(number) for number in (row, time))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _read_token(token: str) -> tuple[int | None, int | None]:
    if not token:
        return None, None
    try:
        row, time = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode("ascii").split(",")
        return int(row) if row else None, int(time) if time else None
    except ValueError as error:
        raise InvalidParamsError("pageToken is none of this server; begin without one") from error
