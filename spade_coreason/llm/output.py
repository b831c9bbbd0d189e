"""What a language model says on its way to the person: tokens to a stream, reasoning to thoughts, what may not be shown out."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..contracts import ResponseHandler, StreamHandle
from .guardrails.decisions import KEPT_BACK, Withheld
from .guardrails.filters import Chain
from .guardrails.guard import Guard
from .structured import unescaped


class Markers:
    """Holds back only what may become a marker; `found` says whether there was one."""

    def __init__(self, markers: Sequence[str]) -> None:
        # The longest first: one marker may begin another.
        longest_first = sorted(filter(None, markers), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._beginnings = {marker[:end] for marker in longest_first for end in range(1, len(marker))}
        self._most = max(map(len, longest_first), default=1) - 1
        self._held = ""
        self.found = False

    def feed(self, piece: str) -> str:
        """What can be shown now."""
        if self._pattern is None:
            return piece
        text, begin, shown = self._held + piece, 0, ""
        while True:
            marker, open_at = self._pattern.search(text, begin), self._open(text, begin)
            if marker is None or open_at <= marker.start():
                self._held = text[open_at:]
                return shown + text[begin:open_at]
            shown += text[begin : marker.start()]
            begin = marker.end()
            self.found = True

    def end(self) -> str:
        """What was held back and is no marker."""
        held, self._held = self._held, ""
        if self._pattern is None:
            return held
        shown, count = self._pattern.subn("", held)
        self.found = self.found or count > 0
        return shown

    def _open(self, text: str, begin: int) -> int:
        """Where a marker may have begun that is not complete; the end of the text where none has."""
        most = min(len(text) - begin, self._most)
        return len(text) - next((n for n in range(most, 0, -1) if text[-n:] in self._beginnings), 0)


_THOUGHT = 400

_CUT = "\n\n(My answer is cut off here: it reached the limit for one answer.)"


class Speaker:
    """One reply after the other; each that has a text is a stream. A silent one (structured output) says nothing of its own.

    Withheld, from whatever hears or ends a reply, where a guardrail keeps it back; `withhold` says so then.
    """

    def __init__(self, response: ResponseHandler, markers: Sequence[str], guard: Guard, *, is_silent: bool = False) -> None:
        self._response = response
        self._all = tuple(markers)
        self._guard = guard
        self._is_silent = is_silent
        self._stream: StreamHandle | None = None
        self.heard = 0
        """Characters of the reply that comes now."""
        self.has_spoken = False
        """In the reply that comes now."""
        self.said_something = False
        """In any reply."""
        self.is_over = False
        """Whether there was a termination marker."""
        self.is_cleared = False
        """Whether guardrails left nothing of the last reply, which had a text."""
        self.begin()

    def begin(self) -> None:
        """A reply begins; of one before that broke off nothing was said."""
        self._markers = Markers(self._all)
        self._chain = self._guard.answer()
        self._reasoning: Chain | None = self._guard.reasoning()
        self._unspoken = Markers(self._all)
        self._is_reasoning = False
        self._said: list[str] = []
        self._data: list[str] = []
        self._blank = self._thought = ""
        self.heard = 0
        self._has_text = False

    async def text(self, piece: str) -> None:
        """A piece of the text."""
        if self._is_reasoning:
            await self._end_reasoning()
        self.heard += len(piece)
        shown = self._markers.feed(piece)
        self._has_text = self._has_text or bool(shown.strip())
        if self._is_silent:
            self._data.append(shown)
        else:
            await self._say(await self._chain.feed(shown))

    async def reasoning(self, piece: str) -> None:
        """A piece of the reasoning; thoughts are whole lines where they can be. One that is kept back ends it."""
        self.heard += len(piece)
        if self._reasoning is None:
            return
        self._is_reasoning = True
        try:
            shown = await self._reasoning.feed(self._unspoken.feed(piece))
        except Withheld:
            self._reasoning, self._is_reasoning, self._thought = None, False, ""
            return
        self._thought += shown
        if "\n" in shown or len(self._thought) > _THOUGHT:
            await self._think()

    async def end(self, *, is_cut: bool = False) -> str:
        """The reply is whole, or cut off at the model's own limit. Gives its text, as it was let through."""
        if self._is_reasoning:
            await self._end_reasoning()
        rest = await self._chain.feed(self._whole(self._markers.end()))
        await self._say(rest + await self._chain.end())
        self.is_over = self.is_over or self._markers.found
        if self._stream is not None:
            if is_cut:
                await self._stream.write(_CUT)
            await self._stream.close()
        self._stream, self.has_spoken = None, False
        said = "".join(self._said)
        self.is_cleared = self._has_text and not said.strip()
        return said

    async def abort(self, reason: str) -> None:
        """The reply will not be whole."""
        if self._stream is not None:
            await self._stream.abort(reason)

    async def withhold(self, error: Withheld) -> None:
        """The reply is kept back, also what was shown of it already."""
        self.is_over = self.is_over or self._markers.found
        stream, self._stream = self._stream, None
        replace = getattr(stream, "replace", None)
        if self._is_silent:
            await self._response.error(error.text)
        elif stream is None:
            await self._response.markdown(error.text)
        elif callable(replace):
            await replace(error.text, KEPT_BACK)
        else:  # another platform's stream
            await stream.abort(KEPT_BACK)
            await self._response.markdown(error.text)

    def _whole(self, rest: str) -> str:
        """Of data all: JSON may write each character in several ways, and guardrails look for one."""
        return unescaped("".join([*self._data, rest])) if self._is_silent else rest

    async def _say(self, text: str) -> None:
        if not text:
            return
        self._said.append(text)
        if self._is_silent:
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

    async def _end_reasoning(self) -> None:
        """What was held back of it."""
        assert self._reasoning is not None
        self._is_reasoning = False
        try:
            rest = await self._reasoning.feed(self._unspoken.end())
            self._thought += rest + await self._reasoning.end()
        except Withheld:
            self._reasoning, self._thought = None, ""
        else:
            self._reasoning = self._guard.reasoning()
            await self._think()

    async def _think(self) -> None:
        thought, self._thought = self._thought.strip(), ""
        if thought:
            await self._response.thought(thought)
