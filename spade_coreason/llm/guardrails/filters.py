"""What an answer runs through on its way to the person, piece by piece, where there are guardrails."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from .decisions import Armed, Decisions
from .declaration import Guardrail, Stage
from .patterns import Pattern, PatternFilter

_REDACTED = "[removed]"
_SENTENCE = re.compile(r"[.!?…][\"'”’)\]]*\s|[。！？\n]")


class Filter(Protocol):
    """Takes a text in pieces, and gives what may be shown of it. Withheld where none of it may."""

    async def feed(self, piece: str) -> str: ...

    async def end(self) -> str: ...


class Chain:
    """Filters one after the other."""

    def __init__(self, filters: Sequence[Filter]) -> None:
        self._filters = filters

    async def feed(self, piece: str) -> str:
        """What can be shown now."""
        for one in self._filters:
            if not piece:
                break
            piece = await one.feed(piece)
        return piece

    async def end(self) -> str:
        """What was held back."""
        rest = ""
        for one in self._filters:
            rest = (await one.feed(rest) if rest else "") + await one.end()
        return rest


def filters_of(armed: Armed, decisions: Decisions, stage: Stage) -> list[Filter]:
    """Those of one guardrail."""
    guardrail = armed.guardrail
    if guardrail.action == "warn":
        return [Watched(decisions, armed, stage)]
    if armed.patterns:
        return [Searched(decisions, guardrail, pattern, stage) for pattern in armed.patterns]
    return [BySentence(decisions, armed, stage) if guardrail.per == "sentence" else Whole(decisions, armed, stage)]


class _Found(Exception):
    """There is a match, and nothing takes its place."""


class Searched:
    """Redacts what matches, or keeps back all of a text with a match."""

    def __init__(self, decisions: Decisions, guardrail: Guardrail, pattern: Pattern, stage: Stage) -> None:
        self._decisions = decisions
        self._guardrail = guardrail
        self._stage = stage
        self._has_matched = self._is_open = False
        self._filter = PatternFilter(pattern, self._match)

    async def feed(self, piece: str) -> str:
        if self._is_open:
            return piece
        self._filter.feed(piece)
        return await self._shown(self._filter.shown)

    async def end(self) -> str:
        return "" if self._is_open else await self._shown(partial(self._filter.shown, is_whole=True))

    async def _shown(self, look: Callable[[float], str]) -> str:
        had_matched = self._has_matched
        try:
            shown = await self._decisions.checks.search(look)
        except _Found:
            await self._decisions.audit(self._guardrail, self._stage, self._guardrail.action)
            self._decisions.withhold(self._guardrail, self._stage)
        except (TimeoutError, RuntimeError) as error:  # it goes back and forth without end, or there is no thread for it
            await self._decisions.failed(self._guardrail, self._stage, error)
            self._is_open = True
            return self._filter.give_up()
        if self._has_matched and not had_matched:
            await self._decisions.audit(self._guardrail, self._stage, "redact")
        return shown

    def _match(self) -> str:
        if self._guardrail.action != "redact":
            raise _Found
        self._has_matched = True
        return _REDACTED if self._guardrail.replacement is None else self._guardrail.replacement


class Whole:
    """Holds a text until there is all of it."""

    def __init__(self, decisions: Decisions, armed: Armed, stage: Stage) -> None:
        self._decisions = decisions
        self._armed = armed
        self._stage = stage
        self._pieces: list[str] = []

    async def feed(self, piece: str) -> str:
        self._pieces.append(piece)
        return ""

    async def end(self) -> str:
        text = "".join(self._pieces)
        return await self._decisions.checked(self._armed, text, self._stage) if text.strip() else text


class Watched(Whole):
    """Lets everything through, and looks at it at the end."""

    async def feed(self, piece: str) -> str:
        self._pieces.append(piece)
        return piece

    async def end(self) -> str:
        await super().end()
        return ""


class BySentence:
    """Holds a text until a sentence of it is complete, or a line."""

    def __init__(self, decisions: Decisions, armed: Armed, stage: Stage) -> None:
        self._decisions = decisions
        self._armed = armed
        self._stage = stage
        self._held = ""

    async def feed(self, piece: str) -> str:
        self._held += piece
        shown = ""
        while (match := _SENTENCE.search(self._held)) is not None:
            sentence, self._held = self._held[: match.end()], self._held[match.end() :]
            shown += await self._checked(sentence)
        return shown

    async def end(self) -> str:
        sentence, self._held = self._held, ""
        return await self._checked(sentence)

    async def _checked(self, sentence: str) -> str:
        text = sentence.rstrip()
        return await self._decisions.checked(self._armed, text, self._stage) + sentence[len(text) :] if text else sentence
