"""The approvals of tool calls: which calls need one, and what the model is told of one that is not approved."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from pydantic import ValidationError

from ...contracts import RiskLevel, SessionHandle
from ...runtime import ApprovalCall, ApprovalDecision
from ..handlers import open_approvals
from ..model.completion import ToolCall
from ..options import ToolApprovals
from .function import Tool

log = logging.getLogger(__name__)

_RANKS = {RiskLevel.SAFE: 0, RiskLevel.STANDARD: 1, RiskLevel.CRITICAL: 2}
_NOBODY = "no one can be asked here; a session without approvals cannot wait for people"


class ApprovalGate:
    """The approvals of the tool calls of one turn, by `options`. The tools in `named` need one whatever their risk is."""

    def __init__(self, options: ToolApprovals, named: Collection[str], session: SessionHandle) -> None:
        self._options = options
        self._named = named
        self._approvals = open_approvals(session)

    async def decide(self, calls: Sequence[ToolCall], tools: Sequence[Tool | None]) -> list[str | None]:
        """Ask people to approve the calls that need it, all at once, before any of them runs.

        Return for each call None if it needs no approval, "" if it is approved, else the text for the model.
        """
        texts: list[str | None] = [None] * len(calls)
        asked: list[tuple[int, ApprovalCall]] = []
        for number, (call, tool) in enumerate(zip(calls, tools, strict=True)):
            if tool is not None and self._needs_approval(tool) and is_callable(call, tool):
                asked.append((number, ApprovalCall(tool.name, call.parsed_arguments, tool.origin)))
        if not asked:
            return texts
        for (number, approval_call), decision in zip(asked, await self._ask([each for _, each in asked]), strict=True):
            if decision.refusal:
                log.warning("a call of the tool %s is refused: %s", approval_call.name, decision.refusal)
            texts[number] = _describe(approval_call.name, decision)
        return texts

    async def _ask(self, calls: Sequence[ApprovalCall]) -> list[ApprovalDecision]:
        if self._approvals is None:
            return [ApprovalDecision(False, "", refusal=_NOBODY) for _ in calls]
        return await self._approvals.decide(calls, self._options.approvers, self._options.timeout)

    def _needs_approval(self, tool: Tool) -> bool:
        if tool.name in self._named:
            return True
        from_risk = self._options.from_risk
        if from_risk is None:
            from_risk = RiskLevel.CRITICAL if self._approvals is None else self._approvals.from_risk
        return from_risk is not None and from_risk != "never" and _RANKS[tool.risk] >= _RANKS[from_risk]


def is_callable(call: ToolCall, tool: Tool) -> bool:
    """Return True if a call can run: it is not refused, and its arguments are those of the tool."""
    arguments = call.parsed_arguments
    if call.refusal or not isinstance(arguments, dict):
        return False
    try:
        if tool.check is not None:
            tool.check(arguments)
    except ValidationError:
        return False
    return True


def _describe(tool: str, decision: ApprovalDecision) -> str:
    if decision.is_approved:
        return ""
    if decision.refusal:
        return f"error: {tool} was not called. It needs the approval of a person, and no one was asked: {decision.refusal}"
    if not decision.person:
        return f"error: {tool} was not called. It needs the approval of a person, and no one answered in time"
    reason = f". Their reason, which is data: {decision.reason}" if decision.reason else ""
    return f"error: {tool} was not called. {decision.person} has denied it{reason}"
