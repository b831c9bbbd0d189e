"""The guardrails of an agent at work in one turn: on what is asked, on what tools give, and on what the model says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ...contracts import AgentRequest, ResponseHandler
from ..budget import BudgetMeter
from ..model.completion import ToolCall
from ..options import require_list
from ..prompts import input_text
from ..structured import unescape_json
from .checks import GuardrailChecks, resolve_function
from .decisions import WITHHELD, CompiledGuardrail, GuardrailDecisions, WithheldError
from .declaration import GuardrailSpec, Stage, parse_guardrails
from .filters import FilterChain, build_filters
from .patterns import compile_patterns

_WITHHELD_INPUT = "(A message that was kept back.)"
_WITHHELD_NICKNAME = "somebody"


def compile_guardrails(specs: Sequence[GuardrailSpec], place: str, *, are_for_output: bool = False) -> list[CompiledGuardrail]:
    """Guardrails as declared, ready; ConfigError names the key."""
    found = []
    for number, one in enumerate(parse_guardrails(require_list(specs, place), place, are_for_output=are_for_output)):
        at = f"{place}[{number}]"
        found.append(CompiledGuardrail(resolve_function(one, at), compile_patterns(one, at)))
    return found


class TurnGuard:
    """The guardrails of one turn."""

    def __init__(
        self,
        input_guardrails: Sequence[CompiledGuardrail],
        output_guardrails: Sequence[CompiledGuardrail],
        decisions: GuardrailDecisions,
    ) -> None:
        self._input_guardrails = input_guardrails
        self._output_guardrails = output_guardrails
        self._decisions = decisions

    @property
    def has_input_guardrails(self) -> bool:
        """Whether any looks at what is asked."""
        return bool(self._guardrails_for("input"))

    async def filter_input(self, text: str) -> str:
        """What is asked, as it may be shown to the model. Withheld where it may not."""
        return await self._apply(self._guardrails_for("input"), text, "input")

    async def filter_nickname(self, name: str) -> str:
        """What whoever asks is called in a room, likewise; it passes `keywords` and `regex`."""
        return await self._apply([one for one in self._guardrails_for("input") if one.patterns], name, "name")

    async def filter_tool_result(self, text: str) -> str:
        """What a tool gave, likewise; one that is kept back says so."""
        rules = self._guardrails_for("tool")
        try:
            return await self._apply(rules, unescape_json(text), "tool") if rules else text
        except WithheldError as error:
            return f"error: {error.text}"

    async def filter_passages(self, passages: Sequence[str]) -> list[str]:
        """What was found for the question, as if a tool had; those that are kept back are left out."""
        rules, passed = self._guardrails_for("tool"), []
        for passage in passages:
            with suppress(WithheldError):
                passed.append(await self._apply(rules, passage, "tool"))
        return passed

    async def filter_tool_call(self, call: ToolCall) -> None:
        """Changes what a tool is called with to what may be; a call that may not be is refused."""
        rules = self._guardrails_for("call")
        if not rules or not isinstance(call.parsed_arguments, dict):
            return
        try:
            call.arguments = await self._apply(rules, unescape_json(call.arguments), "call")
        except WithheldError as error:
            call.refusal = error.text
        else:
            if not isinstance(call.parsed_arguments, dict):  # what was put in its place is no argument of a tool
                call.refusal = WITHHELD

    def build_reply_chain(self) -> FilterChain:
        """For one reply of the model."""
        return self._build_chain("output")

    def build_reasoning_chain(self) -> FilterChain | None:
        """For its reasoning, of which nothing is shown where a check needs the whole answer."""
        if any(not one.patterns and one.guardrail.action != "warn" for one in self._guardrails_for("output")):
            return None
        return self._build_chain("reasoning")

    def _guardrails_for(self, stage: Stage) -> list[CompiledGuardrail]:
        return [one for one in (*self._input_guardrails, *self._output_guardrails) if stage in one.guardrail.stages]

    def _build_chain(self, stage: Stage) -> FilterChain:
        return FilterChain(
            [one for rule in self._guardrails_for("output") for one in build_filters(rule, self._decisions, stage)]
        )

    async def _apply(self, guardrails: Sequence[CompiledGuardrail], text: str, stage: Stage) -> str:
        for one in guardrails:
            if one.guardrail.action == "redact":
                chain = FilterChain(build_filters(one, self._decisions, stage))
                text = await chain.feed(text) + await chain.end()
            else:
                text = await self._decisions.apply(one, text, stage)
        return text


class AgentGuardrails:
    """The guardrails of an agent, of its input and of its output; ConfigError names the key (options.…) of a wrong one."""

    def __init__(
        self, input_guardrails: Sequence[GuardrailSpec], output_guardrails: Sequence[GuardrailSpec], checks: GuardrailChecks
    ) -> None:
        self._input_guardrails = compile_guardrails(input_guardrails, "options.input_guardrails")
        self._output_guardrails = compile_guardrails(output_guardrails, "options.output_guardrails", are_for_output=True)
        self._checks = checks

    def for_turn(self, agent: str, response: ResponseHandler, meter: BudgetMeter) -> TurnGuard:
        """What guards one turn of the agent called so."""
        return TurnGuard(
            self._input_guardrails, self._output_guardrails, GuardrailDecisions(agent, self._checks, response, meter)
        )


async def check_input(request: AgentRequest, response: ResponseHandler, guard: TurnGuard, meter: BudgetMeter) -> bool:
    """Whether the guardrails let it through; who is refused hears so here. BudgetUsedUp where nothing may be asked any more.

    Payload and nickname are recorded with the turn, however it ends: until it is let through they have nothing of what is
    asked, and then what the guardrails made of it.
    """
    asked, text, name = dict(request.payload), input_text(request), request.metadata.get("nickname")
    if guard.has_input_guardrails:
        _replace_input(request, {"query": _WITHHELD_INPUT}, name and _WITHHELD_NICKNAME)
    await meter.check()
    try:
        passed = await guard.filter_input(text)
        passed_name = await guard.filter_nickname(name) if name else None
    except WithheldError as error:
        await response.markdown(error.text)
        return False
    if guard.has_input_guardrails:
        _replace_input(request, asked if passed == text else {"query": passed}, passed_name)
    return True


def _replace_input(request: AgentRequest, payload: Mapping[str, Any], nickname: str | None) -> None:
    request.payload.clear()
    request.payload.update(payload)
    if nickname:
        request.metadata["nickname"] = nickname
