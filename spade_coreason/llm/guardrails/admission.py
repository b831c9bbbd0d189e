"""Whether something may be asked, and what of it: to the model and to the record comes what the guardrails let through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...contracts import AgentRequest, ResponseHandler
from ..budget import Purse
from ..prompts import question_text
from .decisions import Withheld
from .guard import Guard

_KEPT_BACK = "(A message that was kept back.)"
_SOMEBODY = "somebody"


async def admitted(request: AgentRequest, response: ResponseHandler, guard: Guard, purse: Purse) -> bool:
    """Whether the guardrails let it through; who is refused hears so here. BudgetUsedUp where nothing may be asked any more.

    Payload and nickname are recorded with the turn, however it ends: until it is let through they have nothing of what is
    asked, and then what the guardrails made of it.
    """
    asked, text, name = dict(request.payload), question_text(request), request.metadata.get("nickname")
    if guard.is_at_input:
        _put(request, {"query": _KEPT_BACK}, name and _SOMEBODY)
    await purse.check()
    try:
        passed = await guard.asked(text)
        passed_name = await guard.named(name) if name else None
    except Withheld as error:
        await response.markdown(error.text)
        return False
    if guard.is_at_input:
        _put(request, asked if passed == text else {"query": passed}, passed_name)
    return True


def _put(request: AgentRequest, payload: Mapping[str, Any], nickname: str | None) -> None:
    request.payload.clear()
    request.payload.update(payload)
    if nickname:
        request.metadata["nickname"] = nickname
