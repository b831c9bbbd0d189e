"""The filters that an answer passes on its way to the person, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from .decisions import CompiledGuardrail, GuardrailDecisions
from .declaration import Guardrail, Stage
from .patterns import Pattern, PatternFilter

_REDACTED = "[removed]"


class Filter(Protocol):
    """A filter of a text in pieces. It returns the part that may be shown, or raises WithheldError."""

    async def feed(self, piece: str) -> str: ...

    async def end(self) -> str: ...


class FilterChain:
    """Filters, one after the other."""

    def __init__(self, filters: Sequence[Filter]) -> None:
        self._filters = filters

    async def feed(self, piece: str) -> str:
        """Add a piece, and return the text that can be shown now."""
        for filter_ in self._filters:
            if not piece:
                break
            piece = await filter_.feed(piece)
        return piece

    async def end(self) -> str:
        """Return the rest of the text."""
        rest = ""
        for filter_ in self._filters:
            rest = (await filter_.feed(rest) if rest else "") + await filter_.end()
        return rest


def build_filters(compiled: CompiledGuardrail, decisions: GuardrailDecisions, stage: Stage) -> list[Filter]:
    """Build the filters of one guardrail."""
    if compiled.patterns:
        return [RedactingFilter(decisions, compiled.guardrail, pattern, stage) for pattern in compiled.patterns]
    return [WholeTextFilter(decisions, compiled, stage)]


class _MatchFoundError(Exception):
    """A match was found, and has no replacement."""


class RedactingFilter:
    """Redact matches, or withhold the whole text."""

    def __init__(self, decisions: GuardrailDecisions, guardrail: Guardrail, pattern: Pattern, stage: Stage) -> None:
        self._decisions = decisions
        self._guardrail = guardrail
        self._stage = stage
        self._has_matched = self._is_bypassed = False
        self._filter = PatternFilter(pattern, self._on_match)

    async def feed(self, piece: str) -> str:
        if self._is_bypassed:
            return piece
        self._filter.feed(piece)
        return await self._release(self._filter.release)

    async def end(self) -> str:
        return "" if self._is_bypassed else await self._release(partial(self._filter.release, is_whole=True))

    async def _release(self, search: Callable[[float], str]) -> str:
        had_matched = self._has_matched
        try:
            shown = await self._decisions.checks.search(search)
        except _MatchFoundError:
            await self._decisions.audit(self._guardrail, self._stage, self._guardrail.action)
            self._decisions.withhold(self._guardrail, self._stage)
        except (TimeoutError, RuntimeError) as error:  # it backtracks without end, or no thread is free
            await self._decisions.handle_failure(self._guardrail, self._stage, error)
            self._is_bypassed = True
            return self._filter.flush()
        if self._has_matched and not had_matched:
            await self._decisions.audit(self._guardrail, self._stage, "redact")
        return shown

    def _on_match(self) -> str:
        if self._guardrail.action != "redact":
            raise _MatchFoundError
        self._has_matched = True
        return _REDACTED if self._guardrail.replacement is None else self._guardrail.replacement


class WholeTextFilter:
    """Hold a text back until it is complete."""

    def __init__(self, decisions: GuardrailDecisions, compiled: CompiledGuardrail, stage: Stage) -> None:
        self._decisions = decisions
        self._compiled = compiled
        self._stage = stage
        self._pieces: list[str] = []

    async def feed(self, piece: str) -> str:
        self._pieces.append(piece)
        return ""

    async def end(self) -> str:
        text = "".join(self._pieces)
        return await self._decisions.apply(self._compiled, text, self._stage) if text.strip() else text
