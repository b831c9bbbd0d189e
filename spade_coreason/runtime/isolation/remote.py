"""The objects that an agent gets in its own process: session, response, peers, knowledge, usage and files.

Each is used like the one of the platform, and sends its calls there. What a call refuses is refused here, by the same code.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from ...contracts import (
    AgentRequest,
    CloudEvent,
    DataBlock,
    GraphEventBase,
    Identity,
    Interaction,
    Missed,
    Notification,
    PersonAnswer,
    Schedule,
    UserErrorBlock,
)
from ...contracts.authoring import OnUncertain, Payload, VariableScope
from ...contracts.base import utc_now
from ...domain.cards import AgentCard, Capability, load_cards
from ...domain.environment.https_trust import HttpsTrust
from ...domain.texts.text import SurrogateJoiner
from ...exceptions import ConfigError, StoreError
from ...memory import (
    Addition,
    Entry,
    Knowledge,
    LinesByConversation,
    ProgressCallback,
    SearchHit,
    SessionChanges,
    Usage,
    Variables,
    decode_entries,
)
from ...storage import Document
from ..files import Files, Progress
from ..peers.capability_requests import CapabilityRequests
from ..peers.peer_answers import PeerEvent
from ..peers.peers import CURRENT_REQUEST, Peers, to_request
from ..turns.response import check_choices, check_text, check_thought
from ..turns.steps import CURRENT_JOURNAL, DurableStep, hash_arguments, run_step
from .description import ORIGIN_METADATA, REQUEST_FIELDS, dump_when
from .errors import load_error
from .frames import MAX_FRAME_BYTES, WINDOW_BYTES, FrameConnection, Message, encode_message

T = TypeVar("T")

_NOTIFICATION, _SCHEDULES = TypeAdapter(Notification), TypeAdapter(list[Schedule])
_CALLS_UNTIL_YIELD = 64
_BLOCKING_POLL_S = 1.0
_RESERVED_BYTES = 1024  # of a frame, for what stands around its message


class PlatformConnection:
    """The connection to the platform: messages that need no answer, and calls that wait for one."""

    def __init__(self, send_encoded: Callable[[bytes], int]) -> None:
        self._send_encoded = send_encoded
        self._ids = count(1)
        self._calls: dict[int, tuple[asyncio.Future[Any], Callable[..., object] | None]] = {}

    def send(self, message: Message) -> int:
        """Send a message, and return its size. ValueError if it is no JSON, or too long."""
        data = encode_message(message)
        if len(data) > MAX_FRAME_BYTES - _RESERVED_BYTES:
            limit = MAX_FRAME_BYTES - _RESERVED_BYTES
            raise ValueError(f"it has {len(data):,} bytes (limit for an agent in its own process: {limit:,})")
        return self._send_encoded(data)

    async def call(self, name: str, *args: object, turn: int = 0, on_event: Callable[..., object] | None = None) -> Any:
        """Call the platform, and return the answer or raise its error. `on_event` gets what comes before.

        An exception of `on_event` ends the call. A call that is cancelled is cancelled there, too.
        """
        call_id = next(self._ids)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.send(["ask", call_id, turn, name, args])
        self._calls[call_id] = answer, on_event
        try:
            return await answer
        finally:
            if self._calls.pop(call_id, None) is not None:
                self.send(["drop", call_id])

    def call_blocking(self, frames: FrameConnection, name: str, *args: object) -> Any:
        """Call the platform from code on the event loop that cannot wait there. Return the answer or raise its error.

        Messages that arrive in between are handled, but no task runs. RuntimeError if nothing can arrive here.
        """
        if frames.is_reading:
            raise RuntimeError("the platform cannot answer before this has returned")
        call_id = next(self._ids)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.send(["ask", call_id, 0, name, args])
        self._calls[call_id] = answer, None
        while not answer.done():
            if frames.is_closed:
                raise RuntimeError("the platform has ended")
            frames.exchange(_BLOCKING_POLL_S)
        return answer.result()

    def on_answer(self, call_id: int, error: dict[str, Any] | None, value: Any) -> None:
        """Handle the answer to a call."""
        answer, _ = self._calls.pop(call_id, (None, None))
        if answer is None or answer.done():
            return
        if error is not None:
            answer.set_exception(load_error(error))
        else:
            answer.set_result(value)

    def on_event(self, call_id: int, values: Sequence[Any]) -> None:
        """Handle what comes before an answer."""
        answer, on_event = self._calls.get(call_id, (None, None))
        if answer is None or on_event is None or answer.done():
            return
        try:
            on_event(*values)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            answer.set_exception(error)


class ForwardedTurn:
    """The connection of one turn: its calls in their order, with a limit of what is under way."""

    def __init__(self, connection: PlatformConnection, turn_id: int, *, waits: bool) -> None:
        self.connection = connection
        self.id = turn_id
        self._waits = waits
        self._unacknowledged_bytes = 0
        self._acknowledged = asyncio.Event()
        self._call_count = 0
        self.is_closed = False

    def require_open(self) -> None:
        """Raise RuntimeError if the turn has ended."""
        if self.is_closed:
            raise RuntimeError("nothing may be emitted after assist has returned")

    async def do(self, name: str, *args: object) -> None:
        """Make a call of the response. It returns at once, unless too much is under way or an interceptor may refuse it."""
        self.require_open()
        if self._waits:
            await self.connection.call(name, *args, turn=self.id)
            return
        self._unacknowledged_bytes += self.connection.send(["do", self.id, name, args])
        self._call_count += 1
        if self._call_count % _CALLS_UNTIL_YIELD == 0:
            await asyncio.sleep(0)  # a long reply without an await must not block the event loop
        while self._unacknowledged_bytes > WINDOW_BYTES:
            self._acknowledged.clear()
            await self._acknowledged.wait()

    def do_soon(self, name: str) -> None:
        """Make a call that never fails."""
        self._unacknowledged_bytes += self.connection.send(["do", self.id, name, []])

    async def call(self, name: str, *args: object) -> Any:
        """Make a call of the turn that has an answer. RuntimeError after the turn."""
        self.require_open()
        return await self.connection.call(name, *args, turn=self.id)

    def on_acknowledged(self, size: int) -> None:
        """Note that the platform has acknowledged `size` bytes."""
        self._unacknowledged_bytes -= size
        self._acknowledged.set()


class ForwardedSession:
    """The `Session` of one turn. Its variables are those at the start of the turn, and those that the turn stores.

    `values` are the JSON texts of the variables by scope. None if an interceptor has wrapped the session: then every call
    waits for it.
    """

    def __init__(
        self,
        turn: ForwardedTurn,
        session_id: str,
        identity: Identity,
        summary: str,
        values: Mapping[str, dict[str, str]] | None,
    ) -> None:
        self._turn = turn
        self._session_id = session_id
        self._identity = identity
        self._summary = summary
        self._waits = values is None
        found = {scope: Variables(scope, "", texts) for scope, texts in (values or {}).items()}
        conversation, shared = (found.get(scope) or Variables(scope, "", {}) for scope in ("conversation", "agent"))
        self.changes = SessionChanges(conversation, found.get("person"), shared)

    @property
    def turn_id(self) -> int:
        """The id of the turn."""
        return self._turn.id

    @property
    def session_id(self) -> str:
        """The id of the session."""
        return self._session_id

    @property
    def identity(self) -> Identity:
        """The sender of the request."""
        return self._identity

    @property
    def summary(self) -> str:
        """The summary of the turns before the window."""
        return self._summary

    async def history(self, limit: int = 10, offset: int = 0) -> list[Interaction]:
        """Return `limit` turns, oldest first. The last of them is `offset` turns before the newest."""
        return [Interaction.model_validate(turn) for turn in await self._turn.call("history", limit, offset)]

    async def window(self) -> list[Interaction]:
        """Return the turns that the memory policy selects for a language model, oldest first."""
        return [Interaction.model_validate(turn) for turn in await self._turn.call("window")]

    async def recall(self, query: str, limit: int = 5, threshold: float = 0.7) -> list[str]:
        """Search for texts about `query`, best first."""
        texts: list[str] = await self._turn.call("recall", query, limit, threshold)
        return texts

    async def store(self, key: str, value: Any, *, scope: VariableScope | None = None) -> None:
        """Store a JSON value under a key."""
        self.changes.store(key, value, scope)
        await self._turn.do("store", key, value, scope)

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the variable of this conversation, else that of this person, else that of the agent, else `default`."""
        if self._waits:
            found = await self._turn.call("get", key)
            return found[0] if found else default
        text = self.changes.find(key)
        return default if text is None else json.loads(text)

    async def run_once(self, name: str, function: Callable[..., Any], *args: Any, on_uncertain: OnUncertain = "retry") -> Any:
        """Run a durable step: the function here, and its journal in the process of the platform."""
        return await run_step(self, name, function, args, on_uncertain)

    async def open_step(self, name: str, args: Sequence[Any], on_uncertain: OnUncertain) -> DurableStep:
        """Begin a step in the journal of the turn."""
        hash_arguments(name, args)  # what is refused there is refused here
        return DurableStep(name, *await self._turn.call("open_step", name, args, on_uncertain))

    @property
    def is_closed(self) -> bool:
        """True if the turn has ended."""
        return self._turn.is_closed

    async def close_step_soon(self, step: DurableStep, result_text: str) -> None:
        """Store the result of a step that may run again without harm."""
        await self.close_step(step, result_text)

    async def close_step(self, step: DurableStep, result_text: str) -> None:
        """Store the result of a step, and wait until it is durable."""
        await self._turn.call("close_step", step.name, step.number, result_text)

    async def run_approved(self, name: str, function: Callable[..., Any], *args: Any, approvers: str | None = None) -> Any:
        """Raise ConfigError: an agent in a process of its own cannot wait for people."""
        raise _cannot_wait()

    async def remind(self, when: datetime | timedelta | str, payload: Payload, *, missed: Missed = "once") -> str:
        """Let a request come in this conversation at a time, and return the id of the schedule."""
        hash_arguments("session.remind", (payload, missed))  # what is no JSON is refused here, as there
        return str(await self._turn.call("remind", dump_when(when), payload, missed))

    async def later(self, payload: Payload) -> str:
        """Let work that takes long run beside this conversation, and return the id of the schedule."""
        hash_arguments("session.later", (payload,))
        return str(await self._turn.call("later", payload))

    async def cancel_schedule(self, schedule_id: str) -> bool:
        """Cancel a schedule of the owner of this conversation. Return False if there is none."""
        return bool(await self._turn.call("cancel_schedule", str(schedule_id)))

    async def schedules(self) -> list[Schedule]:
        """Return the schedules of the owner of this conversation, the next due ones first."""
        return _SCHEDULES.validate_python(await self._turn.call("schedules"))

    def end(self) -> None:
        """End the episode of the conversation after this turn."""
        if not self._turn.is_closed and not self.changes.is_ended:
            self.changes.is_ended = True
            self._turn.do_soon("end")


