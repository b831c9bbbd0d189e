"""The guardrails of an agent at work in one turn: on what is asked, on what tools give, and on what the model says."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ...contracts import ResponseHandler
from ..budget import Purse
from ..model.reply import ToolCall
from ..options import listed
from ..structured import unescaped
from .checks import Checks, with_function
from .decisions import KEPT_BACK, Armed, Decisions, Withheld
from .declaration import Given, Stage, guardrails_of
from .filters import Chain, filters_of
from .patterns import patterns_of


def armed(given: Sequence[Given], place: str, *, are_of_output: bool = False) -> list[Armed]:
    """Guardrails as declared, ready; ConfigError names the key."""
    found = []
    for number, one in enumerate(guardrails_of(listed(given, place), place, are_of_output=are_of_output)):
        at = f"{place}[{number}]"
        found.append(Armed(with_function(one, at), patterns_of(one, at)))
    return found


class Guard:
    """The guardrails of one turn."""

    def __init__(self, of_input: Sequence[Armed], of_output: Sequence[Armed], decisions: Decisions) -> None:
        self._of_input = of_input
        self._of_output = of_output
        self._decisions = decisions

    @property
    def is_at_input(self) -> bool:
        """Whether any looks at what is asked."""
        return bool(self._at("input"))

    async def asked(self, text: str) -> str:
        """What is asked, as it may be shown to the model. Withheld where it may not."""
        return await self._let_through(self._at("input"), text, "input")

    async def named(self, name: str) -> str:
        """What whoever asks is called in a room, likewise; it passes `keywords` and `regex`."""
        return await self._let_through([one for one in self._at("input") if one.patterns], name, "name")

    async def given(self, text: str) -> str:
        """What a tool gave, likewise; one that is kept back says so."""
        rules = self._at("tool")
        try:
            return await self._let_through(rules, unescaped(text), "tool") if rules else text
        except Withheld as error:
            return f"error: {error.text}"

    async def found(self, passages: Sequence[str]) -> list[str]:
        """What was found for the question, as if a tool had; those that are kept back are left out."""
        rules, passed = self._at("tool"), []
        for passage in passages:
            with suppress(Withheld):
                passed.append(await self._let_through(rules, passage, "tool"))
        return passed

    async def called(self, call: ToolCall) -> None:
        """Changes what a tool is called with to what may be; a call that may not be is refused."""
        rules = self._at("call")
        if not rules or not isinstance(call.parsed, dict):
            return
        try:
            call.arguments = await self._let_through(rules, unescaped(call.arguments), "call")
        except Withheld as error:
            call.refusal = error.text
        else:
            if not isinstance(call.parsed, dict):  # what was put in its place is no argument of a tool
                call.refusal = KEPT_BACK

    def answer(self) -> Chain:
        """For one reply of the model."""
        return self._chain("output")

    def reasoning(self) -> Chain | None:
        """For its reasoning, of which nothing is shown where a check needs the whole answer."""
        if any(not one.patterns and one.guardrail.action != "warn" for one in self._at("output")):
            return None
        return self._chain("reasoning")

    def _at(self, stage: Stage) -> list[Armed]:
        return [one for one in (*self._of_input, *self._of_output) if stage in one.guardrail.stages]

    def _chain(self, stage: Stage) -> Chain:
        return Chain([one for rule in self._at("output") for one in filters_of(rule, self._decisions, stage)])

    async def _let_through(self, rules: Sequence[Armed], text: str, stage: Stage) -> str:
        for one in rules:
            if one.guardrail.action == "redact":
                chain = Chain(filters_of(one, self._decisions, stage))
                text = await chain.feed(text) + await chain.end()
            else:
                text = await self._decisions.checked(one, text, stage)
        return text


class Guards:
    """The guardrails of an agent, of its input and of its output; ConfigError names the key (options.…) of a wrong one."""

    def __init__(self, of_input: Sequence[Given], of_output: Sequence[Given], checks: Checks) -> None:
        self._of_input = armed(of_input, "options.input_guardrails")
        self._of_output = armed(of_output, "options.output_guardrails", are_of_output=True)
        self._checks = checks

    def in_turn(self, agent: str, response: ResponseHandler, purse: Purse) -> Guard:
        """What guards one turn of the agent called so."""
        return Guard(self._of_input, self._of_output, Decisions(agent, self._checks, response, purse))
