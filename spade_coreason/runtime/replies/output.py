"""The output of a turn: its events become messages, which are sent, buffered and kept for the outbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import UUID

from pydantic_core import to_json

from ...concurrency import TimerGroup
from ...contracts import AnyBlock, DataBlock, MarkdownBlock, ThinkingBlock, UserErrorBlock
from ...domain.channel_kinds import PERSON, ROOM
from ...domain.messages import (
    ROOM_HEADERS,
    BlockEmitted,
    InboundRequest,
    RoomOrigin,
    StreamAborted,
    StreamChunk,
    StreamEnded,
    StreamStarted,
    TextEmitted,
    TurnEvent,
    derive_part_id,
)
from ...domain.policy import RunnerTimings
from ...domain.preferences import Preferences
from ...domain.texts.approval_mark import quote_forgeries
from ...domain.texts.text import SurrogateJoiner
from ..channels import NO_CHAINED_DEVICE, Channel, OutboundMessage, PresentationOptions, ReplyEncoder, SendMessages
from .long_answers import UNCHANGED, LongAnswers, RenderedAnswer

_CHUNKS_UNTIL_YIELD = 64


class ReplyTimers:
    """The timers of replies, shared by all turns of an agent: for buffered blocks, for typing, and for updates of streams."""

    def __init__(self, timings: RunnerTimings) -> None:
        self.buffering = TimerGroup(timings.buffer_s)
        self.batching = TimerGroup(timings.batch_s)
        self.typing = TimerGroup(timings.typing_after_s)
        self.typing_repeat = TimerGroup(timings.typing_interval_s)
        self.first_update = TimerGroup(timings.first_update_s)
        self.updates = TimerGroup(timings.update_interval_s)

    def stop(self) -> None:
        """Cancel all timers, after the last turn."""
        for timers in (self.buffering, self.batching, self.typing, self.typing_repeat, self.first_update, self.updates):
            timers.cancel_all()


class RepeatedParts(ReplyEncoder):
    """An encoder for the parts of a reply that an earlier run has sent: it sends nothing."""

    has_live_messages = follows_streams = shows_files = batches = shows_thoughts = shows_steps = False

    def __init__(self, encoder: ReplyEncoder) -> None:
        self._encoder = encoder
        self.key, self.recipient, self.shows_typing = encoder.key, encoder.recipient, encoder.shows_typing

    def encode(self, event: TurnEvent) -> list[str]:
        return []

    def readdress(self, content: str, recipient: str) -> str:
        return self._encoder.readdress(content, recipient)

    def encode_composing(self) -> str | None:
        return self._encoder.encode_composing()

    def encode_paused(self) -> str | None:
        return self._encoder.encode_paused()


def dump_reply(messages: Sequence[OutboundMessage]) -> str:
    """Return the messages of a reply as JSON, for the inbox."""
    return to_json([message.content for message in messages]).decode()


class ReplySender:
    """Sends the messages of one reply, to the recipient of its encoder and to all others who have sent the same request.

    A block is buffered until the next event, so that the last one leaves only when the turn is stored. A program gets several
    events in one message: those that come within `RunnerTimings.batch_s`, and all that come in the last moment of the turn.
    """

    def __init__(self, encoder: ReplyEncoder, send: SendMessages, timers: ReplyTimers) -> None:
        self.encoder = encoder
        self.timers = timers
        self.send_now = send
        """Send messages that are no part of the reply."""
        self._buffered: list[OutboundMessage] = []
        self._has_batch = False
        """True while events wait in the encoder for `_send_batch`."""
        self._listeners: list[str] = []
        """The addresses that get the reply besides the recipient of the encoder."""
        self.is_closed = False
        self.is_held = False
        """True once the buffered block is held back until the turn is stored. The agent is done by then."""
        self.messages: list[OutboundMessage] = []
        """The messages of the reply, sent or not, for the outbox. Thoughts and typing are not part of it."""
        self.last_sent: OutboundMessage | None = None
        if encoder.shows_typing:
            timers.typing.schedule(self._show_typing)

    def require_open(self) -> None:
        """Raise RuntimeError if the turn has ended."""
        if self.is_closed:
            raise RuntimeError("nothing may be emitted after assist has returned")

    def send(self, messages: list[OutboundMessage]) -> None:
        """Send messages. The last one becomes `last_sent`, so that the outbox can wait for its acknowledgement."""
        if messages:
            self.last_sent = messages[-1]
            self.send_now(messages)
            if self.encoder.shows_typing and not self.is_closed:
                self._restart_typing()

    def repeat_to(self, address: str) -> None:
        """Send the reply so far, and all that follows, to an address (a full JID) that has sent the same request."""
        encoder = self.encoder
        sent = [message.content for message in self.messages if message.recipient == encoder.recipient]
        if address != encoder.recipient and address not in self._listeners:
            self._listeners.append(address)
        repeated = [OutboundMessage(address, encoder.readdress(content, address)) for content in sent]
        if address != encoder.recipient:
            self.messages += repeated
        self.send(repeated)

    def emit_now(self, event: TurnEvent) -> None:
        """Send an event at once, after all events before it."""
        messages = self._encode(event)
        if self.encoder.batches:
            self._schedule_batch(messages)
        elif messages:
            self.send(self.drain_buffer() + messages)

    def emit_soon(self, event: TurnEvent) -> None:
        """Buffer an event. It is sent with the next event, with the end of the turn, or after `RunnerTimings.buffer_s`."""
        messages = self._encode(event)
        if self.encoder.batches:
            self._schedule_batch(messages)
        elif messages:
            buffered = self.drain_buffer() if self._buffered else []
            self._buffered = messages
            if not self.is_held:
                self.timers.buffering.schedule(self._flush)
            if buffered:
                self.send(buffered)

    def _schedule_batch(self, messages: list[OutboundMessage]) -> None:
        """Send the messages of a full batch, and see to it that the events which wait in the encoder are sent soon."""
        if messages:
            self.send(messages)
        elif not self._has_batch and not self.is_held:
            self._has_batch = True
            self.timers.batching.schedule(self._send_batch)

    def _send_batch(self) -> None:
        """Send the events that wait in the encoder, unless the turn is about to be stored."""
        self._has_batch = False
        if not self.is_held:
            messages = self.as_messages(self.encoder.flush())
            self.messages += messages
            self.send(messages)

    def send_stream_update(self, stream_id: str) -> bool:
        """Send the new text of a stream, after all events before it. Return False if there is none."""
        messages = self.as_messages(self.encoder.encode_update(stream_id))
        if messages:
            self.send(self.drain_buffer())
            self.send_now(messages)
        return bool(messages)

    def _encode(self, event: TurnEvent) -> list[OutboundMessage]:
        """Add an event to the reply. Return its messages, which the caller sends."""
        if self.is_closed:
            self.require_open()
        messages = self.as_messages(self.encoder.encode(event))
        self.messages += messages
        return messages

    def as_messages(self, contents: Sequence[str]) -> list[OutboundMessage]:
        """Return the messages with these contents, one to each who gets the reply."""
        if not contents:
            return []
        encoder = self.encoder
        recipient = encoder.recipient
        messages = []
        for content in contents:  # for one message, a loop costs less than a comprehension
            messages.append(OutboundMessage(recipient, content))
        for listener in self._listeners:
            messages += [OutboundMessage(listener, encoder.readdress(content, listener)) for content in contents]
        return messages

    def drain_buffer(self) -> list[OutboundMessage]:
        """Remove and return what is buffered."""
        buffered, self._buffered = self._buffered, []
        if buffered:
            self.timers.buffering.cancel(self._flush)  # otherwise it would keep the turn in memory
        return buffered

    def _flush(self) -> None:
        if not self.is_held:
            self.send(self.drain_buffer())

    def close(self) -> None:
        """Take no further events, and send nothing by a timer."""
        self.is_closed = True
        timers = self.timers
        if self.encoder.shows_typing:
            timers.typing.cancel(self._show_typing)
            timers.typing_repeat.cancel(self._show_typing)
        if self._has_batch:
            self._has_batch = False
            timers.batching.cancel(self._send_batch)

    # Typing

    def _show_typing(self) -> None:
        if (composing := self.encoder.encode_composing()) is not None:
            self.send_now(self.as_messages([composing]))
            self.timers.typing_repeat.schedule(self._show_typing)

    def _restart_typing(self) -> None:
        """Show typing again after a message of the reply, if the work goes on."""
        self.timers.typing.cancel(self._show_typing)
        self.timers.typing_repeat.cancel(self._show_typing)
        self.timers.typing.schedule(self._show_typing)


class TurnOutput:
    """The output of one turn. `TurnResponse` and `TurnStream` put events in; the turn ends it with `finish` or `cancel`."""

    def __init__(
        self,
        encoder: ReplyEncoder,
        send: SendMessages,
        key: UUID,
        timers: ReplyTimers,
        long_answers: LongAnswers | None = None,
    ) -> None:
        self.sender = ReplySender(encoder, send, timers)
        self._key = key
        self._long_answers = long_answers if encoder.shows_files else None
        self._last_number = 0
        self._sent_through = 0
        self._own_encoder: ReplyEncoder | None = None
        """The encoder of the reply, while the events are those that an earlier run has sent."""
        self._thought_count = 0
        self._is_parking = False
        """True from a question to the end of the run that has asked it: its costs are recorded until then."""
        self.stored_reply: str | None = None
        """The messages of the whole reply as JSON, for the inbox; None until `finish`, or without any."""
        self.streams: dict[int, TurnStream] = {}
        """The open streams, by number."""
        self.texts: list[str] = []
        """The texts of the reply, without data."""
        self.data_blocks: list[dict[str, Any]] = []
        self.reported_error: UserErrorBlock | None = None
        self.events: list[dict[str, Any]] = []
        """The internal events of the turn, which are recorded and not sent."""

    # Putting in

    def next_part_id(self) -> UUID:
        """Return the id of the next block. A turn that runs again gives the same ids."""
        return derive_part_id(self._key, self._next_number())

    async def emit_text(self, content: str) -> None:
        """Emit a block of Markdown. A person gets one that is too long for a chat as a file."""
        if not content.isascii():  # the usual case needs no call
            content = quote_forgeries(content)
        rendered = await self._render(content)
        self.sender.emit_soon(TextEmitted(content, self._next_number(), *rendered))
        self.texts.append(content)

    def emit_question(self, content: str, choices: tuple[tuple[str, str], ...], recorded: str | None = None) -> None:
        """Emit a block of Markdown with choices: pairs of value and label. `recorded` is its text in the turn."""
        self.sender.emit_soon(TextEmitted(content, self._next_number(), choices=choices))
        self.texts.append(content if recorded is None else recorded)

    async def emit_data(self, block: DataBlock) -> None:
        """Emit a data block, whose values are JSON."""
        dumped = block.dump()
        rendered = UNCHANGED
        if self._long_answers is not None and self._own_encoder is None:
            rendered = await self._long_answers.render_data(block, self.sender.encoder)
        self.sender.emit_soon(BlockEmitted(block, *rendered))
        self.data_blocks.append(dumped)

    def emit_error(self, block: UserErrorBlock) -> None:
        """Emit an error block without its technical details. It becomes `reported_error`."""
        block = block.model_copy(update={"user_message": quote_forgeries(block.user_message)})
        self.sender.emit_soon(BlockEmitted(block.model_copy(update={"technical_details": None})))
        self.reported_error = block

    def emit_thought(self, content: str, **fields: Any) -> None:
        """Emit a thinking block with these fields at once. For a person it is not part of the reply, so it is not stored."""
        self._thought_count += 1
        event = BlockEmitted(
            ThinkingBlock(id=derive_part_id(self._key, self._thought_count << 64), content=quote_forgeries(content), **fields)
        )
        if self.sender.encoder.batches:
            self.sender.emit_now(event)
        elif messages := self.sender.as_messages(self.sender.encoder.encode(event)):
            self.sender.send(self.sender.drain_buffer() + messages)

    def as_blocks(self) -> list[AnyBlock]:
        """Return the reply as blocks: its texts, its data, and the reported error."""
        blocks: list[AnyBlock] = [MarkdownBlock(content=text) for text in self.texts if text.strip()]
        blocks += [DataBlock.model_validate(block) for block in self.data_blocks]
        return blocks if self.reported_error is None else [*blocks, self.reported_error]

    def record(self, event: dict[str, Any]) -> None:
        """Record an internal event. It is not sent."""
        if not self._is_parking:
            self.sender.require_open()
        self.events.append(event)

    def open_stream(self, title: str | None) -> TurnStream:
        """Open a stream."""
        self.sender.require_open()
        number = self._next_number()
        stream = self.streams[number] = TurnStream(self, number)
        if self.sender.encoder.follows_streams:
            self.sender.emit_now(StreamStarted(stream.stream_id, title and quote_forgeries(title)))
        return stream

    # Runs that wait for an answer

    def repeat(self, parts: int) -> None:
        """Send nothing until `resume`: earlier runs have sent these events, `parts` blocks. They are recorded."""
        self._sent_through = parts
        self._own_encoder, self.sender.encoder = self.sender.encoder, RepeatedParts(self.sender.encoder)

    def resume(self) -> None:
        """Send what follows, after `repeat`. Its blocks have new ids, also if this run had fewer than the earlier ones."""
        if self._own_encoder is not None:
            self.sender.encoder, self._own_encoder = self._own_encoder, None
            self._last_number = max(self._last_number, self._sent_through)
            self._thought_count = max(self._thought_count, self._sent_through)

    @property
    def part_count(self) -> int:
        """The largest number of a block or a thought so far, of earlier runs too."""
        return max(self._last_number, self._thought_count, self._sent_through)

    def hold_for_answer(self) -> None:
        """Take no further events: the turn has asked a person, and ends. What is buffered waits until that is stored."""
        self.sender.is_held = self.sender.is_closed = self._is_parking = True

    # The end of the turn

    async def close_streams(self) -> None:
        """Close the streams that are still open."""
        for stream in list(self.streams.values()):
            await stream.close()
            stream._finish(UNCHANGED)  # if a task that is not awaited is about to close it

    def abort_streams(self, reason: str) -> None:
        """Abort the streams that are still open."""
        for stream in list(self.streams.values()):
            stream._abort(reason)

    def finish(self, event: TurnEvent) -> list[OutboundMessage]:
        """End the turn with its last event. Return the messages to send once the turn is stored."""
        if self._own_encoder is not None:
            self.resume()
        self._close()
        sender = self.sender
        final_messages = sender.as_messages(sender.encoder.encode(event) + sender.encoder.flush())
        sender.messages += final_messages
        if sender.messages:
            self.stored_reply = dump_reply(sender.messages)
        return sender.drain_buffer() + final_messages

    def cancel(self) -> None:
        """End the turn without a reply, because its request was cancelled."""
        self.abandon()
        self.sender.send_now(self.sender.as_messages(self.sender.encoder.encode_cancelled()))

    def abandon(self) -> None:
        """End the turn without a reply: the request runs again later, or is refused in silence."""
        self.resume()
        self._close()
        sender = self.sender
        sender.drain_buffer()
        if (paused := sender.encoder.encode_paused()) is not None:
            sender.send_now(sender.as_messages([paused]))

    async def _render(self, content: str) -> RenderedAnswer:
        """Return the file or the link in place of a Markdown text, if the recipient gets one."""
        long_answers = self._long_answers
        if long_answers is None or not (long_answers.files.upload_count or 0 < long_answers.over_bytes < len(content) * 4):
            return UNCHANGED  # nearly always
        if self._own_encoder is not None:
            return UNCHANGED  # it was sent
        return await long_answers.render_markdown(content, self.sender.encoder)

    def _next_number(self) -> int:
        """Return the number of the next block or stream."""
        self._last_number += 1
        return self._last_number

    def _part_id(self, number: int) -> UUID:
        return derive_part_id(self._key, number)

    def _close(self) -> None:
        self._is_parking = False
        self.sender.close()
        for stream in self.streams.values():
            stream._stop_updates()
        self.streams.clear()


class TurnStream:
    """A stream of one reply, as `Stream`: a text that is sent in pieces, active, then closed or aborted."""

    __slots__ = ("_chunks", "_is_closing", "_is_updating", "_joiner", "_number", "_output", "_stream_id")

    def __init__(self, output: TurnOutput, number: int) -> None:
        self._output = output
        self._number = number
        self._stream_id: str | None = None
        self._chunks: list[str] = []
        self._joiner = SurrogateJoiner()
        self._is_closing = False
        self._is_updating = False

    @property
    def stream_id(self) -> str:
        """The id of the stream, a UUID as text."""
        if self._stream_id is None:
            self._stream_id = str(self._output._part_id(self._number))
        return self._stream_id

    @property
    def is_active(self) -> bool:
        """True while the stream can be written to."""
        return self._number in self._output.streams and not self._is_closing

    async def write(self, chunk: str) -> None:
        """Emit a piece of text. `RuntimeError` after the end of the stream; `TypeError` if `chunk` is no text."""
        if not isinstance(chunk, str):
            raise TypeError(f"a stream takes text, not {type(chunk).__name__}")
        output = self._output
        if self._is_closing or self._number not in output.streams:
            raise RuntimeError("this stream is closed")
        if self._joiner.half or not chunk.isascii():
            chunk = quote_forgeries(self._joiner.feed(chunk), self._chunks)
        if not chunk:
            return
        encoder = output.sender.encoder
        if encoder.follows_streams:
            output.sender.emit_now(StreamChunk(self.stream_id, len(self._chunks), chunk))
        self._chunks.append(chunk)
        if encoder.has_live_messages:
            self._schedule_update()
        if len(self._chunks) % _CHUNKS_UNTIL_YIELD == 0:
            await asyncio.sleep(0)  # a long reply without an await must not block the event loop

    async def close(self) -> None:
        """End the stream; a second end does nothing. A person gets a text that is too long for a chat as a file."""
        if not self.is_active:
            return
        self._is_closing = True
        self._finish(await self._output._render("".join(self._chunks)))

    async def abort(self, reason: str) -> None:
        """End the stream as incomplete; a second end does nothing."""
        self._abort(reason)

    async def replace(self, content: str, reason: str) -> None:
        """End the stream as incomplete and replace its whole text by `content`, also where clients show it already.

        A program gets `reason` and `content`. Only `content` is recorded. A second end does nothing.
        """
        if self.is_active:
            content = quote_forgeries(content)
            self._chunks = [content]
            self._abort(reason, content)

    def _finish(self, rendered: RenderedAnswer) -> None:
        """End the stream as complete. Senders who do not follow streams get its text as one block."""
        if self._mark_closed():
            output, text = self._output, "".join(self._chunks)
            if output.sender.encoder.follows_streams:
                output.sender.emit_soon(StreamEnded(self.stream_id, *rendered))
            else:
                output.sender.emit_soon(TextEmitted(text, self._number, *rendered))
            if text:
                output.texts.append(text)

    def _abort(self, reason: str, replacement: str | None = None) -> None:
        """End the stream as incomplete, without awaiting."""
        if self._mark_closed():
            output, text = self._output, "".join(self._chunks)
            if not output.sender.encoder.follows_streams:
                output.sender.emit_now(StreamStarted(self.stream_id))
                output.sender.emit_now(StreamChunk(self.stream_id, 0, text))
            output.sender.emit_soon(StreamAborted(self.stream_id, reason, replacement))
            if text:
                output.texts.append(text)

    def _mark_closed(self) -> bool:
        """Mark the stream as closed. Return False if it was closed before."""
        if self._output.streams.pop(self._number, None) is None:
            return False
        if self._is_updating:
            self._stop_updates()
        return True

    def _stop_updates(self) -> None:
        """Send no further updates before the end."""
        self._output.sender.timers.first_update.cancel(self._send_update)
        self._output.sender.timers.updates.cancel(self._send_update)

    def _schedule_update(self) -> None:
        """Schedule an update: the first soon, the following ones at an interval. Each stream has its own timer."""
        if not self._is_updating:
            self._is_updating = True
            self._output.sender.timers.first_update.schedule(self._send_update)

    def _send_update(self) -> None:
        self._is_updating = self._output.sender.send_stream_update(self.stream_id)
        if self._is_updating:
            self._output.sender.timers.updates.schedule(self._send_update)


class TurnOutputs:
    """Opens the outputs of one agent. `shows_thoughts` is True if thoughts are shown to people who have not chosen.

    `on_program_output` is called with the key of a program's request and its output.
    """

    def __init__(
        self,
        channels: Mapping[str, Channel],
        timings: RunnerTimings,
        long_answers: LongAnswers,
        on_program_output: Callable[[UUID, TurnOutput], None],
        *,
        shows_thoughts: bool,
    ) -> None:
        self._channels = channels
        self._timers = ReplyTimers(timings)
        self._long_answers = long_answers
        self._on_program_output = on_program_output
        self._shows_thoughts = shows_thoughts

    def open(self, incoming: InboundRequest, key: UUID, preferences: Preferences, *, is_redelivered: bool) -> TurnOutput:
        """Open the output for a request, by the preferences of the person and the features of their clients."""
        channel = self._channels[incoming.channel_name]
        if incoming.earlier_runs is not None and incoming.is_said_directly and not incoming.kind.has_buttons:
            # The program may be gone, such as a chat: the person gets the rest as texts. It is asked for again under its id.
            incoming = replace(incoming, kind=PERSON)
        if incoming.kind.is_program:
            encoder = channel.make_encoder(incoming, key)
            if incoming.earlier_runs is not None and not incoming.is_said_directly:
                encoder = RepeatedParts(encoder)  # the agent that asked listens no more: it gets the whole when it asks again
            output = TurnOutput(encoder, channel.send, key, self._timers)
            self._on_program_output(key, output)
            return output
        person, features = incoming.owner, channel.client_features
        has_live_messages = preferences.streaming is not False and features.has_corrections(person)
        presentation = PresentationOptions(
            has_live_messages,
            partial(features.find_chained_device, person) if has_live_messages else NO_CHAINED_DEVICE,
            is_redelivered,
            self._shows_thoughts if preferences.thoughts is None else preferences.thoughts,
            preferences.thoughts is not False,
            features.has_replies(incoming.sender),
        )
        encoder = channel.make_encoder(incoming, key, presentation)
        return TurnOutput(encoder, channel.send, key, self._timers, self._long_answers)

    def open_plain(self, incoming: InboundRequest, key: UUID, send: SendMessages | None = None) -> TurnOutput:
        """Open the output of a command. `send` is by default that of the channel of its request."""
        channel = self._channels[incoming.channel_name]
        return TurnOutput(channel.make_encoder(incoming, key), send or channel.send, key, self._timers)

    def open_held(self, channel: Channel, owner: str, thread: str | None, key: UUID) -> TurnOutput:
        """Open an output to a person or a room (a bare JID) that sends nothing: its messages are stored first."""
        incoming = InboundRequest(PERSON, owner, "", thread, {}, "", owner=owner)
        if channel.is_room(owner):
            incoming = replace(incoming, kind=ROOM, headers=ROOM_HEADERS, room=RoomOrigin(owner))
        encoder = channel.make_encoder(incoming, key)
        output = TurnOutput(encoder, lambda messages: None, key, self._timers, self._long_answers)
        output.sender.is_held = True
        return output

    def close(self) -> None:
        """Cancel all timers, after the last turn."""
        self._timers.stop()
