"""What a language model says on its way to the person: tokens to a stream, reasoning to thoughts, markers taken out."""

from __future__ import annotations

from collections.abc import Sequence

from ..contracts import ResponseHandler, StreamHandle
from .markers import Markers

_THOUGHT = 400
_CUT = "\n\n(My answer is cut off here: it reached the limit for one answer.)"


class Speaker:
    """One reply after the other; each that has a text is a stream. A silent one (structured output) says nothing of its own."""

    def __init__(self, response: ResponseHandler, markers: Sequence[str], *, is_silent: bool = False) -> None:
        self._response = response
        self._all = tuple(markers)
        self._markers = Markers(self._all)
        self._is_silent = is_silent
        self._stream: StreamHandle | None = None
        self._blank = ""
        self._thought = ""
        self.has_spoken = False
        """In the reply that comes now."""
        self.said_something = False
        """In any reply."""
        self.is_over = False
        """Whether there was a termination marker."""

    def begin(self) -> None:
        """A reply begins, perhaps again: what was not said of one that broke off is forgotten."""
        self._blank, self._thought, self._markers = "", "", Markers(self._all)

    async def text(self, piece: str) -> None:
        """A piece of the text."""
        if self._thought:
            await self._think()
        if not self._is_silent:
            await self._say(self._markers.feed(piece))

    async def reasoning(self, piece: str) -> None:
        """A piece of the reasoning; thoughts are whole lines where they can be."""
        self._thought += piece
        if "\n" in piece or len(self._thought) > _THOUGHT:
            await self._think()

    async def end(self, *, is_cut: bool = False) -> None:
        """The reply is whole, or cut off at the model's own limit."""
        await self._think()
        await self._say(self._markers.end())
        self.is_over = self.is_over or self._markers.found
        if is_cut and self._stream is not None:
            await self._stream.write(_CUT)
        if self._stream is not None:
            await self._stream.close()
        self._stream, self.has_spoken = None, False

    async def abort(self, reason: str) -> None:
        """The reply will not be whole."""
        if self._stream is not None:
            await self._stream.abort(reason)

    async def _say(self, text: str) -> None:
        if not text:
            return
        if self._stream is None:
            # A reply that begins with line breaks, or is nothing else beside its tool calls, is no message of its own.
            self._blank += text
            if not self._blank.strip():
                return
            text = self._blank.lstrip()
            self._stream = await self._response.create_stream()
            self.has_spoken = self.said_something = True
        await self._stream.write(text)

    async def _think(self) -> None:
        thought, self._thought = self._thought.strip(), ""
        if thought:
            await self._response.thought(thought)