def _cannot_wait() -> ConfigError:
    problem = "an agent in a process of its own cannot wait for a person; remove `process`, or use `response.ask`"
    return ConfigError("isolation", problem)


class ForwardedStream:
    """One stream of text, as `Stream`."""

    def __init__(self, turn: ForwardedTurn, number: int, stream_id: str) -> None:
        self._turn = turn
        self._number = number
        self._stream_id = stream_id
        self._joiner = SurrogateJoiner()  # the frames to the platform carry no half of a character
        self._is_closed = False

    @property
    def stream_id(self) -> str:
        """The id of the stream, a UUID as text."""
        return self._stream_id

    @property
    def is_active(self) -> bool:
        """True while the stream can be written to."""
        return not self._is_closed and not self._turn.is_closed

    async def write(self, chunk: str) -> None:
        """Send a piece of text. RuntimeError after the end of the stream; TypeError if `chunk` is no text."""
        if not isinstance(chunk, str):
            raise TypeError(f"a stream takes text, not {type(chunk).__name__}")
        if not self.is_active:
            raise RuntimeError("this stream is closed")
        if text := self._joiner.feed(chunk):
            await self._turn.do("write", self._number, text)

    async def close(self) -> None:
        """End the stream; a second end does nothing."""
        await self._end("close")

    async def abort(self, reason: str) -> None:
        """End the stream as incomplete; a second end does nothing."""
        await self._end("abort", reason)

    async def replace(self, content: str, reason: str) -> None:
        """End the stream as incomplete and replace its whole text by `content`; a second end does nothing."""
        await self._end("replace", content, reason)

    async def _end(self, name: str, *args: str) -> None:
        if self.is_active:
            self._is_closed = True
            await self._turn.do(name, self._number, *args)


