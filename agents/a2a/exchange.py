"""One request to a remote agent, from the message that is sent to the end of its task, in durable steps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from a2a.types import Message, Role, StreamResponse, Task, TaskState
from google.protobuf.json_format import ParseDict

from spade_coreason import AgentRequest, Files, Response, Session
from spade_coreason.contracts import CloudEvent
from spade_coreason.domain.questions import MAX_QUESTION_CHARACTERS
from spade_coreason.domain.texts.translation import N_, translate
from spade_coreason.exceptions import QuestionExpiredError

from .connection import Connection, describe_error
from .errors import RemoteAgentError, TaskLostError, UnusableAnswerError
from .reading import QuestionForm, clean_line, derive_message_id, join_texts, make_parts, read_form
from .writer import ReplyWriter, replay

log = logging.getLogger(__name__)

TASK_EVENT = "ai.coreason.a2a.task"
"""The type of the recorded event that has the ids of the remote task and its context."""
_CONTEXT_TURNS = 20
"""The newest turns of a conversation, of which the last with a context gives it."""
_MAX_ID_CHARACTERS = 500
_MAX_EVENTS = 20_000
"""The most events of all streams of a request."""
_MAX_EMPTY_STREAMS = 3
"""Streams without anything new that end before the task does, after which it is only polled."""

_INTERRUPTED = (TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED)
_ENDED = (
    TaskState.TASK_STATE_COMPLETED,
    TaskState.TASK_STATE_FAILED,
    TaskState.TASK_STATE_CANCELED,
    TaskState.TASK_STATE_REJECTED,
)


@dataclass(eq=False)
class Exchange:
    """One request to the agent behind `connect()`. `task_id` is that of its task there, "" before there is one.

    Each message to the agent and each wait for its task is a durable step. A run that begins anew finds the id of the task
    there, and fetches the task. If the agent has lost it, the message is sent once more under its id.
    """

    connect: Callable[[], Awaitable[Connection]]
    request: AgentRequest
    session: Session
    response: Response
    files: Files | None
    poll_s: float
    timeout_s: float
    name: str
    task_id: str = ""
    is_open: bool = False
    """True while the task may go on there."""
    _context_id: str = ""
    _number: int = 1
    """The number of the message to the agent."""
    _answered: str = ""
    """The key of the question that the last message answers."""
    _written: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """What earlier rounds have written, as `ReplyWriter.written`."""
    _event_count: int = 0
    _events: tuple[StreamResponse, AsyncGenerator[StreamResponse]] | None = field(default=None)
    """The first event of an answer that has just begun, and those after it."""

    async def run(self) -> None:
        """Ask the agent and write its answer. RemoteAgentError if it does not answer; CancelledError if it is to stop."""
        try:
            await self._run()
        except UnusableAnswerError as error:
            raise describe_error(self.name, error) from error

    async def _run(self) -> None:
        parts = make_parts(self.request.payload)
        while True:
            message_id = derive_message_id(self.request.request_id, self._number)
            sent = await self._send(message_id, parts)
            self.is_open = sent["task"] is not None
            if not self.is_open:
                await self._record(sent["context"])
                return
            self.task_id, self._context_id = sent["task"], sent["context"]
            end = await self._follow(message_id, parts)
            if end["state"] != "input_required":
                break
            parts = [{"text": await self._ask(end)}]
            self._number += 1
            self._answered, self._written = end["question"], end["written"]
        self.is_open = end["state"] == "auth_required"
        await self._record(self._context_id)
        self._require_success(end["state"], end["text"])

    # The two steps

    async def _send(self, message_id: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """Send a message as a durable step. The result has the `task` and the `context`; an agent may answer without a task."""
        is_new = False

        async def send() -> dict[str, Any]:
            nonlocal is_new
            is_new = True
            context_id = self._context_id or await self._find_context()
            event = await self._begin(message_id, parts, context_id)
            if event.HasField("message"):
                writer = self._make_writer()
                await writer.add_parts(event.message.parts)
                await self._close_events()
                return {"task": None, "context": event.message.context_id or context_id, "outputs": writer.outputs or []}
            self.task_id, context_id = _ids_of(event)
            self.is_open = True
            return {"task": self.task_id, "context": context_id}

        sent: dict[str, Any] = await self.session.run_once("a2a.send", _named(send), message_id)
        if not is_new:
            await replay(sent.get("outputs", ()), self.response)
        return sent

    async def _follow(self, message_id: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """Write the answer until the task ends or needs something, as a durable step.

        The result has the `state`, its `text`, the `outputs` until then, what is `written`, and of a question the key as
        `question`, its `choices` and its `schema`.
        """
        is_new = False

        async def follow() -> dict[str, Any]:
            nonlocal is_new
            is_new = True
            return await self._follow_task(message_id, parts)

        end: dict[str, Any] = await self.session.run_once("a2a.follow", _named(follow), self.task_id)
        if not is_new:
            await replay(end["outputs"] or (), self.response)
        return end

    async def _begin(self, message_id: str, parts: list[dict[str, Any]], context_id: str) -> StreamResponse:
        """Send a message, and return the first event of the answer."""
        await self.response.thought(translate("Asking {agents}…", agents=self.name))
        connection = await self.connect()
        message = Message(message_id=message_id, context_id=context_id, task_id=self.task_id, role=Role.ROLE_USER)
        ParseDict({"parts": parts}, message)
        self._events = await connection.send(message)
        first = self._events[0]
        self._require_own(first)
        if max(map(len, _ids_of(first))) > _MAX_ID_CHARACTERS:
            limit = f"{_MAX_ID_CHARACTERS:,}"
            raise UnusableAnswerError(translate("the id of its task has more than {limit} characters", limit=limit))
        if not first.HasField("message") and not _ids_of(first)[0]:
            raise RemoteAgentError(translate("The remote agent {agent} names no task.", agent=self.name))
        return first

    async def _close_events(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            await events[1].aclose()

    # Following a task

    async def _follow_task(self, message_id: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
        writer = self._make_writer()
        writer.skip(self._written)
        empty_streams, is_rejoined = 0, False
        may_send_again = self._number == 1
        loop = asyncio.get_running_loop()
        failure: RemoteAgentError | None = None
        give_up_at_s: float | None = None
        """The time of the loop until which the task is looked up after a failure."""
        while True:
            asked_at_s = loop.time()
            try:
                events, self._events = self._events, None
                if events is None:
                    connection, task = await self._fetch_task(failure, give_up_at_s)
                    give_up_at_s = None
                    if (end := await self._write_event(StreamResponse(task=task), writer)) is not None:
                        return end
                    if connection.is_streaming and empty_streams < _MAX_EMPTY_STREAMS:
                        events, is_rejoined = await connection.subscribe(self.task_id), True
                if events is not None:
                    empty_streams += 1
                    async with aclosing(_chain(*events)) as chained:
                        async for event in chained:
                            self._count_event()
                            if is_rejoined and _may_be_known(event):
                                event = StreamResponse(task=await connection.get_task(self.task_id))
                            if (end := await self._write_event(event, writer)) is not None:
                                return end
                            empty_streams = 0
            except TaskLostError:
                if not may_send_again:
                    raise
                may_send_again = False
                await writer.drop(N_("the remote agent has lost its task"))
                writer = self._make_writer()
                await self._send_again(message_id, parts)
                continue
            except RemoteAgentError as error:
                # A stream may have been silent for long before it failed: only the time since then counts.
                failure, failed_at_s = error, asked_at_s if events is None else loop.time()
                give_up_at_s = give_up_at_s or failed_at_s + self.timeout_s
                if not error.is_transient or loop.time() >= give_up_at_s:
                    raise
            await asyncio.sleep(self.poll_s)

    def _count_event(self) -> None:
        self._event_count += 1
        if self._event_count > _MAX_EVENTS:
            raise UnusableAnswerError(translate("its answer has more than {limit} messages", limit=f"{_MAX_EVENTS:,}"))

    async def _fetch_task(self, failure: RemoteAgentError | None, give_up_at_s: float | None) -> tuple[Connection, Task]:
        """Fetch the task. Raise `failure` at the time `give_up_at_s` of the loop."""
        try:
            async with asyncio.timeout_at(give_up_at_s):
                connection = await self.connect()
                return connection, await connection.get_task(self.task_id)
        except TimeoutError:
            assert failure is not None
            raise failure from None

    async def _send_again(self, message_id: str, parts: list[dict[str, Any]]) -> None:
        """Send a message again whose task is lost, as a step within that of following."""
        lost_id, self.task_id = self.task_id, ""

        async def send() -> str:
            return _ids_of(await self._begin(message_id, parts, self._context_id))[0]

        self.task_id = await self.session.run_once("a2a.send again", _named(send), lost_id) or lost_id

    async def _write_event(self, event: StreamResponse, writer: ReplyWriter) -> dict[str, Any] | None:
        """Write an event. Return the end of the task if it has ended or needs something."""
        self._require_own(event)
        if event.HasField("task"):
            return await self._write_task(event.task, writer)
        if event.HasField("message"):
            await writer.add_parts(event.message.parts)
            return await self._end_with(TaskState.TASK_STATE_COMPLETED, "", writer)
        if event.HasField("artifact_update"):
            update = event.artifact_update
            await writer.add_artifact(update.artifact, append=update.append, is_last=update.last_chunk)
            return None
        return await self._write_status(event.status_update.status, writer)

    def _require_own(self, event: StreamResponse) -> None:
        """Raise UnusableAnswerError for an event of another task. A message may name none."""
        if self.task_id and _ids_of(event)[0] not in ("", self.task_id):
            raise UnusableAnswerError(translate("its answer belongs to another task"))

    async def _write_task(self, task: Task, writer: ReplyWriter) -> dict[str, Any] | None:
        await writer.follow_task(task.artifacts, is_over=task.status.state in _ENDED)
        return await self._write_status(task.status, writer)

    async def _write_status(self, status: Any, writer: ReplyWriter) -> dict[str, Any] | None:
        text, form = join_texts(status.message.parts), None
        if status.state == TaskState.TASK_STATE_COMPLETED:
            await writer.close()
            await writer.add_parts(status.message.parts)
        elif status.state not in (*_ENDED, *_INTERRUPTED):
            await writer.add_thought(text)
            return None
        elif status.state == TaskState.TASK_STATE_INPUT_REQUIRED:
            if self._answered and _question_key(status) == self._answered:
                return None  # it has not taken the answer up yet
            await writer.withdraw(text)
            await writer.close()
            form = read_form(status.message.parts)
            await writer.add_parts(form.others)
        return await self._end_with(status.state, text, writer, _question_key(status), form)

    async def _end_with(
        self, state: int, text: str, writer: ReplyWriter, question: str = "", form: QuestionForm | None = None
    ) -> dict[str, Any]:
        await writer.close()
        is_question = state == TaskState.TASK_STATE_INPUT_REQUIRED
        return {
            "state": TaskState.Name(state).removeprefix("TASK_STATE_").lower(),
            "text": text[:MAX_QUESTION_CHARACTERS] if is_question else clean_line(text),
            "outputs": writer.outputs,
            "written": writer.written,
            "question": question,
            "choices": [] if form is None else list(form.choices),
            "schema": None if form is None else form.schema,
        }

    # Ends

    async def _ask(self, end: Mapping[str, Any]) -> str:
        """Ask the person behind the request what the agent asks at the `end` of a round, and return their answer."""
        text = end["text"].strip() or translate("The remote agent {agent} needs more from you.", agent=self.name)
        values = {"agent": self.name, "question": clean_line(text)}
        choices, schema = end.get("choices", ()), end.get("schema")  # a step of an earlier version has none
        try:
            if schema is not None:
                try:
                    return (await self.response.ask_person(text, schema=schema)).text
                except ValueError as error:  # such as one against which no value can be checked
                    log.warning("%s: its schema is not used, so any text is an answer: %s", self.name, clean_line(str(error)))
            return (await self.response.ask_person(text, choices=choices)).text
        except QuestionExpiredError as error:
            problem = translate("The remote agent {agent} asked, and no one answered in time: {question}", **values)
            raise RemoteAgentError(problem) from error
        except ValueError as error:  # such as for a request that no person is behind
            problem = translate("The remote agent {agent} asks, and no one can be asked here: {question}", **values)
            raise RemoteAgentError(problem) from error

    def _require_success(self, state: str, text: str) -> None:
        """Raise RemoteAgentError unless a task has been completed."""
        if state == "completed":
            return
        problems = {
            "failed": translate("The remote agent {agent} reports a failure", agent=self.name),
            "rejected": translate("The remote agent {agent} refuses this", agent=self.name),
            "canceled": translate("The remote agent {agent} has cancelled this", agent=self.name),
            "auth_required": translate(
                "The remote agent {agent} wants you to sign in, which is not possible here", agent=self.name
            ),
        }
        raise RemoteAgentError(f"{problems[state]}{f': {text}' if text else '.'}")

    async def _record(self, context_id: str) -> None:
        """Record the ids of the task and its context. The context is that of the next request of the conversation."""
        data = {"context": context_id, "task": self.task_id}
        await self.response.emit(CloudEvent(type=TASK_EVENT, source="a2a", data=data))

    async def _find_context(self) -> str:
        """Return the context of the conversation at the agent; "" before there is one.

        It is not a variable: a turn that waits for a person's answer would fail if another one had changed it.
        """
        for turn in reversed(await self.session.history(_CONTEXT_TURNS)):
            for event in turn.events:
                if isinstance(event, dict) and event.get("type") == TASK_EVENT and event.get("data", {}).get("context"):
                    return str(event["data"]["context"])
        return ""

    def _make_writer(self) -> ReplyWriter:
        return ReplyWriter(self.response, self.files)


def _named(function: Callable[[], Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return a function that ignores its arguments: they only tell one run of a step from another."""

    async def call(*_: object) -> Any:
        return await function()

    return call


def _ids_of(event: StreamResponse) -> tuple[str, str]:
    """Return the ids of the task and the context that an event names."""
    if event.HasField("task"):
        return event.task.id, event.task.context_id
    if event.HasField("message"):
        return event.message.task_id, event.message.context_id
    update = event.artifact_update if event.HasField("artifact_update") else event.status_update
    return update.task_id, update.context_id


def _question_key(status: Any) -> str:
    """Return what tells one question from another; "" if nothing does."""
    return str(status.message.message_id or (status.timestamp.ToJsonString() if status.HasField("timestamp") else ""))


def _may_be_known(event: StreamResponse) -> bool:
    """Return True if what a stream that was joined later adds may be in its first event too, which has the whole task.

    The SDK's server begins to collect events before it reads the task, and nothing tells which of them are in it.
    """
    return (event.HasField("artifact_update") and event.artifact_update.append) or (
        event.HasField("status_update") and event.status_update.status.state in _ENDED
    )


async def _chain(first: StreamResponse, others: AsyncGenerator[StreamResponse]) -> AsyncGenerator[StreamResponse]:
    async with aclosing(others):
        yield first
        async for event in others:
            yield event
