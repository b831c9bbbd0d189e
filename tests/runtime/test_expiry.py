"""Expiry of conversations: each idle one ends once, also if something happens in it at that time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from spade_coreason import AgentRequest, AgentTester, ResponseHandler, Session, StoreError
from spade_coreason.contracts import AgentDefinition, ConversationState, Interaction
from spade_coreason.runtime.conversations.expiry import OnConversationEnd
from spade_coreason.runtime.runner import Runner
from spade_coreason.storage.backends.database import Database
from spade_coreason.storage.backends.group_commit import Commit
from spade_coreason.storage.records import ErasureReport, StoredConversation
from spade_coreason.storage.repository import AgentRepository
from spade_coreason.testing import Policy, Retention, Rules
from tests.runtime.test_runner_faults import ALICE, BOB, make_request
from tests.support.clock import Clock
from tests.support.runner import make_runtime
from tests.support.transports import make_network
from tests.support.wait import TIMEOUT_S

AGENT = "agent@localhost"


class InterruptedRepository(AgentRepository):
    """A repository that runs a callback once while a conversation is stored or deleted."""

    callback: Callable[[], object] | None = None

    def _run_callback(self) -> None:
        if self.callback is not None:
            callback, self.callback = self.callback, None
            callback()

    def save_conversation(self, row: StoredConversation) -> Commit[bool]:
        stored = super().save_conversation(row)
        self._run_callback()
        return stored

    async def delete_conversation(self, row: StoredConversation, *, with_copies: bool = False) -> ErasureReport:
        deleted = asyncio.ensure_future(super().delete_conversation(row, with_copies=with_copies))
        await asyncio.sleep(0)
        self._run_callback()
        return await deleted


class EndingAgent:
    """End the session on request, and count the shutdowns."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("agent")
        self.shutdowns = 0

    async def assist(self, request: AgentRequest, session: Session, response: ResponseHandler) -> None:
        if request.payload["query"] == "end":
            session.end()
        await response.markdown("ok")

    async def shutdown(self) -> None:
        self.shutdowns += 1


@dataclass
class ExpiryHarness:
    runner: Runner
    store: InterruptedRepository
    agent: EndingAgent
    clock: Clock
    ended: list[tuple[str, str]]

    async def ask(self, text: str, sender: str = ALICE) -> None:
        self.runner.intake.receive(make_request(text, sender))
        await self.runner.mailboxes.wait_until_idle(sender, None)

    async def states(self) -> dict[str, str]:
        return {row.owner: str(row.status.state) for row in await self.store.list_conversations()}


@asynccontextmanager
async def run_harness(
    database: Database, *callbacks: OnConversationEnd, hours: float = 1, **rules: Any
) -> AsyncIterator[ExpiryHarness]:
    store, agent, clock, ended = InterruptedRepository(database, AGENT), EndingAgent(), Clock(), list[tuple[str, str]]()
    callbacks = (lambda name, state: ended.append((name, state)), *callbacks)
    policy, network = Policy(rules=Rules(timeout_s=3600 * hours, **rules)), make_network(AGENT)
    runtime = make_runtime(agent, store, network, policy, clock=clock, on_conversation_end=callbacks)
    runner = runtime.runner
    await runner.open()
    try:
        yield ExpiryHarness(runner, store, agent, clock, ended)
    finally:
        await runner.drain(0)
        await runner.close()


async def test_a_conversation_of_commands_only_times_out_too(database: Database) -> None:
    async with run_harness(database) as harness:
        await harness.ask("/help")
        assert await harness.states() == {ALICE: "active"}
        harness.clock.advance(hours=5)
        await harness.runner.conversations.expiry.expire_idle()
        assert await harness.states() == {ALICE: "timeout"}
        assert [state for _, state in harness.ended] == ["timeout"]


async def test_a_clock_that_goes_back_delays_no_other_conversation(database: Database) -> None:
    async with run_harness(database) as harness:
        harness.clock.advance(days=30)
        await harness.ask("hi", ALICE)
        harness.clock.advance(days=-30)
        await harness.ask("hi", BOB)
        harness.clock.advance(hours=5)
        await harness.runner.conversations.expiry.expire_idle()
        assert await harness.states() == {ALICE: "active", BOB: "timeout"}