class ForwardedResponse:
    """The `Response` of one turn. Each call after the turn raises RuntimeError."""

    def __init__(self, turn: ForwardedTurn) -> None:
        self._turn = turn

    async def thought(self, content: str, status: str = "IN_PROGRESS") -> None:
        """Send a thought."""
        self._turn.require_open()
        check_thought(content, status)
        await self._turn.do("thought", content, status)

    async def step(self, content: str) -> None:
        """Send a thought that is one short line."""
        self._turn.require_open()
        check_thought(content, "IN_PROGRESS")
        await self._turn.do("step", content)

    async def markdown(self, content: str) -> None:
        """Send a text in CommonMark."""
        check_text(content)
        await self._turn.do("markdown", content)

    async def ask(self, question: str, choices: Sequence[str]) -> None:
        """Send a question with choices."""
        check_choices(choices)
        await self._turn.do("ask", question, list(choices))

    async def ask_person(
        self,
        question: str,
        *,
        choices: Sequence[str] = (),
        schema: Mapping[str, Any] | None = None,
        to: str | None = None,
        timeout: timedelta = timedelta(days=7),
    ) -> PersonAnswer:
        """Raise ConfigError: an agent in a process of its own cannot wait for people."""
        raise _cannot_wait()

    async def data(self, data: dict[str, Any], title: str | None = None, view_hint: str = "JSON") -> None:
        """Send data, a JSON object. ValueError or TypeError for any other value, and nothing is sent."""
        DataBlock.model_validate({"id": uuid4(), "data": data, "title": title, "view_hint": view_hint}).dump()
        await self._turn.do("data", data, title, view_hint)

    async def error(self, message: str, details: dict[str, Any] | None = None, recoverable: bool = False) -> None:
        """Report that the request failed."""
        UserErrorBlock(user_message=message, technical_details=details, recoverable=recoverable)
        known = None if details is None else from_json(to_json(details, fallback=repr))
        await self._turn.do("error", message, known, recoverable)

    async def create_stream(self, title: str | None = None, metadata: dict[str, Any] | None = None) -> ForwardedStream:
        """Open a stream."""
        number, stream_id = await self._turn.call("create_stream", title, metadata)
        return ForwardedStream(self._turn, number, stream_id)

    async def emit(self, event: CloudEvent[Any] | GraphEventBase) -> None:
        """Record an event with the turn."""
        await self._turn.do("emit", event.model_dump(mode="json", by_alias=True, exclude_none=True))

    async def log(self, level: str, message: str, metadata: dict[str, Any] | None = None) -> None:
        """Log a line, and record it."""
        await self._turn.do("log", level, message, metadata)

    async def audit(self, actor: str, action: str, resource: str, success: bool) -> None:
        """Append an entry to the audit trail; it is durable when the call returns."""
        await self._turn.call("audit", actor, action, resource, success)


