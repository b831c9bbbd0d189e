"""The streams of an answer: text in pieces."""

from __future__ import annotations

import asyncio
from typing import Protocol
from uuid import UUID

from ..codec import ReplyEncoder
from ..concurrency import TimerGroup
from ..domain.messages import StreamAborted, StreamChunk, StreamEnded, StreamStarted, TextEmitted, TurnEvent
from .long_answers import UNCHANGED, LongAnswers, RenderedAnswer
from .policy import Timings


class ReplyTimers:
    """How long things wait: blocks to leave, typing to be shown, streams to grow; one for all turns of an agent."""

    def __init__(self, timings: Timings) -> None:
        self.buffering = TimerGroup(timings.hold_s)
        self.typing = TimerGroup(timings.typing_after_s)
        self.typing_repeat = TimerGroup(timings.typing_again_s)
        self.first_update = TimerGroup(timings.first_words_s)
        self.updates = TimerGroup(timings.growth_s)

    def stop(self) -> None:
        """After the last turn."""
        for alarms in (self.buffering, self.typing, self.typing_repeat, self.first_update, self.updates):
            alarms.cancel_all()


_CHUNKS_UNTIL_YIELD = 64


class StreamingReply(Protocol):
    """What a stream is a part of."""

    encoder: ReplyEncoder
    long_answers: LongAnswers | None
    timers: ReplyTimers
    streams: dict[int, Stream]
    """Those that are open, by their numbers."""
    texts: list[str]

    def part_id(self, number: int) -> UUID:
        """The id of the stream with this number."""
        ...

    def emit_now(self, event: TurnEvent) -> None:
        """Says what cannot wait."""
        ...

    def emit_soon(self, event: TurnEvent) -> None:
        """Says what may wait for the end of the turn."""
        ...

    def send_stream_update(self, stream_id: str) -> bool:
        """Shows what a stream has more than before, behind all that was said before; whether there was something."""
        ...


class Stream:
    """The StreamHandle: open, active, then closed or aborted."""

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
        """A UUID."""
        if self._stream_id is None:
            self._stream_id = str(self._reply.part_id(self._number))
        return self._stream_id

    @property
    def is_active(self) -> bool:
        """Whether it can be written to."""
        return self._number in self._reply.streams and not self._is_closing

    async def write(self, chunk: str) -> None:
        """Emits a piece of text; `RuntimeError` after the end of the stream, `TypeError` for what is no text."""
        if not isinstance(chunk, str):
            raise TypeError(f"a stream takes text, not {type(chunk).__name__}")
        answer = self._reply
        if self._is_closing or self._number not in answer.streams:
            raise RuntimeError("this stream is closed")
        voice = answer.encoder
        if voice.follows_streams:
            answer.emit_now(StreamChunk(self.stream_id, len(self._chunks), chunk))
        self._chunks.append(chunk)
        if voice.has_live_messages:
            self._schedule_update()
        if len(self._chunks) % _CHUNKS_UNTIL_YIELD == 0:
            await asyncio.sleep(0)  # a long answer written in one go holds up nobody else

    async def close(self) -> None:
        """Ends the stream; a second end does nothing. To a person one too long for a chat becomes a file."""
        if not self.is_active:
            return
        self._is_closing = True
        filing = self._reply.long_answers
        fitting = await filing.render_markdown("".join(self._chunks)) if filing is not None else UNCHANGED
        self.finish(fitting)

    async def abort(self, reason: str) -> None:
        """Ends the stream before its time; a second end does nothing."""
        self.abort_now(reason)

    async def replace(self, content: str, reason: str) -> None:
        """Ends the stream before its time, and puts `content` in the place of all that it said, also where it is shown already.

        A program is told both; nothing else is recorded. A second end does nothing.
        """
        if self.is_active:
            self._chunks = [content]
            self.abort_now(reason, content)

    def finish(self, rendered: RenderedAnswer = UNCHANGED) -> None:
        """Ends the stream, which is complete. Whoever does not follow streams is told of a text."""
        if self._mark_closed():
            answer, text = self._reply, "".join(self._chunks)
            if answer.encoder.follows_streams:
                answer.emit_soon(StreamEnded(self.stream_id, *rendered))
            else:
                answer.emit_soon(TextEmitted(text, self._number, *rendered))
            if text:
                answer.texts.append(text)

    def abort_now(self, reason: str, replacement: str | None = None) -> None:
        """Ends the stream before its time."""
        if self._mark_closed():
            answer, text = self._reply, "".join(self._chunks)
            if not answer.encoder.follows_streams:
                answer.emit_now(StreamStarted(self.stream_id))
                answer.emit_now(StreamChunk(self.stream_id, 0, text))
            answer.emit_soon(StreamAborted(self.stream_id, reason, replacement))
            if text:
                answer.texts.append(text)

    def _mark_closed(self) -> bool:
        """Whether it was open; it is not any more."""
        if self._reply.streams.pop(self._number, None) is None:
            return False
        self.stop_updates()
        return True

    def stop_updates(self) -> None:
        """Shows no more before its end."""
        if self._is_updating:
            self._reply.timers.first_update.cancel(self._send_update)
            self._reply.timers.updates.cancel(self._send_update)

    def _schedule_update(self) -> None:
        """It has more to show: its first words soon, what follows when it is time again. Each stream has its own time."""
        if not self._is_updating:
            self._is_updating = True
            self._reply.timers.first_update.schedule(self._send_update)

    def _send_update(self) -> None:
        self._is_updating = self._reply.send_stream_update(self.stream_id)
        if self._is_updating:
            self._reply.timers.updates.schedule(self._send_update)