@pytest.mark.parametrize("by", ["its silence", "an operator"])
async def test_a_conversation_that_begins_again_while_its_end_is_stored_ends_again(database: Database, by: str) -> None:
    async with run_harness(database) as harness:
        await harness.ask("hi")
        [row] = await harness.store.list_conversations()
        harness.store.callback = lambda: harness.runner.intake.receive(make_request("again"))
        if by == "an operator":
            assert await harness.runner.control.end(row.conversation_id)
        else:
            harness.clock.advance(hours=5)
            await harness.runner.conversations.expiry.expire_idle()
        await harness.runner.mailboxes.wait_until_idle()
        assert await harness.states() == {ALICE: "active"}
        assert len(harness.ended) == 1
        harness.clock.advance(hours=50)
        await harness.runner.conversations.expiry.expire_idle()
        assert await harness.states() == {ALICE: "timeout"}
        assert [state for _, state in harness.ended] == ["completed" if by == "an operator" else "timeout", "timeout"]


async def test_a_conversation_that_begins_again_while_retention_deletes_it_times_out(database: Database) -> None:
    async with run_harness(database, hours=24 * 30, retention=Retention(days=1)) as harness:
        await harness.ask("hi")
        harness.clock.advance(days=2)
        harness.store.callback = lambda: harness.runner.intake.receive(make_request("again"))
        assert (await harness.runner.conversations.retention_job.run()).conversations == 1
        await harness.runner.mailboxes.wait_until_idle()
        assert await harness.states() == {ALICE: "active"}
        harness.clock.advance(days=31)
        await harness.runner.conversations.expiry.expire_idle()
        assert await harness.states() == {ALICE: "timeout"}


async def test_a_change_of_a_conversation_while_others_expire_is_kept(database: Database) -> None:
    callback_started, release = asyncio.Event(), asyncio.Event()

    async def slow(name: str, state: str) -> None:
        if not callback_started.is_set():
            callback_started.set()
            await release.wait()

    async with run_harness(database, slow) as harness:
        await harness.ask("hi", ALICE)
        await harness.ask("hi", BOB)
        harness.clock.advance(hours=2)
        expiring = asyncio.create_task(harness.runner.conversations.expiry.expire_idle())
        await callback_started.wait()  # one of them has ended, the row of the other is read
        [other] = [owner for owner, state in (await harness.states()).items() if state == "active"]
        harness.runner.intake.receive(make_request("end", other))
        async with asyncio.timeout(TIMEOUT_S):
            while (await harness.states())[other] == "active":  # noqa: ASYNC110 - in the database
                await asyncio.sleep(0.01)
        release.set()
        await expiring
        await harness.runner.mailboxes.wait_until_idle()
        await harness.ask("hi again", other)
        [row] = await harness.store.list_conversations(owner=other)
        assert row.turns == len(await harness.store.turns.load_history(row.id, 10)) == 3


async def test_an_end_that_cannot_be_stored_is_tried_again(database: Database) -> None:
    def fails() -> None:
        raise StoreError("the disk is full")

    async with run_harness(database) as harness:
        await harness.ask("hi")
        harness.clock.advance(hours=5)
        harness.store.callback = fails
        with pytest.raises(StoreError, match="full"):
            await harness.runner.conversations.expiry.expire_idle()
        assert harness.ended == []
        await harness.runner.conversations.expiry.expire_idle()
        assert await harness.states() == {ALICE: "timeout"}
        assert [state for _, state in harness.ended] == ["timeout"]


async def test_an_agent_on_demand_shuts_down_when_its_last_conversation_is_deleted(database: Database) -> None:
    async with run_harness(database, lifecycle="on_demand", idle_shutdown_s=0.01) as harness:
        await harness.ask("hi")
        await harness.ask("/forget")
        await harness.ask("/forget yes")
        async with asyncio.timeout(TIMEOUT_S):
            while not harness.agent.shutdowns:  # noqa: ASYNC110 - a timer of the platform's
                await asyncio.sleep(0.01)
        assert await harness.states() == {}


async def test_a_reaction_to_the_last_reply_does_not_keep_a_conversation_active() -> None:
    class Echo:
        """Repeats."""

        manifest = AgentDefinition.simple("echo")

        def __init__(self) -> None:
            self.has_feedback = asyncio.Event()

        async def assist(self, request: AgentRequest, session: Session, response: ResponseHandler) -> None:
            await response.markdown(request.payload["query"])

        async def feedback(self, interaction: Interaction, reactions: tuple[str, ...]) -> None:
            self.has_feedback.set()

    clock, echo = Clock(), Echo()
    async with AgentTester(echo, clock=clock) as t:
        t.send("hi")
        reply = await t.message()
        await t.settled()
        t.react(reply.id, "👍")
        async with asyncio.timeout(TIMEOUT_S):
            await echo.has_feedback.wait()
        clock.advance(days=2)
        await t.runners[t.jid].conversations.expiry.expire_idle()
        assert [record.state for record in await t.conversations()] == [ConversationState.TIMEOUT]
