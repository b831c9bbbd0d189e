"""Words and regular expressions in a text that comes in pieces.

They are found as in the whole text, and no more of it is held back than needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol, TypeAlias

from ...domain.environment.installation import install_hint
from ...exceptions import ConfigError
from .declaration import Guardrail

INLINE_TIMEOUT_S = 0.01
"""Seconds for a search that blocks the event loop."""
THREAD_TIMEOUT_S = 0.5
"""Seconds for a search in a thread. An expression that backtracks without end is no check."""
_MAX_PENDING_CHARACTERS = 20_000
# Data are checked as JSON. There a line break before a word is two characters, the second one a letter.
_WORD_GAP = r"(?:\s|\\[nrt]){1,4}"
_WORD_START = r"(?:(?<!\w)|(?<=\\[bfnrt])|(?<=\\u[0-9a-f]{4}))"
# Scripts that put no space between words: Thai, Lao, Burmese, Khmer, Kana, Han.
_UNSPACED_SCRIPTS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")


class Match(Protocol):
    """A place in a text."""

    def start(self) -> int: ...

    def end(self) -> int: ...


FindMatches: TypeAlias = Callable[[str, int, float], Iterator[Match]]
"""Find the matches in a text from a position on, from left to right. TimeoutError after so many seconds."""


class Pattern(NamedTuple):
    """An expression that a guardrail searches for. A match depends on its first `span` characters and those before it."""

    find: FindMatches
    span: int


def compile_patterns(guardrail: Guardrail, place: str) -> list[Pattern]:
    """Compile one pattern for all keywords, or one for each expression.

    ConfigError if an expression is invalid, or matches the empty text.
    """
    if guardrail.keywords is not None:
        return [_compile_keywords(guardrail.keywords)]
    if guardrail.regex is None:
        return []
    if find_spec("regex") is None:
        raise ConfigError(place, f"regular expressions need the package regex: {install_hint('llm')}")
    return [
        _compile_expression(expression, guardrail.span, f"{place}.regex[{number}]")
        for number, expression in enumerate(guardrail.regex)
    ]


class PatternFilter:
    """Let a text through except its matches; `on_match` returns the replacement, or raises.

    The result is the same for the same text, however it is cut into pieces.
    """

    def __init__(self, pattern: Pattern, on_match: Callable[[], str]) -> None:
        self._pattern = pattern
        self._on_match = on_match
        self._preceding = ""
        self._pending = ""

    def feed(self, piece: str) -> None:
        """Add a piece of the text."""
        self._pending += piece

    def release(self, timeout_s: float, *, is_whole: bool = False) -> str:
        """Return the text that can be shown now, or the whole rest if the text is complete (`is_whole`).

        It can be called again after a TimeoutError.
        """
        if is_whole:
            return self._process(len(self._pending), timeout_s, is_whole=True)
        limit_characters = len(self._pending) - self._pattern.span
        return self._process(limit_characters, timeout_s, is_whole=False) if limit_characters > 0 else ""

    def flush(self) -> str:
        """Return the rest unchanged."""
        rest, self._pending = self._pending, ""
        return rest

    def _process(self, limit_characters: int, timeout_s: float, *, is_whole: bool) -> str:
        """Decide on all matches that start in the first `limit_characters` characters of the pending text."""
        text, begin = self._preceding + self._pending, len(self._preceding)
        limit = begin + limit_characters
        settled, shown = begin, []
        for match in self._pattern.find(text, begin, timeout_s):
            start, end = match.start(), match.end()
            if start >= limit:
                break
            if start == end:
                continue
            if end == len(text) and not is_whole and len(self._pending) < _MAX_PENDING_CHARACTERS:
                limit = start  # the match may continue in the next piece
                break
            shown += [text[settled:start], self._on_match()]
            settled = end
        shown.append(text[settled : max(settled, limit)])
        settled = max(settled, limit)
        self._preceding = text[max(0, settled - self._pattern.span) : settled]
        self._pending = text[settled:]
        return "".join(shown)


def _compile_keywords(keywords: Sequence[str]) -> Pattern:
    """Compile whole words, in any case; a space matches any white space."""
    expressions = [_WORD_GAP.join(map(re.escape, keyword.split())) for keyword in sorted(keywords, key=len, reverse=True)]
    bounded = [
        expression
        if _UNSPACED_SCRIPTS.search(expression)
        else rf"{_WORD_START}{expression}(?!\w)"  # no boundary marks the end of a word there
        for expression in expressions
    ]
    compiled = re.compile("|".join(bounded), re.I)
    span = max(len(keyword) + 7 * (len(keyword.split()) - 1) for keyword in keywords) + 6  # as many as _WORD_START looks back
    return Pattern(lambda text, begin, _: compiled.finditer(text, begin), span)


def _compile_expression(expression: str, span: int, place: str) -> Pattern:
    # Its searches have a time limit. Those of the standard library have none, and cannot be stopped.
    regex: Any = import_module("regex")
    try:
        compiled = regex.compile(expression)
    except regex.error as error:
        raise ConfigError(place, f"is not a regular expression: {error}") from error
    if compiled.match("") is not None:
        raise ConfigError(place, "matches the empty text, and so every text; write a pattern for the forbidden text")

    def find(text: str, begin: int, timeout_s: float) -> Iterator[Match]:
        matches: Iterator[Match] = compiled.finditer(text, begin, timeout=timeout_s, concurrent=True)
        return matches

    return Pattern(find, span)
