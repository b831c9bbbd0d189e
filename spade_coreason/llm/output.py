"""The way of a completion to the person: tokens to a stream, reasoning to thoughts, without markers and withheld text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..contracts import ResponseHandler, StreamHandle
from ..domain.texts.translation import N_, translate
from .guardrails.decisions import WITHHELD, WithheldError
from .guardrails.filters import FilterChain
from .guardrails.guard import TurnGuard
from .handlers import replace_stream
from .structured import unescape_json

_MAX_THOUGHT_CHARACTERS = 400
_TRUNCATION_NOTE = N_("(My answer is cut off here: it reached the limit for one answer.)")


class MarkerFilter:
    """Remove markers from a text in pieces, and hold back only what may become a marker."""

    def __init__(self, markers: Sequence[str]) -> None:
        # The longest first: one marker may begin another.
        longest_first = sorted(filter(None, markers), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._prefixes = {marker[:end] for marker in longest_first for end in range(1, len(marker))}
        self._max_prefix_characters = max(map(len, longest_first), default=1) - 1
        self._pending = ""
        self.has_found = False

    def feed(self, piece: str) -> str:
        """Add a piece, and return the text that can be shown now."""
        if self._pattern is None:
            return piece
        text, begin, shown = self._pending + piece, 0, ""
        while True:
            marker, open_at = self._pattern.search(text, begin), self._find_open_marker(text, begin)
            if marker is None or open_at <= marker.start():
                self._pending = text[open_at:]
                return shown + text[begin:open_at]
            shown += text[begin : marker.start()]
            begin = marker.end()
            self.has_found = True

    def end(self) -> str:
        """Return the rest of the text without its markers."""
        pending, self._pending = self._pending, ""
        if self._pattern is None:
            return pending
        shown, count = self._pattern.subn("", pending)
        self.has_found = self.has_found or count > 0
        return shown

    def _find_open_marker(self, text: str, begin: int) -> int:
        """Find the start of an incomplete marker, else the end of the text."""
        max_characters = min(len(text) - begin, self._max_prefix_characters)
        return len(text) - next((n for n in range(max_characters, 0, -1) if text[-n:] in self._prefixes), 0)


class ReplyStreamer:
    """Stream one completion after the other; each with a text gets a stream of its own.

    A silent streamer (structured output) sends no text. WithheldError if a guardrail withholds a completion, from each method
    that receives or ends one; `withhold` then tells the person.
    """

    def __init__(self, response: ResponseHandler, markers: Sequence[str], guard: TurnGuard, *, is_silent: bool = False) -> None:
        self._response = response
        self._termination_markers = tuple(markers)
        self._guard = guard
        self._is_silent = is_silent
        self._stream: StreamHandle | None = None
        self.received_characters = 0
        """Characters of the current completion."""
        self.has_emitted = False
        """True if text of the current completion was sent."""
        self.has_replied = False
        """True if text of any completion was sent."""
        self.has_termination_marker = False
        """True if the model wrote a termination marker."""
        self.is_emptied = False
        """True if the last completion had a text of which the guardrails left nothing."""
        self.start()

    def start(self) -> None:
        """Start a completion. An earlier one that broke off sent nothing."""
        self._markers = MarkerFilter(self._termination_markers)
        self._reply_chain = self._guard.build_reply_chain()
        self._reasoning_chain: FilterChain | None = self._guard.build_reasoning_chain()
        self._reasoning_markers = MarkerFilter(self._termination_markers)
        self._is_reasoning = False
        self._released: list[str] = []
        self._buffered_data: list[str] = []
        self._leading_whitespace = self._thought = ""
        self.received_characters = 0
        self._has_text = False

    async def on_text(self, piece: str) -> None:
        """Receive a piece of the text."""
        if self._is_reasoning:
            await self._finish_reasoning()
        self.received_characters += len(piece)
        shown = self._markers.feed(piece)
        self._has_text = self._has_text or bool(shown.strip())
        if self._is_silent:
            self._buffered_data.append(shown)
        else:
            await self._emit(await self._reply_chain.feed(shown))

    async def on_reasoning(self, piece: str) -> None:
        """Receive a piece of the reasoning. Thoughts are whole lines where possible; a withheld one ends the reasoning."""
        self.received_characters += len(piece)
        if self._reasoning_chain is None:
            return
        self._is_reasoning = True
        try:
            shown = await self._reasoning_chain.feed(self._reasoning_markers.feed(piece))
        except WithheldError:
            self._reasoning_chain, self._is_reasoning, self._thought = None, False, ""
            return
        self._thought += shown
        if "\n" in shown or len(self._thought) > _MAX_THOUGHT_CHARACTERS:
            lines, _, rest = self._thought.rpartition("\n")
            self._thought, rest = (lines, rest) if len(rest) <= _MAX_THOUGHT_CHARACTERS else (self._thought, "")
            await self._emit_thought()
            self._thought = rest

    async def finish(self, *, is_truncated: bool = False) -> str:
        """End the completion, and return its text as the guardrails let it through.

        `is_truncated`: the model reached its own limit.
        """
        if self._is_reasoning:
            await self._finish_reasoning()
        rest = await self._reply_chain.feed(self._join_data(self._markers.end()))
        await self._emit(rest + await self._reply_chain.end())
        self.has_termination_marker = self.has_termination_marker or self._markers.has_found
        if self._stream is not None:
            if is_truncated:
                await self._stream.write("\n\n" + translate(_TRUNCATION_NOTE))
            await self._stream.close()
        self._stream, self.has_emitted = None, False
        text = "".join(self._released)
        self.is_emptied = self._has_text and not text.strip()
        return text

    async def abort(self, reason: str) -> None:
        """Abort a completion that stays incomplete."""
        if self._stream is not None:
            await self._stream.abort(translate(reason))

    async def withhold(self, error: WithheldError) -> None:
        """Withhold the completion, with the part that was already shown."""
        self.has_termination_marker = self.has_termination_marker or self._markers.has_found
        stream, self._stream = self._stream, None
        if self._is_silent:
            await self._response.error(translate(error.text))
        elif stream is None:
            await self._response.markdown(translate(error.text))
        else:
            await replace_stream(self._response, stream, translate(error.text), translate(WITHHELD))

    def _join_data(self, rest: str) -> str:
        """Join all pieces of data: JSON may write a character in several ways, and guardrails look for one."""
        return unescape_json("".join([*self._buffered_data, rest])) if self._is_silent else rest

    async def _emit(self, text: str) -> None:
        if not text:
            return
        self._released.append(text)
        if self._is_silent:
            return
        if self._stream is None:
            # Leading line breaks are not sent: a completion may have nothing else beside its tool calls.
            self._leading_whitespace += text
            if not self._leading_whitespace.strip():
                return
            text = self._leading_whitespace.lstrip()
            self._stream = await self._response.create_stream()
            self.has_emitted = self.has_replied = True
        await self._stream.write(text)

    async def _finish_reasoning(self) -> None:
        """Send the rest of the reasoning."""
        assert self._reasoning_chain is not None
        self._is_reasoning = False
        try:
            rest = await self._reasoning_chain.feed(self._reasoning_markers.end())
            self._thought += rest + await self._reasoning_chain.end()
        except WithheldError:
            self._reasoning_chain, self._thought = None, ""
        else:
            self._reasoning_chain = self._guard.build_reasoning_chain()
            await self._emit_thought()

    async def _emit_thought(self) -> None:
        thought, self._thought = self._thought.strip(), ""
        if thought:
            await self._response.thought(thought)
