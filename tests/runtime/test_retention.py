"""Retention: conversations are deleted by age, number and state, with everything that belongs to them, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from spade_coreason import AgentDefinition, AgentInteractionMemory, AgentRequest, ResponseHandler, Session
from spade_coreason.app.factories import build_policy
from spade_coreason.config.loader import load_settings
from spade_coreason.contracts import ConversationState, MemoryConfig
from spade_coreason.runtime.runner import Runner
from spade_coreason.storage import open_database
from spade_coreason.storage.repository import AgentRepository
from spade_coreason.testing import Keep, Policy, Retention, RetentionStates, Rules, RunnerTimings
from tests.support.clock import Clock
from tests.support.databases import on_both_databases, read_rows
from tests.support.records import query_of
from tests.support.requests import build_incoming
from tests.support.runner import make_runtime
from tests.support.transports import make_network
from tests.support.wait import eventually

AGENT, ALICE, BOB = "agent@localhost", "alice@localhost", "bob@localhost"
DAYS_30 = Retention(days=30)


class StoringAgent:
    """Store each query in every way, and record the history that it sees."""

    def __init__(self, memory: AgentInteractionMemory) -> None:
        self.manifest = AgentDefinition.simple("keeper")
        self.memory = memory
        self.seen: list[list[str]] = []
        self.waits_for: asyncio.Event | None = None

    async def assist(self, request: AgentRequest, session: Session, response: ResponseHandler) -> None:
        text = request.payload["query"]
        self.seen.append([query_of(turn) for turn in await session.history(100)])
        await session.store("last", text)
        self.memory.add_information(request.metadata["conversation_id"], text)
        if text == "wait" and self.waits_for is not None:
            await self.waits_for.wait()
        if text == "bye":
            session.end()
        await response.markdown(text)


class RetentionHarness:
    """A runner with a clock, on a database."""

    def __init__(self, runner: Runner, agent: StoringAgent, url: str) -> None:
        self.runner, self.agent, self.url = runner, agent, url

    def say(self, text: str, sender: str = ALICE, thread: str | None = None) -> None:
        self.runner.intake.receive(build_incoming(text, sender, thread=thread))

    async def ask(self, text: str, sender: str = ALICE, thread: str | None = None) -> None:
        self.say(text, sender, thread)
        await self.runner.mailboxes.wait_until_idle()

    def turns(self) -> list[tuple[str, int]]:
        names = {row["id"]: row["conversation_id"] for row in read_rows(self.url, "conversations")}
        return sorted((names[row["conversation"]], row["number"]) for row in read_rows(self.url, "interactions"))


@asynccontextmanager
async def run_harness(
    url: str, path: Path, clock: Clock, retention: Retention, window: int = 20, **policy: Any
) -> AsyncIterator[RetentionHarness]:
    database = await open_database(url, "off")
    memory = AgentInteractionMemory(AGENT, path / "memory")
    agent = StoringAgent(memory)
    rules = Rules(timeout_s=0, retention=retention)
    own_policy = Policy(rules=rules, memory=MemoryConfig(limit=window), **policy)
    repository, network = AgentRepository(database, AGENT), make_network(AGENT)
    runner = make_runtime(agent, repository, network, own_policy, clock=clock, memory=lambda: memory).runner
    await runner.open()
    try:
        yield RetentionHarness(runner, agent, url)
    finally:
        await runner.drain(1)
        await runner.close()
        await database.close()


def stored_holders(database_url: str) -> set[str]:
    """Return the holders of variables, without the counts of messages."""
    return {row["holder"] for row in read_rows(database_url, "variables") if not row["scope"].startswith("messages.")}


@on_both_databases
async def test_old_turns_are_deleted_at_the_start_with_all_that_belongs_to_them(database_url: str, tmp_path: Path) -> None:
    clock = Clock()
    async with run_harness(database_url, tmp_path, clock, Retention()) as harness:
        await harness.ask("a", ALICE, "old")
        await harness.ask("b", ALICE, "both")
        await harness.ask("b", BOB, "bobs")
        clock.advance(days=31)
        await harness.ask("c", ALICE, "both")
        assert harness.turns() == [("bobs", 1), ("both", 1), ("both", 2), ("old", 1)]
    async with run_harness(database_url, tmp_path, clock, DAYS_30) as harness:
        await eventually(lambda: harness.turns() == [("both", 2)])
        await eventually(lambda: stored_holders(database_url) == {"both", ALICE})
        assert [row["conversation_id"] for row in read_rows(database_url, "conversations")] == ["both"]
        assert harness.agent.memory.get_all_conversations() == ["both"]
        await harness.ask("d", ALICE, "both")
        assert harness.agent.seen[-1] == ["c"]
        await harness.ask("e", ALICE, "old")  # as if it had never been
        assert harness.agent.seen[-1] == []
        assert harness.turns() == [("both", 2), ("both", 3), ("old", 1)]


@on_both_databases
async def test_a_limited_number_of_turns_is_kept_of_each_conversation(database_url: str, tmp_path: Path) -> None:
    async with run_harness(database_url, tmp_path, Clock(), Retention(turns=3), window=5) as harness:
        for number in range(1, 8):
            await harness.ask(f"{number}", ALICE, "t")
        await harness.ask("1", BOB, "u")
        await harness.runner.conversations.retention_job.run()  # that at the start may have found some already
        assert harness.turns() == [("t", 5), ("t", 6), ("t", 7), ("u", 1)]
        await harness.ask("8", ALICE, "t")
        assert harness.agent.seen[-1] == ["5", "6", "7"]  # in memory nothing else is left either
        assert (await harness.runner.conversations.retention_job.run()).turns == 1
        assert await harness.runner.conversations.retention_job.run() == (0, 0)
        assert stored_holders(database_url) == {"t", "u", ALICE, BOB}


async def test_a_state_has_a_rule_of_its_own(tmp_path: Path, database_url: str) -> None:
    clock = Clock()
    own = RetentionStates(completed=Keep(days=1), active=Keep())
    async with run_harness(database_url, tmp_path, clock, Retention(days=7, states=own)) as harness:
        await harness.ask("bye", ALICE, "ended")
        await harness.ask("hi", ALICE, "active")
        clock.advance(days=1, seconds=1)
        assert await harness.runner.conversations.retention_job.run() == (1, 1)
        assert harness.turns() == [("active", 1)]
        clock.advance(days=100)
        assert await harness.runner.conversations.retention_job.run() == (0, 0)


async def test_a_conversation_that_is_being_answered_is_not_deleted(tmp_path: Path, database_url: str) -> None:
    clock = Clock()
    async with run_harness(database_url, tmp_path, clock, DAYS_30) as harness:
        await harness.ask("one", ALICE, "t")
        harness.agent.waits_for = asyncio.Event()
        harness.say("wait", ALICE, "t")
        await eventually(lambda: len(harness.agent.seen) == 2)
        clock.advance(days=31)
        assert await harness.runner.conversations.retention_job.run() == (0, 0)
        harness.agent.waits_for.set()
        await harness.runner.mailboxes.wait_until_idle()
        assert harness.turns() == [("t", 1), ("t", 2)]


async def test_after_a_clock_that_jumped_back_only_the_oldest_turns_are_deleted(tmp_path: Path, database_url: str) -> None:
    """A young turn before an old one keeps it: what is left has no gaps, and pages as before."""
    clock = Clock()
    async with run_harness(database_url, tmp_path, clock, DAYS_30, window=1) as harness:
        await harness.ask("1", ALICE, "t")
        clock.advance(days=40)
        await harness.ask("2", ALICE, "t")
        clock.advance(days=-40)
        await harness.ask("3", ALICE, "t")
        clock.advance(days=40)
        await harness.ask("4", ALICE, "t")
        assert harness.agent.seen[-1] == ["1", "2", "3"]
        assert await harness.runner.conversations.retention_job.run() == (0, 1)
        await harness.ask("5", ALICE, "t")
        assert harness.agent.seen[-1] == ["2", "3", "4"]


async def test_retention_runs_again_after_its_interval(tmp_path: Path, database_url: str) -> None:
    clock, often = Clock(), RunnerTimings(retention_s=0.02)
    async with run_harness(database_url, tmp_path, clock, DAYS_30, timings=often) as harness:
        await harness.ask("one")
        clock.advance(days=31)
        await eventually(lambda: harness.turns() == [])


@on_both_databases
async def test_many_rows_are_deleted_in_batches(tmp_path: Path, database_url: str) -> None:
    clock = Clock()
    async with run_harness(database_url, tmp_path, clock, DAYS_30, retention_rows=2) as harness:
        for thread in ("a", "b", "c"):
            for _ in range(5):
                await harness.ask("x", ALICE, thread)
        clock.advance(days=31)
        await harness.ask("y", ALICE, "a")
        assert await harness.runner.conversations.retention_job.run() == (2, 15)
        assert harness.turns() == [("a", 6)]


def test_the_rules_come_from_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "agents: [{jid: a@localhost, agent: 'a:B'}, {jid: b@localhost, agent: 'a:B', conversation: {retention: {turns: 5}}}]\n"
        "conversation: {retention: {days: 365, states: {timeout: {days: 0.5, turns: 9}, active: {}}}}"
    )
    settings = load_settings(tmp_path / "p.yaml", tmp_path, {})
    common, own = (build_policy(settings, agent, None).rules.retention for agent in settings.agents)
    assert common.for_state(ConversationState.COMPLETED) == common
    assert common.for_state(ConversationState.TIMEOUT) == Keep(days=0.5, turns=9)
    assert common.for_state(ConversationState.ACTIVE) == Keep()
    assert own == common.model_copy(update={"turns": 5})
    assert Policy().rules.retention == Retention()
