"""The decisions about texts that fail a guardrail, and their audit trail."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, NoReturn

from ...contracts import ResponseHandler
from ...domain.texts.translation import N_
from ...exceptions import CoReasonError
from ..budget import BudgetExceededError, BudgetMeter
from .checks import GuardrailChecks
from .declaration import Guardrail, Stage
from .patterns import Pattern

log = logging.getLogger(__name__)

WITHHELD = N_("withheld by a guardrail")
NO_ANSWER = N_("I cannot give this answer.")
_MESSAGE_BY_STAGE: Mapping[Stage, str] = {
    "input": N_("I cannot accept this message."),
    "name": N_("I cannot accept this message."),
    "tool": WITHHELD,
    "output": NO_ANSWER,
    "call": WITHHELD,
    "reasoning": "",
}
_CHECK_FAILED = N_("I could not check this, so I do not send it. Please try again later.")


class WithheldError(CoReasonError):
    """A text is withheld; `text` is sent instead."""

    def __init__(self, guardrail: str, text: str) -> None:
        super().__init__(f"kept back by the guardrail {guardrail}")
        self.guardrail = guardrail
        self.text = text


class CompiledGuardrail(NamedTuple):
    """A guardrail ready for use: its function found, its patterns compiled."""

    guardrail: Guardrail
    patterns: Sequence[Pattern]


class GuardrailDecisions:
    """The decisions of one turn. Each is audited, without a word of the text, unless the text simply passes."""

    def __init__(self, agent: str, checks: GuardrailChecks, response: ResponseHandler, meter: BudgetMeter) -> None:
        self._agent = agent
        self.checks = checks
        self._response = response
        self._meter = meter

    async def apply(self, compiled: CompiledGuardrail, text: str, stage: Stage) -> str:
        """Apply a guardrail that does not redact to a whole text, and return the text that may be used."""
        guardrail = compiled.guardrail
        try:
            if compiled.patterns:
                verdict: bool | str = not await self.checks.search(partial(_has_match, compiled.patterns, text))
            else:
                verdict = await self.checks.evaluate(guardrail, text, self._meter)
        except BudgetExceededError:
            raise
        except Exception as error:  # noqa: BLE001 - a check is foreign code, or a model
            await self.handle_failure(guardrail, stage, error)
            return text
        if verdict is True or verdict == text:
            return text
        if isinstance(verdict, str):
            await self.audit(guardrail, stage, "replace")
            return verdict
        await self.audit(guardrail, stage, guardrail.action)
        if guardrail.action == "block":
            self.withhold(guardrail, stage)
        return guardrail.replacement or ""

    def withhold(self, guardrail: Guardrail, stage: Stage) -> NoReturn:
        """Raise WithheldError with the text that the guardrail sends instead."""
        message = guardrail.replacement if guardrail.action == "replace" else guardrail.message
        raise WithheldError(guardrail.name, message or _MESSAGE_BY_STAGE[stage])

    async def handle_failure(self, guardrail: Guardrail, stage: Stage, error: Exception) -> None:
        """Audit a check that failed. WithheldError, unless the guardrail lets texts through in that case."""
        log.warning("%s: the guardrail %s failed: %s", self._agent, guardrail.name, type(error).__name__)
        log.debug("%s: the guardrail %s failed", self._agent, guardrail.name, exc_info=error)
        await self._response.audit(self._agent, f"guardrail.{guardrail.on_error}", f"{stage}: {guardrail.name}", False)
        if guardrail.on_error == "block":
            raise WithheldError(guardrail.name, _CHECK_FAILED) from error

    async def audit(self, guardrail: Guardrail, stage: Stage, decision: str) -> None:
        """Record a decision."""
        await self._response.audit(self._agent, f"guardrail.{decision}", f"{stage}: {guardrail.name}", True)


def _has_match(patterns: Sequence[Pattern], text: str, timeout_s: float) -> bool:
    return any(match.start() < match.end() for pattern in patterns for match in pattern.find(text, 0, timeout_s))
