"""What an agent answers through in one turn: every call becomes an event, and the event stanzas."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, cast, get_args
from uuid import UUID

from ..codec import ReplyEncoder
from ..contracts import AgentRequest, AuditEntry, CloudEvent, DataBlock, GraphEventBase, ThinkingBlock, UserErrorBlock
from ..contracts.blocks import STEP_TITLE
from ..domain.messages import BlockEmitted, StreamStarted, TextEmitted, TurnEvent, derive_part_id, owner_of
from ..domain.text import replace_lone_surrogates
from ..storage import AgentRepository
from .long_answers import UNCHANGED, LongAnswers
from .mailbox import QueuedRequest
from .outbound import OutboundStanza, SendStanzas
from .stream import ReplyTimers, Stream

_MAX_CHOICES = 20

_Status: TypeAlias = Literal["IN_PROGRESS", "COMPLETE"]
_STATUSES = get_args(_Status)
_ViewHint: TypeAlias = Literal["TABLE", "JSON", "LIST", "KEY_VALUE"]

agent_log = logging.getLogger("spade_coreason.agent")


class Response:
    """The ResponseHandler of one turn. After the turn every call is a `RuntimeError`."""

    def __init__(
        self,
        encoder: ReplyEncoder,
        send: SendStanzas,
        queued: QueuedRequest,
        store: AgentRepository,
        timers: ReplyTimers,
        long_answers: LongAnswers | None = None,
    ) -> None:
        self.encoder = encoder
        self.long_answers = long_answers if encoder.shows_files else None
        self._queued = queued
        self._send_now = send
        self._store = store
        self.timers = timers
        self._buffered: list[str] = []
        if encoder.shows_typing:
            timers.typing.schedule(self._show_typing)
        self._last_number = 0
        self._thought_count = 0
        self.streams: dict[int, Stream] = {}
        self._is_closed = False
        self.request: AgentRequest | None = None
        """What is answered; known once the session is loaded."""
        self.stanzas: list[str] = []
        """What the outbox keeps: everything that left or will leave, but thoughts and typing."""
        self.last_sent: OutboundStanza | None = None
        self.texts: list[str] = []
        self.data_blocks: list[dict[str, Any]] = []
        self.reported_error: UserErrorBlock | None = None
        self.events: list[dict[str, Any]] = []

    @property
    def text(self) -> str:
        """What it said, without data."""
        return "\n\n".join(self.texts)

    # What an agent calls

    async def thought(self, content: str, status: str = "IN_PROGRESS") -> None:
        """Emits a thinking block."""
        self._emit_thought(content, status)

    async def step(self, content: str) -> None:
        """Emits a thinking block for everybody: a short line that says what is used just now, such as a tool.

        Unlike a thought people read it without asking for it, but in rooms, and unless they want no thoughts.
        """
        self._emit_thought(content, "IN_PROGRESS", STEP_TITLE)

    async def markdown(self, content: str) -> None:
        """Emits a markdown block; `TypeError` for what is no text.

        To a person one too long for a chat is a file, where the server keeps files.
        """
        if not isinstance(content, str):
            raise TypeError(f"an answer is text, not {type(content).__name__}")
        fitting = await self.long_answers.render_markdown(content) if self.long_answers is not None else UNCHANGED
        self.emit_soon(TextEmitted(content, self._next_number(), *fitting))
        self.texts.append(content)

    async def ask(self, question: str, choices: Sequence[str]) -> None:
        """Emits a markdown block that asks, and offers answers: as buttons where a client has them (XEP-0439).

        What is chosen, or anything else, comes as the next message. `ValueError` for more than 20 choices, or an empty one.
        """
        if not 0 < len(choices) <= _MAX_CHOICES or not all(isinstance(choice, str) and choice.strip() for choice in choices):
            raise ValueError(f"choices are 1 to {_MAX_CHOICES} texts, not {choices!r}")
        content = "\n".join([question, "", *(f"- {choice}" for choice in choices)])
        offered = tuple((choice, choice) for choice in choices)
        self.emit_soon(TextEmitted(content, self._next_number(), choices=offered))
        self.texts.append(content)

    async def data(self, data: dict[str, Any], title: str | None = None, view_hint: str = "JSON") -> None:
        """Emits a data block; a value that is no JSON is a `ValueError` or `TypeError`, and nothing is sent."""
        block = DataBlock(id=self.part_id(self._next_number()), data=data, title=title, view_hint=cast(_ViewHint, view_hint))
        dumped = block.dump()
        fitting = await self.long_answers.render_data(block) if self.long_answers is not None else UNCHANGED
        self.emit_soon(BlockEmitted(block, *fitting))
        self.data_blocks.append(dumped)

    async def error(self, message: str, details: dict[str, Any] | None = None, recoverable: bool = False) -> None:
        """Emits an error that concerns the whole request. Only `message` is shown; `details` stay in the process."""
        ident = self.part_id(self._next_number())
        self.report_error(UserErrorBlock(id=ident, user_message=message, technical_details=details, recoverable=recoverable))

    async def create_stream(self, title: str | None = None, metadata: dict[str, Any] | None = None) -> Stream:
        """Opens a stream."""
        self._require_open()
        number = self._next_number()
        stream = Stream(self, number)
        if self.encoder.follows_streams:
            self.emit_now(StreamStarted(stream.stream_id, title))
        self.streams[number] = stream
        return stream

    async def emit(self, event: CloudEvent[Any] | GraphEventBase) -> None:
        """Records an internal event in the Interaction."""
        self._record(event.model_dump(mode="json", by_alias=True, exclude_none=True))

    async def log(self, level: str, message: str, metadata: dict[str, Any] | None = None) -> None:
        """Writes to the log `spade_coreason.agent`, and records the line as a CloudEvent."""
        number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
        agent_log.log(number, "%s: %s", self._store.agent, message)
        data = {"level": level, "message": message, "metadata": metadata or {}}
        await self.emit(CloudEvent(type="ai.coreason.log", source=f"xmpp:{self._store.agent}", data=data))

    async def audit(self, actor: str, action: str, resource: str, success: bool) -> None:
        """Puts an entry into the audit trail of the agent, where it is durable when this returns, and into the Interaction.

        `StoreError` where that cannot be.
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
        sealed = await self._store.audit_trail.append(entry, owner_of(self._queued.incoming))
        await self.emit(CloudEvent(type="ai.coreason.audit", source=f"xmpp:{self._store.agent}", data=sealed.dump()))

    # What its streams call

    def part_id(self, number: int) -> UUID:
        """The id of the block or the stream with this number."""
        return derive_part_id(self._queued.key, number)

    def emit_now(self, event: TurnEvent) -> None:
        """Says what cannot wait: it leaves at once, behind all that was said before."""
        if stanzas := self._encode(event):
            self.send(self._drain_buffer() + stanzas)

    def emit_soon(self, event: TurnEvent) -> None:
        """Says what may wait: it leaves with the next event, with the end of the turn, or in a tenth of a second."""
        if stanzas := self._encode(event):
            held, self._buffered = self._drain_buffer(), stanzas
            self.timers.buffering.schedule(self._flush)
            if held:
                self.send(held)

    def send_stream_update(self, stream_id: str) -> bool:
        """Shows what a stream has more than before, behind all that was said before; whether there was something."""
        grown = self.encoder.encode_update(stream_id)
        if grown:
            self.send(self._drain_buffer())
            self._send_now(grown)
        return bool(grown)

    # What the runner calls

    def report_error(self, block: UserErrorBlock) -> None:
        """Says an error, without its technical details."""
        self.emit_soon(BlockEmitted(block.model_copy(update={"technical_details": None})))
        self.reported_error = block

    async def close_streams(self) -> None:
        """Ends what is still open."""
        for stream in list(self.streams.values()):
            await stream.close()
            stream.finish()  # where a task that nobody waits for is about to close it

    def abort_streams(self, reason: str) -> None:
        """Ends what is still open, before its time."""
        for stream in list(self.streams.values()):
            stream.abort_now(reason)

    def defer_until_stored(self) -> None:
        """The agent is done: a block that waits leaves when the turn is stored, however long that takes."""
        self.timers.buffering.cancel(self._flush)

    def finish(self, event: TurnEvent) -> list[str]:
        """Ends the turn with its last event. What it gives leaves when the turn is stored."""
        self._close()
        final = self.encoder.encode(event)
        self.stanzas += final
        held = self._drain_buffer()
        return held + final

    def cancel(self) -> None:
        """Ends the turn: nobody wants its answer any more."""
        self.abandon()
        self._send_now(self.encoder.encode_cancelled())

    def abandon(self) -> None:
        """Ends the turn without a word: it runs again."""
        self._close()
        self._drain_buffer()
        if (stanza := self.encoder.encode_paused()) is not None:
            self._send_now([stanza])

    def send(self, stanzas: list[str]) -> None:
        """Sends, and remembers the last so that its acknowledgement can be waited for."""
        if stanzas:
            self.last_sent = OutboundStanza(stanzas[-1])
            self._send_now([*stanzas[:-1], self.last_sent])
            if self.encoder.shows_typing and not self._is_closed:
                self._restart_typing()

    def _emit_thought(self, content: str, status: str, title: str | None = None) -> None:
        self._require_open()
        if not isinstance(content, str):
            raise TypeError(f"a thought is text, not {type(content).__name__}")
        if status not in _STATUSES:
            raise ValueError(f"the status of a thought is {' or '.join(_STATUSES)}, not {status!r}")
        if not self.encoder.reads_thoughts(title):
            return
        self._thought_count += 1
        block = ThinkingBlock(
            id=self.part_id(self._thought_count << 64),
            title=title,
            content=content,
            status=cast(_Status, status),
        )
        if stanzas := self.encoder.encode(BlockEmitted(block)):  # no part of the answer, so nothing keeps it
            self.send(self._drain_buffer() + stanzas)

    def _next_number(self) -> int:
        """That of the next block or stream."""
        self._last_number += 1
        return self._last_number

    def _encode(self, event: TurnEvent) -> list[str]:
        """Says what is a part of the answer; gives its stanzas, which are still to be sent."""
        self._require_open()
        stanzas = self.encoder.encode(event)
        self.stanzas += stanzas
        return stanzas

    def _drain_buffer(self) -> list[str]:
        held, self._buffered = self._buffered, []
        if held:
            self.timers.buffering.cancel(self._flush)
        return held

    def _flush(self) -> None:
        self.send(self._drain_buffer())

    def _close(self) -> None:
        self._is_closed = True
        pace = self.timers
        if self.encoder.shows_typing:
            pace.typing.cancel(self._show_typing)
            pace.typing_repeat.cancel(self._show_typing)
        for stream in self.streams.values():
            stream.stop_updates()
        self.streams.clear()

    def _show_typing(self) -> None:
        if (stanza := self.encoder.encode_composing()) is not None:
            self._send_now([stanza])
            self.timers.typing_repeat.schedule(self._show_typing)

    def _restart_typing(self) -> None:
        """After something was said: typing is shown again, if the work goes on."""
        self.timers.typing.cancel(self._show_typing)
        self.timers.typing_repeat.cancel(self._show_typing)
        self.timers.typing.schedule(self._show_typing)

    def _require_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("nothing may be emitted after assist has returned")

    def _record(self, event: dict[str, Any]) -> None:
        self._require_open()
        self.events.append(event)
