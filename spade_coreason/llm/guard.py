"""The guardrails of an agent at work in one turn: on what is asked, on what tools give, and on what the model says."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

from ..contracts import ResponseHandler
from ..exceptions import CoReasonError
from .checks import Checks, with_function
from .guardrails import Guardrail, guardrails_of
from .patterns import Pattern, PatternFilter, patterns_of
from .tally import Tally

log = logging.getLogger(__name__)

_REDACTED = "[removed]"
_MESSAGES = {
    "input": "I cannot take this message.",
    "tool": "kept back by a guardrail",
    "output": "I cannot give this answer.",
}
_UNCHECKED = "I could not check this, so I keep it back. Please try again later."
_SENTENCE = re.compile(r"[.!?…][\"'”’)\]]*\s|[。！？\n]")


class Withheld(CoReasonError):
    """A text is not let through; `text` is said instead."""

    def __init__(self, guardrail: str, text: str) -> None:
        super().__init__(f"kept back by the guardrail {guardrail}")
        self.guardrail = guardrail
        self.text = text


class Armed(NamedTuple):
    """A guardrail that is ready: its function found, its patterns compiled."""

    guardrail: Guardrail
    patterns: Sequence[Pattern]


def armed(given: Any, place: str, *, are_of_output: bool = False) -> list[Armed]:
    """Guardrails as declared, ready; ConfigError names the key."""
    found = []
    for number, one in enumerate(guardrails_of(given, place, are_of_output=are_of_output)):
        at = f"{place}[{number}]"
        found.append(Armed(with_function(one, at), patterns_of(one, at)))
    return found


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


class Guard:
    """The guardrails of one turn. Each decision but that a text passes is audited, without a word of it."""

    def __init__(
        self,
        agent: str,
        of_input: Sequence[Armed],
        of_output: Sequence[Armed],
        checks: Checks,
        response: ResponseHandler,
        tally: Tally,
    ) -> None:
        self._agent = agent
        self._of_input = of_input
        self._of_output = of_output
        self._checks = checks
        self._response = response
        self._tally = tally

    async def asked(self, text: str) -> str:
        """What is asked, as it may be shown to the model. Withheld where it may not."""
        return await self._let_through(text, "input")

    async def given(self, text: str) -> str:
        """What a tool gave, likewise; one that is kept back says so."""
        try:
            return await self._let_through(text, "tool")
        except Withheld as error:
            return f"error: {error.text}"

    def answer(self) -> Chain:
        """For one reply of the model."""
        return Chain([one for armed in self._of_output for one in self._filters(armed, "output")])

    def reasoning(self) -> Chain | None:
        """For its reasoning, of which nothing is shown where a check needs the whole answer."""
        if any(not one.patterns and one.guardrail.action != "warn" for one in self._of_output):
            return None
        return Chain([one for armed in self._of_output for one in self._filters(armed, "reasoning")])

    def _filters(self, armed: Armed, stage: str) -> list[Filter]:
        guardrail = armed.guardrail
        if guardrail.action == "warn":
            return [_Watched(self, armed, stage)]
        if armed.patterns:
            return [_Searched(self, guardrail, pattern, stage) for pattern in armed.patterns]
        return [_BySentence(self, armed, stage) if guardrail.per == "sentence" else _Whole(self, armed, stage)]

    async def _let_through(self, text: str, stage: str) -> str:
        for one in self._of_input:
            if stage in one.guardrail.stages:
                text = await self.checked(one, text, stage)
        return text

    async def checked(self, armed: Armed, text: str, stage: str) -> str:
        """A whole text as one guardrail lets it through."""
        guardrail = armed.guardrail
        if guardrail.action == "redact":
            chain = Chain([_Searched(self, guardrail, pattern, stage) for pattern in armed.patterns])
            return await chain.feed(text) + await chain.end()
        try:
            if armed.patterns:
                verdict: bool | str = not any(_is_in(pattern, text) for pattern in armed.patterns)
            else:
                verdict = await self._checks.verdict(guardrail, text, self._tally)
        except Exception as error:  # noqa: BLE001 - a check is somebody else's code, or a model
            await self.failed(guardrail, stage, error)
            return text
        if verdict is True or verdict == text:
            return text
        if isinstance(verdict, str) and guardrail.action != "warn":
            await self.audit(guardrail, stage, "replace")
            return verdict
        await self.audit(guardrail, stage, guardrail.action)
        if guardrail.action == "block":
            self.withhold(guardrail, stage)
        return text if guardrail.action == "warn" else guardrail.replacement or ""

    def withhold(self, guardrail: Guardrail, stage: str) -> NoReturn:
        """Says what the guardrail says instead."""
        message = guardrail.replacement if guardrail.action == "replace" else guardrail.message
        raise Withheld(guardrail.name, message or _MESSAGES.get(stage, ""))

    async def failed(self, guardrail: Guardrail, stage: str, error: Exception) -> None:
        """A check came to no verdict: Withheld, unless it lets through then."""
        log.warning("%s: the guardrail %s failed: %s", self._agent, guardrail.name, type(error).__name__)
        log.debug("%s: the guardrail %s failed", self._agent, guardrail.name, exc_info=error)
        await self._response.audit(self._agent, f"guardrail.{guardrail.on_error}", f"{stage}: {guardrail.name}", False)
        if guardrail.on_error == "block":
            raise Withheld(guardrail.name, _UNCHECKED) from error

    async def audit(self, guardrail: Guardrail, stage: str, what: str) -> None:
        """Records a decision."""
        if what == "warn":
            log.warning("%s: the guardrail %s warns of %s", self._agent, guardrail.name, stage)
        await self._response.audit(self._agent, f"guardrail.{what}", f"{stage}: {guardrail.name}", True)


class _Found(Exception):
    """There is a match, and nothing takes its place."""


class _Searched:
    """Redacts what matches, or keeps back all of a text with a match."""

    def __init__(self, guard: Guard, guardrail: Guardrail, pattern: Pattern, stage: str) -> None:
        self._guard = guard
        self._guardrail = guardrail
        self._stage = stage
        self._has_matched = self._is_open = False
        self._filter = PatternFilter(pattern, self._match)

    async def feed(self, piece: str) -> str:
        return piece if self._is_open else await self._shown(lambda: self._filter.feed(piece))

    async def end(self) -> str:
        return "" if self._is_open else await self._shown(self._filter.end)

    async def _shown(self, step: Callable[[], str]) -> str:
        had_matched = self._has_matched
        try:
            shown = step()
        except _Found:
            await self._guard.audit(self._guardrail, self._stage, self._guardrail.action)
            self._guard.withhold(self._guardrail, self._stage)
        except TimeoutError as error:  # the expression goes back and forth without end
            await self._guard.failed(self._guardrail, self._stage, error)
            self._is_open = True
            return self._filter.give_up()
        if self._has_matched and not had_matched:
            await self._guard.audit(self._guardrail, self._stage, "redact")
        return shown

    def _match(self) -> str:
        if self._guardrail.action != "redact":
            raise _Found
        self._has_matched = True
        return _REDACTED if self._guardrail.replacement is None else self._guardrail.replacement


class _Whole:
    """Holds a text until there is all of it."""

    def __init__(self, guard: Guard, armed: Armed, stage: str) -> None:
        self._guard = guard
        self._armed = armed
        self._stage = stage
        self._pieces: list[str] = []

    async def feed(self, piece: str) -> str:
        self._pieces.append(piece)
        return ""

    async def end(self) -> str:
        text = "".join(self._pieces)
        return await self._guard.checked(self._armed, text, self._stage) if text.strip() else text


class _Watched(_Whole):
    """Lets everything through, and looks at it at the end."""

    async def feed(self, piece: str) -> str:
        self._pieces.append(piece)
        return piece

    async def end(self) -> str:
        await super().end()
        return ""


class _BySentence:
    """Holds a text until a sentence of it is complete, or a line."""

    def __init__(self, guard: Guard, armed: Armed, stage: str) -> None:
        self._guard = guard
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
        return await self._guard.checked(self._armed, text, self._stage) + sentence[len(text) :] if text else sentence


def _is_in(pattern: Pattern, text: str) -> bool:
    return any(match.start() < match.end() for match in pattern.find(text, 0))
