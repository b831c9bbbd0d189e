"""What is deleted for good: by age, by number, by the state of a conversation; everything that belongs to it, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from spade_coreason import (
    AgentDefinition,
    AgentInteractionMemory,
    AgentRequest,
    ConversationState,
    ResponseHandler,
    SessionHandle,
)
from spade_coreason.app.factories import build_policy
from spade_coreason.config.loader import load_settings
from spade_coreason.contracts import MemoryConfig
from spade_coreason.domain.conversation import Rules
from spade_coreason.domain.messages import InboundRequest
from spade_coreason.memory.session import Session
from spade_coreason.runtime.policy import Keep, Policy, Retention
from spade_coreason.runtime.runner import Runner
from spade_coreason.storage import open_database
from spade_coreason.storage.repository import AgentRepository
from tests.support.clock import Clock
from tests.support.databases import read_rows
from tests.support.records import query_of
from tests.support.wait import eventually

AGENT, ALICE, BOB = "agent@localhost", "alice@localhost", "bob@localhost"
DAYS_30 = Retention(Keep(age=timedelta(days=30)))


class Keeper:
    """Keeps what it hears in all ways there are, and says how much of the history it sees."""

    def __init__(self, memory: AgentInteractionMemory) -> None:
        self.manifest = AgentDefinition.simple("keeper")
        self.memory = memory
        self.seen: list[list[str]] = []
        self.waits_for: asyncio.Event | None = None

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        text = request.payload["query"]
        self.seen.append([query_of(turn) for turn in await session.history(100)])
        await session.store("last", text)
        self.memory.add_information(request.metadata["conversation_id"], text)
        if text == "wait" and self.waits_for is not None:
            await self.waits_for.wait()
        if text == "bye":
            assert isinstance(session, Session)
            session.end()
        await response.markdown(text)


class Running:
    """A runner with a clock, on a database."""

    def __init__(self, runner: Runner, agent: Keeper, url: str) -> None:
        self.runner, self.agent, self.url = runner, agent, url

    def say(self, text: str, sender: str = ALICE, thread: str | None = None) -> None:
        self.runner.receive(InboundRequest("person", f"{sender}/x", str(uuid4()), thread, {"query": text}, text))

    async def ask(self, text: str, sender: str = ALICE, thread: str | None = None) -> None:
        self.say(text, sender, thread)
        await self.runner.wait_until_idle()

    def turns(self) -> list[tuple[str, int]]:
        names = {row["id"]: row["conversation_id"] for row in read_rows(self.url, "conversations")}
        return sorted((names[row["conversation"]], row["number"]) for row in read_rows(self.url, "interactions"))


@asynccontextmanager
async def running(url: str, path: Path, clock: Clock, retention: Retention, window: int = 20) -> AsyncIterator[Running]:
    database = await open_database(url, "off")
    memory = AgentInteractionMemory(AGENT, path / "memory")
    agent = Keeper(memory)
    policy = Policy(rules=Rules(timeout=timedelta(0)), memory=MemoryConfig(limit=window), retention=retention)
    runner = Runner(agent, AGENT, AgentRepository(database, AGENT), policy, clock=clock, interaction_memory=lambda: memory)
    await runner.open(lambda stanzas: None)
    try:
        yield Running(runner, agent, url)
    finally:
        await runner.drain(1)
        await runner.close()
        await database.close()


async def test_what_is_too_old_is_deleted_at_the_start_with_all_that_belongs_to_it(database_url: str, tmp_path: Path) -> None:
    clock = Clock()
    async with running(database_url, tmp_path, clock, Retention()) as r:
        await r.ask("a", ALICE, "old")
        await r.ask("b", ALICE, "both")
        await r.ask("b", BOB, "bobs")
        clock.move(days=31)
        await r.ask("c", ALICE, "both")
        assert r.turns() == [("bobs", 1), ("both", 1), ("both", 2), ("old", 1)]
    async with running(database_url, tmp_path, clock, DAYS_30) as r:
        await eventually(lambda: r.turns() == [("both", 2)])
        await eventually(lambda: {row["holder"] for row in read_rows(database_url, "variables")} == {"both", ALICE})
        assert [row["conversation_id"] for row in read_rows(database_url, "conversations")] == ["both"]
        assert r.agent.memory.get_all_conversations() == ["both"]
        await r.ask("d", ALICE, "both")
        assert r.agent.seen[-1] == ["c"]
        await r.ask("e", ALICE, "old")  # as if it had never been
        assert r.agent.seen[-1] == []
        assert r.turns() == [("both", 2), ("both", 3), ("old", 1)]


async def test_so_many_turns_are_kept_of_each_conversation(database_url: str, tmp_path: Path) -> None:
    async with running(database_url, tmp_path, Clock(), Retention(Keep(turns=3)), window=5) as r:
        for number in range(1, 8):
            await r.ask(f"{number}", ALICE, "t")
        await r.ask("1", BOB, "u")
        await r.runner.purge()  # that at the start may have found some already
        assert r.turns() == [("t", 5), ("t", 6), ("t", 7), ("u", 1)]
        await r.ask("8", ALICE, "t")
        assert r.agent.seen[-1] == ["5", "6", "7"]  # in memory nothing else is left either
        assert (await r.runner.purge()).turns == 1
        assert await r.runner.purge() == (0, 0)
        assert {row["holder"] for row in read_rows(database_url, "variables")} == {"t", "u", ALICE, BOB}


async def test_a_state_has_a_rule_of_its_own(tmp_path: Path, database_url: str) -> None:
    clock = Clock()
    own = {ConversationState.COMPLETED: Keep(age=timedelta(days=1)), ConversationState.ACTIVE: Keep()}
    async with running(database_url, tmp_path, clock, Retention(Keep(timedelta(days=7)), own)) as r:
        await r.ask("bye", ALICE, "ended")
        await r.ask("hi", ALICE, "active")
        clock.move(days=1, seconds=1)
        assert await r.runner.purge() == (1, 1)
        assert r.turns() == [("active", 1)]
        clock.move(days=100)
        assert await r.runner.purge() == (0, 0)


async def test_a_conversation_that_is_being_answered_has_time(tmp_path: Path, database_url: str) -> None:
    clock = Clock()
    async with running(database_url, tmp_path, clock, DAYS_30) as r:
        await r.ask("one", ALICE, "t")
        r.agent.waits_for = asyncio.Event()
        r.say("wait", ALICE, "t")
        await eventually(lambda: len(r.agent.seen) == 2)
        clock.move(days=31)
        assert await r.runner.purge() == (0, 0)
        r.agent.waits_for.set()
        await r.runner.wait_until_idle()
        assert r.turns() == [("t", 1), ("t", 2)]


async def test_after_a_clock_that_jumped_back_only_the_oldest_turns_are_deleted(tmp_path: Path, database_url: str) -> None:
    """A young turn before an old one keeps it: what is left has no gaps, and pages as before."""
    clock = Clock()
    async with running(database_url, tmp_path, clock, DAYS_30, window=1) as r:
        await r.ask("1", ALICE, "t")
        clock.move(days=40)
        await r.ask("2", ALICE, "t")
        clock.move(days=-40)
        await r.ask("3", ALICE, "t")
        clock.move(days=40)
        await r.ask("4", ALICE, "t")
        assert r.agent.seen[-1] == ["1", "2", "3"]
        assert await r.runner.purge() == (0, 1)
        await r.ask("5", ALICE, "t")
        assert r.agent.seen[-1] == ["2", "3", "4"]


async def test_it_is_done_again_every_day(tmp_path: Path, database_url: str) -> None:
    clock, often = Clock(), replace(DAYS_30, interval=timedelta(milliseconds=20))
    async with running(database_url, tmp_path, clock, often) as r:
        await r.ask("one")
        clock.move(days=31)
        await eventually(lambda: r.turns() == [])


async def test_much_is_deleted_in_pieces(tmp_path: Path, database_url: str) -> None:
    clock = Clock()
    async with running(database_url, tmp_path, clock, replace(DAYS_30, batch_rows=2)) as r:
        for thread in ("a", "b", "c"):
            for _ in range(5):
                await r.ask("x", ALICE, thread)
        clock.move(days=31)
        await r.ask("y", ALICE, "a")
        assert await r.runner.purge() == (2, 15)
        assert r.turns() == [("a", 6)]


def test_the_rules_come_from_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "agents: [{jid: a@localhost, agent: 'a:B'}, {jid: b@localhost, agent: 'a:B', conversation: {retention: {turns: 5}}}]\n"
        "conversation: {retention: {days: 365, states: {timeout: {days: 0.5, turns: 9}, active: {}}}}"
    )
    settings = load_settings(tmp_path / "p.yaml", tmp_path, {})
    common, own = (build_policy(settings, agent, None).retention for agent in settings.agents)
    assert common.for_state(ConversationState.COMPLETED) == Keep(timedelta(days=365))
    assert common.for_state(ConversationState.TIMEOUT) == Keep(timedelta(hours=12), 9)
    assert common.for_state(ConversationState.ACTIVE) == Keep()
    assert own == Retention(Keep(turns=5))
    assert Policy().retention.is_unlimited