class ForwardedPeers(Peers):
    """The other agents. The platform sends the requests and receives the replies."""

    def __init__(self, jid: str, connection: PlatformConnection, topic_broker: str | None) -> None:
        self._own_jid = jid
        self._connection = connection
        self._topic_broker = topic_broker
        self._by_capability = CapabilityRequests(self.find, self.stream)

    @property
    def is_stopping(self) -> bool:
        """True: this process is not told why a turn is cancelled, and its request may run again."""
        return True

    async def find(
        self,
        *,
        capability: str | None = None,
        text: str | None = None,
        accepts: Mapping[str, Any] | None = None,
        timeout: float = 10.0,
    ) -> list[AgentCard]:
        """Find agents that this agent may ask."""
        return load_cards(await self._connection.call("peers.find", capability, text, accepts, timeout, _origin()))

    async def stream(
        self,
        jid: str | Capability,
        request: AgentRequest | Mapping[str, Any] | str,
        timeout: float = 30.0,
        *,
        thoughts: bool = False,
        separate: bool = False,
    ) -> AsyncGenerator[PeerEvent]:
        """Ask the agent `jid`, or one with a `Capability`, and yield the events of its reply as they arrive."""
        if isinstance(jid, Capability):
            pairs = self._by_capability.stream(jid, to_request(request), timeout, thoughts=thoughts, separate=separate)
            async with aclosing(pairs):
                async for _, answered in pairs:
                    yield answered
            return
        arrivals: asyncio.Queue[PeerEvent | None] = asyncio.Queue()
        call = asyncio.ensure_future(
            self._connection.call(
                "peers.stream",
                jid,
                to_request(request),
                timeout,
                _origin(),
                {"thoughts": thoughts, "separate": separate},
                turn=_turn_id(),
                on_event=lambda kind, data: arrivals.put_nowait(PeerEvent(kind, data)),
            )
        )
        call.add_done_callback(lambda _: arrivals.put_nowait(None))
        try:
            while (event := await arrivals.get()) is not None:
                yield event
            await call
        finally:
            if not call.done():
                call.cancel()

    async def tell(self, jid: str, request: AgentRequest | Mapping[str, Any] | str) -> None:
        """Send a request without waiting."""
        await self._connection.call("peers.tell", jid, to_request(request), _origin(), turn=_turn_id())


