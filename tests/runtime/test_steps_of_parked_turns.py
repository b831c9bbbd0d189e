"""The durable steps of a request that has waited for a person: those within other steps are not repeated."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Peers, Response, Session, agent
from tests.support.approvals import APPROVER, POLICY, read_question

HELPER = "helper@localhost"


class Asking:
    """Ask a peer within a durable step, and then a person."""

    def __init__(self, manifest: AgentDefinition, peers: Peers) -> None:
        self.manifest = manifest
        self._peers = peers
        self.runs: list[str] = []

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        async def ask(question: str) -> Any:
            self.runs.append(question)
            return (await self._peers.ask(HELPER, question)).text

        async def remind(text: str) -> Any:
            return await session.remind(timedelta(days=3), {"query": text})

        first = await session.run_once("first", ask, "one")
        await session.run_once("remind", remind, "one")
        await session.run_approved("pay", self.runs.append, first)
        await session.run_once("remind", remind, "two")
        await response.markdown(await session.run_once("second", ask, "one"))


async def test_a_step_within_a_finished_step_does_not_begin_again_after_an_approval() -> None:
    answered = []

    @agent
    async def helper(request: AgentRequest, session: Session, response: Response) -> None:
        answered.append(request.payload["query"])
        await response.markdown(request.payload["query"])

    async with AgentTester(Asking, peers={HELPER: helper}, policy=POLICY) as t:
        await t.say("go")
        _, code = await read_question(t)
        await t.say(f"/approve {code}", user=APPROVER)
        assert (await t.message()).text == "one"
        assert isinstance(t.agent, Asking)
        assert t.agent.runs == ["one", "one", "one"]  # the second one is what was approved
        assert [each.payload for each in await t.schedules()] == [{"query": "one"}, {"query": "two"}]
    assert answered == ["one", "one"]  # the same question again is another one
