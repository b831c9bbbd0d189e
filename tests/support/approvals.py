"""An LLMAgent with tools that need an approval, and the people who decide: who asks, and who approves."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from spade_coreason import AgentDefinition, AgentTester, Peers
from spade_coreason.domain.policy import Policy
from spade_coreason.domain.questions import ApprovalPolicy
from spade_coreason.llm import LLMAgent, tool
from spade_coreason.memory import Usage
from spade_coreason.testing import FakeModel

ASKER, APPROVER, STRANGER = "tester@localhost", "fred@localhost", "mallory@localhost"
CODE = re.compile(r"^Write /approve ([A-Z0-9]{6})", re.MULTILINE)
POLICY = Policy(approvals=ApprovalPolicy(groups={"finance": (APPROVER,)}, operators=(APPROVER,)))


class Desk:
    """The tools of a desk. `calls` records their calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.usage: Usage | None = None

    @tool(risk="critical")
    def refund(self, order: str, amount: int, note: str = "") -> str:
        """Refund an order."""
        self.calls.append(("refund", order, amount))
        return f"refunded {amount}"

    @tool(risk="critical")
    def close(self, order: str) -> str:
        """Close an order."""
        self.calls.append(("close", order))
        return "closed"

    def look_up(self, order: str) -> str:
        """Look up an order."""
        self.calls.append(("look_up", order))
        return "paid 30"


@asynccontextmanager
async def run_desk(
    model: FakeModel, desk: Desk, *, tools: tuple[Any, ...] = (), policy: Policy = POLICY, **options: Any
) -> AsyncIterator[AgentTester]:
    """Run an LLMAgent with the tools of a desk, and more of them. `options` are those of the agent."""
    given = {"approvals": {"approvers": "finance"}, "show_tools": False, **options}
    peers = given.pop("peers", None)
    definition = given.pop("definition", None) or AgentDefinition.simple("desk")

    def make(peers: Peers | None = None, usage: Usage | None = None) -> LLMAgent:
        desk.usage = usage
        own = (desk.refund, desk.close, desk.look_up)
        return LLMAgent(definition, peers=peers, usage=usage, tools=[*own, *tools], **given)

    async with AgentTester(make, model={"agent": model}, policy=policy, peers=peers) as t:
        yield t


async def read_question(t: AgentTester, person: str = APPROVER) -> tuple[str, str]:
    """Wait for the next text that a person gets, which asks for an approval. Return it and its code."""
    text = (await t.message(person)).text or ""
    [code] = CODE.findall(text)
    return text, code