def _origin() -> dict[str, Any] | None:
    """Return the metadata that tell where the request of this task comes from; None outside of a turn."""
    current = CURRENT_REQUEST.get()
    return None if current is None else {key: current.metadata[key] for key in ORIGIN_METADATA if key in current.metadata}


def _turn_id() -> int:
    """Return the id of the turn of this task, in whose trace its requests are; 0 outside of one."""
    session = CURRENT_JOURNAL.get()
    return session.turn_id if isinstance(session, ForwardedSession) and not session.is_closed else 0


class ForwardedNotifier:
    """The notifier of the agent (`NotificationSink`). The platform stores and sends notifications."""

    def __init__(self, connection: PlatformConnection) -> None:
        self._connection = connection

    async def notify(self, notification_id: str, person: str, thread: str | None, content: str, root: str) -> Notification:
        """Store a notification, unless there is one with its id, and return it."""
        stored = await self._connection.call("people.notify", notification_id, person, thread, content, root)
        return _NOTIFICATION.validate_python(stored)

    async def find(self, notification_id: str) -> Notification | None:
        """Return a notification, or None."""
        found = await self._connection.call("people.find", notification_id)
        return None if found is None else _NOTIFICATION.validate_python(found)


class ForwardedKnowledge(Knowledge):
    """The knowledge of the agent. The platform stores it, searches it and makes its vectors; files are read here."""

    def __init__(self, connection: PlatformConnection) -> None:
        self._connection = connection

    async def add(
        self,
        text: str,
        name: str,
        *,
        person: str | None = None,
        conversation: str | None = None,
        is_markdown: bool = False,
        progress: ProgressCallback | None = None,
    ) -> str:
        """Store a text as a document."""
        args = text, name, _owner(person, conversation), is_markdown
        outcome: str = await self._connection.call("knowledge.add", *args, on_event=progress)
        return outcome

    async def remove(self, name: str, *, person: str | None = None, conversation: str | None = None) -> bool:
        """Delete a document. Return False if there is none of this name."""
        return bool(await self._connection.call("knowledge.remove", name, _owner(person, conversation)))

    async def list(self, *, person: str | None = None, conversation: str | None = None) -> Any:
        """Return the documents, sorted by name."""
        found = await self._connection.call("knowledge.list", _owner(person, conversation))
        return [Document(**document | {"added_at": datetime.fromisoformat(document["added_at"])}) for document in found]

    async def search(
        self, query: str, limit: int = 5, threshold: float = 0.7, *, person: str | None = None, conversation: str | None = None
    ) -> Any:
        """Search the documents for passages about `query`, best first."""
        found = await self._connection.call("knowledge.search", query, limit, threshold, _owner(person, conversation))
        return [SearchHit(**hit) for hit in found]

    async def reindex(self, progress: ProgressCallback | None = None) -> int:
        """Make the vectors that are missing or of another model. Return how many."""
        return int(await self._connection.call("knowledge.reindex", on_event=progress))

    async def missing(self) -> dict[str, int]:
        """Count passages without a vector of the embedder, by the model of the vector that they have."""
        counts: dict[str, int] = await self._connection.call("knowledge.missing")
        return counts

    async def add_turns(self, conversation: str, turns: Iterable[tuple[int, Interaction]]) -> None:
        """Store turns, by their numbers, as knowledge of their conversation."""
        dumped = [(number, turn.model_dump(mode="json", by_alias=True)) for number, turn in turns]
        await self._connection.call("knowledge.add_turns", conversation, dumped)

    def clear_cache(self) -> None:
        """Do nothing: there is no cache here."""

    async def close(self) -> None:
        """Do nothing: the platform closes the embedder."""


