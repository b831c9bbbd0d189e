"""The streams of an answer: text in pieces."""

from __future__ import annotations

import asyncio
from typing import Protocol
from uuid import UUID

from ..codec import Voice
from ..concurrency import Alarms
from ..domain.messages import SaidText, StreamAborted, StreamChunk, StreamEnded, StreamStarted, TurnEvent
from .long_answers import AS_IT_IS, Filing, Fitting
from .timings import Timings


class Pace:
    """How long things wait: blocks to leave, typing to be shown, streams to grow; one for all turns of an agent."""

    def __init__(self, timings: Timings) -> None:
        self.holding = Alarms(timings.hold_s)
        self.typing = Alarms(timings.typing_after_s)
        self.still_typing = Alarms(timings.typing_again_s)
        self.first_words = Alarms(timings.first_words_s)
        self.growing = Alarms(timings.growth_s)

    def stop(self) -> None:
        """After the last turn."""
        for alarms in (self.holding, self.typing, self.still_typing, self.first_words, self.growing):
            alarms.stop()


_CHUNKS_UNTIL_YIELD = 64


class Answer(Protocol):
    """What a stream is a part of."""

    voice: Voice
    filing: Filing | None
    pace: Pace
    streams: dict[int, Stream]
    """Those that are open, by their numbers."""
    texts: list[str]

    def ident(self, number: int) -> UUID:
        """The id of the stream with this number."""
        ...

    def emit_now(self, event: TurnEvent) -> None:
        """Says what cannot wait."""
        ...

    def emit_soon(self, event: TurnEvent) -> None:
        """Says what may wait for the end of the turn."""
        ...

    def show_growth(self, stream_id: str) -> bool:
        """Shows what a stream has more than before, behind all that was said before; whether there was something."""
        ...


class Stream:
    """The StreamHandle: open, active, then closed or aborted."""

    __slots__ = ("_answer", "_chunks", "_is_closing", "_is_growing", "_number", "_stream_id")

    def __init__(self, answer: Answer, number: int) -> None:
        self._answer = answer
        self._number = number
        self._stream_id: str | None = None
        self._chunks: list[str] = []
        self._is_closing = False
        self._is_growing = False

    @property
    def stream_id(self) -> str:
        """A UUID."""
        if self._stream_id is None:
            self._stream_id = str(self._answer.ident(self._number))
        return self._stream_id

    @property
    def is_active(self) -> bool:
        """Whether it can be written to."""
        return self._number in self._answer.streams and not self._is_closing

    async def write(self, chunk: str) -> None:
        """Emits a piece of text; `RuntimeError` after the end of the stream, `TypeError` for what is no text."""
        if not isinstance(chunk, str):
            raise TypeError(f"a stream takes text, not {type(chunk).__name__}")
        answer = self._answer
        if self._is_closing or self._number not in answer.streams:
            raise RuntimeError("this stream is closed")
        voice = answer.voice
        if voice.follows_streams:
            answer.emit_now(StreamChunk(self.stream_id, len(self._chunks), chunk))
        self._chunks.append(chunk)
        if voice.grows:
            self._grow()
        if len(self._chunks) % _CHUNKS_UNTIL_YIELD == 0:
            await asyncio.sleep(0)  # a long answer written in one go holds up nobody else

    async def close(self) -> None:
        """Ends the stream; a second end does nothing. To a person one too long for a chat becomes a file."""
        if not self.is_active:
            return
        self._is_closing = True
        filing = self._answer.filing
        fitting = await filing.markdown("".join(self._chunks)) if filing is not None else AS_IT_IS
        self.end(fitting)

    async def abort(self, reason: str) -> None:
        """Ends the stream before its time; a second end does nothing."""
        self.cut_off(reason)

    async def replace(self, content: str, reason: str) -> None:
        """Ends the stream before its time, and puts `content` in the place of all that it said, also where it is shown already.

        A program is told both; nothing else is recorded. A second end does nothing.
        """
        if self.is_active:
            self._chunks = [content]
            self.cut_off(reason, content)

    def end(self, fitting: Fitting = AS_IT_IS) -> None:
        """Ends the stream, which is complete. Whoever does not follow streams is told of a text."""
        if self._leave():
            answer, text = self._answer, "".join(self._chunks)
            if answer.voice.follows_streams:
                answer.emit_soon(StreamEnded(self.stream_id, *fitting))
            else:
                answer.emit_soon(SaidText(text, self._number, *fitting))
            if text:
                answer.texts.append(text)

    def cut_off(self, reason: str, replacement: str | None = None) -> None:
        """Ends the stream before its time."""
        if self._leave():
            answer, text = self._answer, "".join(self._chunks)
            if not answer.voice.follows_streams:
                answer.emit_now(StreamStarted(self.stream_id))
                answer.emit_now(StreamChunk(self.stream_id, 0, text))
            answer.emit_soon(StreamAborted(self.stream_id, reason, replacement))
            if text:
                answer.texts.append(text)

    def _leave(self) -> bool:
        """Whether it was open; it is not any more."""
        if self._answer.streams.pop(self._number, None) is None:
            return False
        self.stop_growing()
        return True

    def stop_growing(self) -> None:
        """Shows no more before its end."""
        if self._is_growing:
            self._answer.pace.first_words.take_back(self._show)
            self._answer.pace.growing.take_back(self._show)

    def _grow(self) -> None:
        """It has more to show: its first words soon, what follows when it is time again. Each stream has its own time."""
        if not self._is_growing:
            self._is_growing = True
            self._answer.pace.first_words.set(self._show)

    def _show(self) -> None:
        self._is_growing = self._answer.show_growth(self.stream_id)
        if self._is_growing:
            self._answer.pace.growing.set(self._show)
