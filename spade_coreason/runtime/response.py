"""The response of one turn: each call of the agent becomes an event, and the channel makes messages of the event."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, cast, get_args
from uuid import UUID

from ..contracts import AgentRequest, AuditEntry, CloudEvent, DataBlock, GraphEventBase, ThinkingBlock, UserErrorBlock
from ..contracts.blocks import STEP_TITLE
from ..domain.messages import BlockEmitted, StreamStarted, TextEmitted, TurnEvent, derive_part_id
from ..domain.text import replace_lone_surrogates
from ..storage import AgentRepository
from .long_answers import UNCHANGED, LongAnswers
from .mailboxes import QueuedRequest
from .stream import ReplyTimers, TurnStream
from .transport import OutboundMessage, ReplyChannel, SendMessages

_MAX_CHOICES = 20

_Status: TypeAlias = Literal["IN_PROGRESS", "COMPLETE"]
_STATUSES = get_args(_Status)
_ViewHint: TypeAlias = Literal["TABLE", "JSON", "LIST", "KEY_VALUE"]

agent_log = logging.getLogger("spade_coreason.agent")


class TurnResponse:
    """The `ResponseHandler` of one turn, which sends its reply. Each call after the turn raises `RuntimeError`."""

    def __init__(
        self,
        channel: ReplyChannel,
        send: SendMessages,
        queued: QueuedRequest,
        repository: AgentRepository,
        timers: ReplyTimers,
        long_answers: LongAnswers | None = None,
    ) -> None:
        self.channel = channel
        self.long_answers = long_answers if channel.shows_files else None
        self._queued = queued
        self._send_now = send
        self._repository = repository
        self.timers = timers
        self._buffered: list[OutboundMessage] = []
        if channel.shows_typing:
            timers.typing.schedule(self._show_typing)
        self._last_number = 0
        self._thought_count = 0
        self.streams: dict[int, TurnStream] = {}
        self._is_closed = False
        self.request: AgentRequest | None = None
        """The request of the turn; set when the session is loaded."""
        self.messages: list[OutboundMessage] = []
        """The messages of the reply, sent or not, for the outbox. Thoughts and typing are not part of it."""
        self.last_sent: OutboundMessage | None = None
        self.texts: list[str] = []
        self.data_blocks: list[dict[str, Any]] = []
        self.reported_error: UserErrorBlock | None = None
        self.events: list[dict[str, Any]] = []

    @property
    def text(self) -> str:
        """The texts of the reply, without data, with a blank line between them."""
        return "\n\n".join(self.texts)

    # Called by an agent

    async def thought(self, content: str, status: str = "IN_PROGRESS") -> None:
        """Emit a thinking block. `status` is `IN_PROGRESS` or `COMPLETE`; any other is a `ValueError`."""
        self._emit_thought(content, status)

    async def step(self, content: str) -> None:
        """Emit a thinking block for all senders: a short line that names what is used at the moment, such as a tool.

        Unlike other thoughts, people see it by default. It is not shown in rooms, and not to people who turned thoughts off.
        """
        self._emit_thought(content, "IN_PROGRESS", STEP_TITLE)

    async def markdown(self, content: str) -> None:
        """Emit a markdown block. `TypeError` if `content` is no text.

        A person gets a block that is too long for a chat as a file, if the server stores files.
        """
        if not isinstance(content, str):
            raise TypeError(f"an answer is text, not {type(content).__name__}")
        rendered = await self.long_answers.render_markdown(content) if self.long_answers is not None else UNCHANGED
        self.emit_soon(TextEmitted(content, self._next_number(), *rendered))
        self.texts.append(content)

    async def ask(self, question: str, choices: Sequence[str]) -> None:
        """Emit a question as a markdown block, with choices: as buttons in clients that support them (XEP-0439).

        The chosen text, or any other, arrives as the next request. `ValueError` for no choice, more than 20, or an empty one.
        """
        if not 0 < len(choices) <= _MAX_CHOICES or not all(isinstance(choice, str) and choice.strip() for choice in choices):
            raise ValueError(f"choices are 1 to {_MAX_CHOICES} texts, not {choices!r}")
        content = "\n".join([question, "", *(f"- {choice}" for choice in choices)])
        offered_choices = tuple((choice, choice) for choice in choices)
        self.emit_soon(TextEmitted(content, self._next_number(), choices=offered_choices))
        self.texts.append(content)

    async def data(self, data: dict[str, Any], title: str | None = None, view_hint: str = "JSON") -> None:
        """Emit a data block. A value that is no JSON is a `ValueError` or `TypeError`, and nothing is sent."""
        block = DataBlock(id=self.part_id(self._next_number()), data=data, title=title, view_hint=cast(_ViewHint, view_hint))
        dumped = block.dump()
        rendered = await self.long_answers.render_data(block) if self.long_answers is not None else UNCHANGED
        self.emit_soon(BlockEmitted(block, *rendered))
        self.data_blocks.append(dumped)

    async def error(self, message: str, details: dict[str, Any] | None = None, recoverable: bool = False) -> None:
        """Emit an error of the whole request. Only `message` is sent; `details` do not leave the process."""
        block_id = self.part_id(self._next_number())
        self.report_error(UserErrorBlock(id=block_id, user_message=message, technical_details=details, recoverable=recoverable))

    async def create_stream(self, title: str | None = None, metadata: dict[str, Any] | None = None) -> TurnStream:
        """Open a stream: a text that is sent in pieces."""
        self._require_open()
        number = self._next_number()
        stream = TurnStream(self, number)
        if self.channel.follows_streams:
            self.emit_now(StreamStarted(stream.stream_id, title))
        self.streams[number] = stream
        return stream

    async def emit(self, event: CloudEvent[Any] | GraphEventBase) -> None:
        """Record an internal event in the `Interaction`. It is not sent."""
        self._record(event.model_dump(mode="json", by_alias=True, exclude_none=True))

    async def log(self, level: str, message: str, metadata: dict[str, Any] | None = None) -> None:
        """Write a line to the log `spade_coreason.agent`, and record it in the `Interaction` as a `CloudEvent`."""
        number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
        agent_log.log(number, "%s: %s", self._repository.agent, message)
        data = {"level": level, "message": message, "metadata": metadata or {}}
        await self.emit(CloudEvent(type="ai.coreason.log", source=f"xmpp:{self._repository.agent}", data=data))

    async def audit(self, actor: str, action: str, resource: str, success: bool) -> None:
        """Add an entry to the audit trail of the agent and to the `Interaction`. It is durable in the trail on return.

        `StoreError` if the entry cannot be stored.
        """
        self._require_open()
        request = self.request
        entry = AuditEntry(
            request_id=request.request_id if request else None,
            root_request_id=request.root_request_id if request else None,
            actor=replace_lone_surrogates(actor),
            action=replace_lone_surrogates(action),
            resource=replace_lone_surrogates(resource),
            outcome="success" if success else "failure",
        )
        sealed = await self._repository.audit_trail.append(entry, self._queued.incoming.owner)
        await self.emit(CloudEvent(type="ai.coreason.audit", source=f"xmpp:{self._repository.agent}", data=sealed.dump()))

    # Called by the streams

    def part_id(self, number: int) -> UUID:
        """Return the id of the block or the stream with this number."""
        return derive_part_id(self._queued.key, number)

    def emit_now(self, event: TurnEvent) -> None:
        """Send an event at once, after all events before it."""
        if messages := self._encode(event):
            self.send(self._drain_buffer() + messages)

    def emit_soon(self, event: TurnEvent) -> None:
        """Buffer an event. It is sent with the next event, with the end of the turn, or after `RunnerTimings.buffer_s`."""
        if messages := self._encode(event):
            buffered, self._buffered = self._drain_buffer(), messages
            self.timers.buffering.schedule(self._flush)
            if buffered:
                self.send(buffered)

    def send_stream_update(self, stream_id: str) -> bool:
        """Send the new text of a stream, after all events before it. Return False if there is none."""
        messages = self.channel.encode_update(stream_id)
        if messages:
            self.send(self._drain_buffer())
            self._send_now(messages)
        return bool(messages)

    # Called by the turn and the runner

    def report_error(self, block: UserErrorBlock) -> None:
        """Emit an error block without its technical details."""
        self.emit_soon(BlockEmitted(block.model_copy(update={"technical_details": None})))
        self.reported_error = block

    async def close_streams(self) -> None:
        """Close the streams that are still open."""
        for stream in list(self.streams.values()):
            await stream.close()
            stream.finish()  # if a task that is not awaited is about to close it

    def abort_streams(self, reason: str) -> None:
        """Abort the streams that are still open."""
        for stream in list(self.streams.values()):
            stream.abort_now(reason)

    def defer_until_stored(self) -> None:
        """Hold the buffered block back until the turn is stored. The agent is done by now."""
        self.timers.buffering.cancel(self._flush)

    def finish(self, event: TurnEvent) -> list[OutboundMessage]:
        """End the turn with its last event. Return the messages to send once the turn is stored."""
        self._close()
        final_messages = self.channel.encode(event)
        self.messages += final_messages
        return self._drain_buffer() + final_messages

    def cancel(self) -> None:
        """End the turn without a reply, because its request was cancelled."""
        self.abandon()
        self._send_now(self.channel.encode_cancelled())

    def abandon(self) -> None:
        """End the turn without a reply: the request runs again later, or is refused in silence."""
        self._close()
        self._drain_buffer()
        if messages := self.channel.encode_paused():
            self._send_now(messages)

    def send(self, messages: list[OutboundMessage]) -> None:
        """Send messages. The last one becomes `last_sent`, so that the outbox can wait for its acknowledgement."""
        if messages:
            self.last_sent = messages[-1]
            self._send_now(messages)
            if self.channel.shows_typing and not self._is_closed:
                self._restart_typing()

    def _emit_thought(self, content: str, status: str, title: str | None = None) -> None:
        self._require_open()
        if not isinstance(content, str):
            raise TypeError(f"a thought is text, not {type(content).__name__}")
        if status not in _STATUSES:
            raise ValueError(f"the status of a thought is {' or '.join(_STATUSES)}, not {status!r}")
        if not self.channel.reads_thoughts(title):
            return
        self._thought_count += 1
        block = ThinkingBlock(
            id=self.part_id(self._thought_count << 64),
            title=title,
            content=content,
            status=cast(_Status, status),
        )
        if messages := self.channel.encode(BlockEmitted(block)):  # not part of the reply, so it is not stored
            self.send(self._drain_buffer() + messages)

    def _next_number(self) -> int:
        """Return the number of the next block or stream."""
        self._last_number += 1
        return self._last_number

    def _encode(self, event: TurnEvent) -> list[OutboundMessage]:
        """Add an event to the reply. Return its messages, which the caller sends."""
        self._require_open()
        messages = self.channel.encode(event)
        self.messages += messages
        return messages

    def _drain_buffer(self) -> list[OutboundMessage]:
        buffered, self._buffered = self._buffered, []
        if buffered:
            self.timers.buffering.cancel(self._flush)
        return buffered

    def _flush(self) -> None:
        self.send(self._drain_buffer())

    def _close(self) -> None:
        self._is_closed = True
        timers = self.timers
        if self.channel.shows_typing:
            timers.typing.cancel(self._show_typing)
            timers.typing_repeat.cancel(self._show_typing)
        for stream in self.streams.values():
            stream.stop_updates()
        self.streams.clear()

    def _show_typing(self) -> None:
        if messages := self.channel.encode_composing():
            self._send_now(messages)
            self.timers.typing_repeat.schedule(self._show_typing)

    def _restart_typing(self) -> None:
        """Show typing again after a message of the reply, if the work goes on."""
        self.timers.typing.cancel(self._show_typing)
        self.timers.typing_repeat.cancel(self._show_typing)
        self.timers.typing.schedule(self._show_typing)

    def _require_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("nothing may be emitted after assist has returned")

    def _record(self, event: dict[str, Any]) -> None:
        self._require_open()
        self.events.append(event)
