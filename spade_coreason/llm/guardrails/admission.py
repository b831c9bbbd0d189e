"""Whether something may be asked, and what of it: to the model and to the record comes what the guardrails let through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...contracts import AgentRequest, ResponseHandler
from ..budget import BudgetMeter
from ..prompts import input_text
from .decisions import WithheldError
from .guard import TurnGuard

_WITHHELD_INPUT = "(A message that was kept back.)"
_WITHHELD_NICKNAME = "somebody"


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
