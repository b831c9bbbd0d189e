"""The guardrails of an agent in one turn: on its input, on the results of tools, and on the answers of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ...contracts import AgentRequest, ResponseHandler
from ...domain.texts.translation import translate
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
    """Compile guardrails as declared. ConfigError names the key."""
    compiled = []
    for number, guardrail in enumerate(parse_guardrails(require_list(specs, place), place, are_for_output=are_for_output)):
        path = f"{place}[{number}]"
        compiled.append(CompiledGuardrail(resolve_function(guardrail, path), compile_patterns(guardrail, path)))
    return compiled


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
        """True if a guardrail checks requests."""
        return bool(self._guardrails_for("input"))

    async def filter_input(self, text: str) -> str:
        """Return the request as the model may see it. WithheldError if it may not."""
        return await self._apply(self._guardrails_for("input"), text, "input")

    async def filter_nickname(self, name: str) -> str:
        """Return the sender's name in a room as the model may see it. Only `keywords` and `regex` check it."""
        return await self._apply([compiled for compiled in self._guardrails_for("input") if compiled.patterns], name, "name")

    async def filter_tool_result(self, text: str) -> str:
        """Return the result of a tool as the model may see it, or an error if it is withheld."""
        guardrails = self._guardrails_for("tool")
        try:
            return await self._apply(guardrails, unescape_json(text), "tool") if guardrails else text
        except WithheldError as error:
            return f"error: {error.text}"

    async def filter_passages(self, passages: Sequence[str]) -> list[str]:
        """Return recalled passages as the model may see them, checked like results of tools. Withheld ones are dropped."""
        guardrails, passed = self._guardrails_for("tool"), []
        for passage in passages:
            with suppress(WithheldError):
                passed.append(await self._apply(guardrails, passage, "tool"))
        return passed

    async def filter_tool_call(self, call: ToolCall) -> None:
        """Change the arguments of a call to those that are allowed, or refuse the call."""
        guardrails = self._guardrails_for("call")
        if not guardrails or not isinstance(call.parsed_arguments, dict):
            return
        try:
            call.arguments = await self._apply(guardrails, unescape_json(call.arguments), "call")
        except WithheldError as error:
            call.refusal = error.text
        else:
            if not isinstance(call.parsed_arguments, dict):  # the replacement is no JSON object
                call.refusal = WITHHELD

    def build_reply_chain(self) -> FilterChain:
        """Build the filters of one completion."""
        return self._build_chain("output")

    def build_reasoning_chain(self) -> FilterChain | None:
        """Build the filters of its reasoning. None if a check needs the whole answer: then no reasoning is shown."""
        if not all(compiled.patterns for compiled in self._guardrails_for("output")):
            return None
        return self._build_chain("reasoning")

    def _guardrails_for(self, stage: Stage) -> list[CompiledGuardrail]:
        return [
            compiled for compiled in (*self._input_guardrails, *self._output_guardrails) if stage in compiled.guardrail.stages
        ]

    def _build_chain(self, stage: Stage) -> FilterChain:
        return FilterChain(
            [
                filter_
                for compiled in self._guardrails_for("output")
                for filter_ in build_filters(compiled, self._decisions, stage)
            ]
        )

    async def _apply(self, guardrails: Sequence[CompiledGuardrail], text: str, stage: Stage) -> str:
        for compiled in guardrails:
            if compiled.guardrail.action == "redact":
                chain = FilterChain(build_filters(compiled, self._decisions, stage))
                text = await chain.feed(text) + await chain.end()
            else:
                text = await self._decisions.apply(compiled, text, stage)
        return text


class AgentGuardrails:
    """The input and output guardrails of an agent. ConfigError names the key (options.…) of a wrong one."""

    def __init__(
        self, input_guardrails: Sequence[GuardrailSpec], output_guardrails: Sequence[GuardrailSpec], checks: GuardrailChecks
    ) -> None:
        self._input_guardrails = compile_guardrails(input_guardrails, "options.input_guardrails")
        self._output_guardrails = compile_guardrails(output_guardrails, "options.output_guardrails", are_for_output=True)
        self._checks = checks

    def for_turn(self, agent: str, response: ResponseHandler, meter: BudgetMeter) -> TurnGuard:
        """Build the guard of one turn. `agent` is the actor in the audit trail."""
        return TurnGuard(
            self._input_guardrails, self._output_guardrails, GuardrailDecisions(agent, self._checks, response, meter)
        )


async def check_input(request: AgentRequest, response: ResponseHandler, guard: TurnGuard, meter: BudgetMeter) -> bool:
    """Return True if the guardrails let a request through, else tell the sender.

    The payload and the nickname are recorded with the turn, even if it fails. Until they pass, they contain nothing of the
    request; afterwards they contain the text as the guardrails let it through. BudgetExceededError if a budget is used up.
    """
    payload, text, name = dict(request.payload), input_text(request), request.metadata.get("nickname")
    if guard.has_input_guardrails:
        _replace_input(request, {"query": _WITHHELD_INPUT}, name and _WITHHELD_NICKNAME)
    await meter.check()
    try:
        passed = await guard.filter_input(text)
        passed_name = await guard.filter_nickname(name) if name else None
    except WithheldError as error:
        await response.markdown(translate(error.text))
        return False
    if guard.has_input_guardrails:
        _replace_input(request, payload if passed == text else {"query": passed}, passed_name)
    return True


def _replace_input(request: AgentRequest, payload: Mapping[str, Any], nickname: str | None) -> None:
    request.payload.clear()
    request.payload.update(payload)
    if nickname:
        request.metadata["nickname"] = nickname
