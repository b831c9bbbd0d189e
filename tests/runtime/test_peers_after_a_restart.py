"""Asks of a turn that was interrupted: they go on where they were, and no peer runs twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from spade_coreason import AgentRequest, AgentTester, PeerAnswer, Peers, Response, Session, agent
from tests.support.wait import TIMEOUT_S

PEER = "peer@localhost"


class CountingPeer:
    """Answers each question with the number of its run. "wait" waits for a signal."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.is_waiting, self.may_answer = asyncio.Event(), asyncio.Event()

    def build(self) -> Any:
        @agent
        async def peer(request: AgentRequest, session: Session, response: Response) -> None:
            query = request.payload["query"]
            self.runs.append(query)
            if query == "wait":
                self.is_waiting.set()
                await self.may_answer.wait()
            await response.markdown(f"{query} {len(self.runs)}")
            await response.data({"run": len(self.runs)})

        return peer


class Asker:
    """Asks its questions one after the other, and then waits for a signal in the first run."""

    def __init__(self, *queries: str, together: bool = False) -> None:
        self.queries = queries
        self.together = together
        self.has_asked = asyncio.Event()

    def build(self) -> Any:
        @agent
        async def asker(request: AgentRequest, session: Session, response: Response, peers: Peers) -> None:
            if self.together:
                answers = await peers.gather([(PEER, query) for query in self.queries])
            else:
                answers = [await peers.ask(PEER, query) for query in self.queries]
            if not request.metadata.get("redelivered"):
                self.has_asked.set()
                await asyncio.Event().wait()
            for answer in answers:
                assert isinstance(answer, PeerAnswer)
                await response.markdown(f"{answer.text} {answer.data[0]['data']['run']}")

        return asker


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("waits_for_store", [True, False])
async def test_a_finished_ask_is_not_sent_again(waits_for_store: bool, together: bool) -> None:
    peer, asker = CountingPeer(), Asker("a", "b", "a", together=together)
    async with AgentTester(asker.build(), peers={PEER: peer.build()}) as t:
        asking = asyncio.create_task(t.ask("go", timeout=TIMEOUT_S))
        await asker.has_asked.wait()
        if waits_for_store:
            # a transaction, with which the steps are stored
            await t.runners[PEER].repository.save_variable("person", "x", "x", "1")
        await t.restart(grace_s=0)
        assert (await asking).text.split("\n\n") == ["a 1 1", "b 2 2", "a 3 3"]
        assert peer.runs == ["a", "b", "a"]
        assert [row.turns for row in await t.runners[PEER].repository.list_conversations()] == [3]


async def test_an_ask_that_was_under_way_is_attached_to_the_turn_that_runs_at_the_peer() -> None:
    peer, asker = CountingPeer(), Asker("a", "wait")
    async with AgentTester(asker.build(), peers={PEER: peer.build()}) as t:
        asking = asyncio.create_task(t.ask("go", timeout=TIMEOUT_S))
        await peer.is_waiting.wait()
        await t.restart(grace_s=0)
        peer.may_answer.set()
        assert (await asking).text.split("\n\n")[0] == "a 1 1"
        # The restart interrupted both agents: the peer began that one turn again.
        assert peer.runs == ["a", "wait", "wait"]


async def test_steps_of_asks_are_gone_with_the_end_of_their_turn() -> None:
    peer, asker = CountingPeer(), Asker("a")
    async with AgentTester(asker.build(), peers={PEER: peer.build()}) as t:
        asking = asyncio.create_task(t.ask("go", timeout=TIMEOUT_S))
        await asker.has_asked.wait()
        await t.restart(grace_s=0)
        await asking
        await t.settled()
        await t.restart()
        inbox = t.runners[t.jid].repository.inbox
        assert [await inbox.load_steps(row) for row in range(5)] == [[]] * 5
