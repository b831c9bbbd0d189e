"""Streams: texts of a reply that are sent in pieces."""

from __future__ import annotations

import asyncio
from typing import Protocol
from uuid import UUID

from ..concurrency import TimerGroup
from ..domain.messages import StreamAborted, StreamChunk, StreamEnded, StreamStarted, TextEmitted, TurnEvent
from .long_answers import UNCHANGED, LongAnswers, RenderedAnswer
from .policy import RunnerTimings
from .transport import ReplyChannel


class ReplyTimers:
    """The timers of replies, shared by all turns of an agent: for buffered blocks, for typing, and for updates of streams."""

    def __init__(self, timings: RunnerTimings) -> None:
        self.buffering = TimerGroup(timings.buffer_s)
        self.typing = TimerGroup(timings.typing_after_s)
        self.typing_repeat = TimerGroup(timings.typing_interval_s)
        self.first_update = TimerGroup(timings.first_update_s)
        self.updates = TimerGroup(timings.update_interval_s)

    def stop(self) -> None:
        """Cancel all timers, after the last turn."""
        for timers in (self.buffering, self.typing, self.typing_repeat, self.first_update, self.updates):
            timers.cancel_all()


_CHUNKS_UNTIL_YIELD = 64


class StreamingReply(Protocol):
    """The response that a stream is a part of."""

    channel: ReplyChannel
    long_answers: LongAnswers | None
    timers: ReplyTimers
    streams: dict[int, TurnStream]
    """The open streams, by number."""
    texts: list[str]

    def part_id(self, number: int) -> UUID:
        """Return the id of the stream with this number."""
        ...

    def emit_now(self, event: TurnEvent) -> None:
        """Send an event at once."""
        ...

    def emit_soon(self, event: TurnEvent) -> None:
        """Buffer an event, at most until the end of the turn."""
        ...

    def send_stream_update(self, stream_id: str) -> bool:
        """Send the new text of a stream, after all events before it. Return False if there is none."""
        ...


class TurnStream:
    """A stream of one reply, as `StreamHandle`: active, then closed or aborted."""

    __slots__ = ("_chunks", "_is_closing", "_is_updating", "_number", "_reply", "_stream_id")

    def __init__(self, reply: StreamingReply, number: int) -> None:
        self._reply = reply
        self._number = number
        self._stream_id: str | None = None
        self._chunks: list[str] = []
        self._is_closing = False
        self._is_updating = False

    @property
    def stream_id(self) -> str:
        """The id of the stream, a UUID as text."""
        if self._stream_id is None:
            self._stream_id = str(self._reply.part_id(self._number))
        return self._stream_id

    @property
    def is_active(self) -> bool:
        """True while the stream can be written to."""
        return self._number in self._reply.streams and not self._is_closing

    async def write(self, chunk: str) -> None:
        """Emit a piece of text. `RuntimeError` after the end of the stream; `TypeError` if `chunk` is no text."""
        if not isinstance(chunk, str):
            raise TypeError(f"a stream takes text, not {type(chunk).__name__}")
        reply = self._reply
        if self._is_closing or self._number not in reply.streams:
            raise RuntimeError("this stream is closed")
        channel = reply.channel
        if channel.follows_streams:
            reply.emit_now(StreamChunk(self.stream_id, len(self._chunks), chunk))
        self._chunks.append(chunk)
        if channel.has_live_messages:
            self._schedule_update()
        if len(self._chunks) % _CHUNKS_UNTIL_YIELD == 0:
            await asyncio.sleep(0)  # a long reply without an await must not block the event loop

    async def close(self) -> None:
        """End the stream; a second end does nothing. A person gets a text that is too long for a chat as a file."""
        if not self.is_active:
            return
        self._is_closing = True
        long_answers = self._reply.long_answers
        rendered = await long_answers.render_markdown("".join(self._chunks)) if long_answers is not None else UNCHANGED
        self.finish(rendered)

    async def abort(self, reason: str) -> None:
        """End the stream as incomplete; a second end does nothing."""
        self.abort_now(reason)

    async def replace(self, content: str, reason: str) -> None:
        """End the stream as incomplete and replace its whole text by `content`, also where clients show it already.

        A program gets `reason` and `content`. Only `content` is recorded. A second end does nothing.
        """
        if self.is_active:
            self._chunks = [content]
            self.abort_now(reason, content)

    def finish(self, rendered: RenderedAnswer = UNCHANGED) -> None:
        """End the stream as complete. Senders who do not follow streams get its text as one block."""
        if self._mark_closed():
            reply, text = self._reply, "".join(self._chunks)
            if reply.channel.follows_streams:
                reply.emit_soon(StreamEnded(self.stream_id, *rendered))
            else:
                reply.emit_soon(TextEmitted(text, self._number, *rendered))
            if text:
                reply.texts.append(text)

    def abort_now(self, reason: str, replacement: str | None = None) -> None:
        """End the stream as incomplete, without awaiting."""
        if self._mark_closed():
            reply, text = self._reply, "".join(self._chunks)
            if not reply.channel.follows_streams:
                reply.emit_now(StreamStarted(self.stream_id))
                reply.emit_now(StreamChunk(self.stream_id, 0, text))
            reply.emit_soon(StreamAborted(self.stream_id, reason, replacement))
            if text:
                reply.texts.append(text)

    def _mark_closed(self) -> bool:
        """Mark the stream as closed. Return False if it was closed before."""
        if self._reply.streams.pop(self._number, None) is None:
            return False
        self.stop_updates()
        return True

    def stop_updates(self) -> None:
        """Send no further updates before the end."""
        if self._is_updating:
            self._reply.timers.first_update.cancel(self._send_update)
            self._reply.timers.updates.cancel(self._send_update)

    def _schedule_update(self) -> None:
        """Schedule an update: the first soon, the following ones at an interval. Each stream has its own timer."""
        if not self._is_updating:
            self._is_updating = True
            self._reply.timers.first_update.schedule(self._send_update)

    def _send_update(self) -> None:
        self._is_updating = self._reply.send_stream_update(self.stream_id)
        if self._is_updating:
            self._reply.timers.updates.schedule(self._send_update)