class ForwardedEntries:
    """The entries of the agent in the database of the platform (`EntryStore`). A change is durable when its method returns.

    Its methods work everywhere but in the constructor of the agent: until that returns, the platform waits for it.
    """

    deferred_syncs = completed_syncs = 0
    """Nothing is deferred."""

    def __init__(self, connection: PlatformConnection, frames: FrameConnection) -> None:
        self._connection, self._frames = connection, frames
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        self._queue: deque[Addition] = deque()

    async def run(self, work: Callable[[], T]) -> T:
        """Run a method in a thread."""
        return await asyncio.to_thread(work)

    def _call(self, name: str, *args: object) -> Any:
        if threading.get_ident() != self._loop_thread:
            return asyncio.run_coroutine_threadsafe(self._connection.call(name, *args), self._loop).result()
        try:
            return self._connection.call_blocking(self._frames, name, *args)
        except RuntimeError as error:
            raise StoreError(f"the interaction memory cannot be used here: {error}; use it in startup() or later") from error

    def read_lines(self, conversation_id: str) -> bytes:
        lines: str = self._call("memory.read", conversation_id)
        return lines.encode()

    def list_conversations(self) -> list[str]:
        names: list[str] = self._call("memory.list")
        return names

    def read_all(self) -> LinesByConversation:
        return {name: bytearray(self.read_lines(name)) for name in self.list_conversations()}

    def enqueue(self, addition: Addition) -> None:
        self._queue.append(addition)

    def write_queued(self, own: Addition | None = None) -> None:
        """Write all queued additions. On return every one of them is done, or is being written by another thread."""
        while self._queue:
            try:
                addition = self._queue.popleft()
            except IndexError:  # another thread has taken it
                break
            if addition.set_running_or_notify_cancel():
                try:
                    self._call("memory.add", addition.conversation_id, addition.line.decode())
                except Exception as error:  # noqa: BLE001 - its caller gets it
                    addition.set_exception(error)
                else:
                    addition.set_result(None)

    def remove(self, conversation_ids: Collection[str]) -> int:
        return int(self._call("memory.remove", list(conversation_ids)))

    def remove_entries(self, conversation_id: str, is_removed: Callable[[Entry], bool]) -> int:
        entries = decode_entries(self.read_lines(conversation_id))
        chosen = [[entry["content"], entry["timestamp"]] for entry in entries if is_removed(entry)]
        return int(self._call("memory.remove_entries", conversation_id, chosen)) if chosen else 0

    def merge(self, lines_by_conversation: LinesByConversation) -> int:
        return int(self._call("memory.merge", {name: lines.decode() for name, lines in lines_by_conversation.items()}))

    def fold(self) -> None:
        """Do nothing: nothing is on its way."""

    def sync(self) -> None:
        """Do nothing: nothing is deferred."""


def _owner(person: str | None, conversation: str | None) -> dict[str, str | None]:
    return {"person": person, "conversation": conversation}


class ForwardedUsage(Usage):
    """The tokens that the turns of the agent used. The platform counts them."""

    def __init__(self, connection: PlatformConnection) -> None:
        self._connection = connection
        self._clock = utc_now

    async def of_person(self, person: str) -> int:
        """Return the tokens of a person (a bare JID) today (UTC)."""
        return int(await self._connection.call("usage.of_person", person))

    async def of_agent(self) -> int:
        """Return the tokens of the agent today (UTC)."""
        return int(await self._connection.call("usage.of_agent"))

    async def of_conversation(self, conversation_id: str) -> int:
        """Return the tokens of a conversation in its current episode."""
        return int(await self._connection.call("usage.of_conversation", conversation_id))


def build_files(connection: PlatformConnection, directory: Path, ca_file: str | None, own_urls: Sequence[str]) -> Files:
    """Return the files of the agent. An upload is handed over in `directory`; links are fetched in this process."""

    async def upload(name: str, data: bytes, media_type: str, progress: Progress | None) -> str:
        path = directory / uuid4().hex
        await asyncio.to_thread(path.write_bytes, data)
        try:
            link: str = await connection.call("upload", path.name, name, media_type, on_event=progress)
            return link
        finally:
            path.unlink(missing_ok=True)

    return Files(upload, trust=HttpsTrust(Path(ca_file)) if ca_file is not None else None, own_urls=own_urls)


def read_request(values: Sequence[Any]) -> AgentRequest:
    """Build a request from the values of its fields, in the order of `REQUEST_FIELDS`."""
    return AgentRequest.model_validate(dict(zip(REQUEST_FIELDS, values, strict=True)))
