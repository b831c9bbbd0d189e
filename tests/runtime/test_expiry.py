"""When conversations are over: each that is silent, once, whatever happens in it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from spade_coreason import AgentRequest, ResponseHandler, SessionHandle, StoreError
from spade_coreason.contracts import AgentDefinition
from spade_coreason.domain.conversation import Rules
from spade_coreason.memory.session import Session
from spade_coreason.runtime.expiry import OnConversationEnd
from spade_coreason.runtime.policy import Keep, Policy, Retention
from spade_coreason.runtime.runner import Runner
from spade_coreason.storage.database import Database
from spade_coreason.storage.records import StorageErasureReport, StoredConversation
from spade_coreason.storage.repository import AgentRepository
from tests.runtime.test_runner_faults import ALICE, BOB, asked
from tests.support.clock import Clock
from tests.support.wait import PATIENCE_S

AGENT = "agent@localhost"


class Store(AgentRepository):
    """Does something, once, while a conversation is stored or deleted."""

    meanwhile: Callable[[], object] | None = None

    def _happens(self) -> None:
        if self.meanwhile is not None:
            happens, self.meanwhile = self.meanwhile, None
            happens()

    def save_conversation(self, row: StoredConversation) -> asyncio.Future[bool]:
        stored = super().save_conversation(row)
        self._happens()
        return stored

    async def delete_conversation(self, row: StoredConversation, *, with_copies: bool = False) -> StorageErasureReport:
        deleted = asyncio.ensure_future(super().delete_conversation(row, with_copies=with_copies))
        await asyncio.sleep(0)
        self._happens()
        return await deleted


class Agent:
    """Ends its session when it is told to, and counts its shutdowns."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("agent")
        self.shutdowns = 0

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        if request.payload["query"] == "end":
            assert isinstance(session, Session)
            session.end()
        await response.markdown("ok")

    async def shutdown(self) -> None:
        self.shutdowns += 1


@dataclass
class Running:
    runner: Runner
    store: Store
    agent: Agent
    clock: Clock
    told: list[tuple[str, str]]

    async def ask(self, text: str, sender: str = ALICE) -> None:
        self.runner.receive(asked(text, sender))
        await self.runner.wait_until_idle(sender, None)

    async def states(self) -> dict[str, str]:
        return {row.owner: str(row.status.state) for row in await self.store.list_conversations()}


@asynccontextmanager
async def running(database: Database, *callbacks: OnConversationEnd, hours: float = 1, **policy: Any) -> AsyncIterator[Running]:
    store, agent, clock, told = Store(database, AGENT), Agent(), Clock(), list[tuple[str, str]]()
    rules = Rules(timeout=timedelta(hours=hours))
    callbacks = (lambda name, state: told.append((name, state)), *callbacks)
    runner = Runner(agent, AGENT, store, Policy(rules=rules, **policy), clock=clock, on_conversation_end=callbacks)
    await runner.open(lambda stanzas: None)
    try:
        yield Running(runner, store, agent, clock, told)
    finally:
        await runner.drain(0)
        await runner.close()


async def test_a_conversation_of_commands_only_times_out_too(database: Database) -> None:
    async with running(database) as r:
        await r.ask("/help")
        assert await r.states() == {ALICE: "active"}
        r.clock.move(hours=5)
        await r.runner.expire_idle()
        assert await r.states() == {ALICE: "timeout"}
        assert [state for _, state in r.told] == ["timeout"]


async def test_a_clock_that_goes_back_holds_up_no_other_conversation(database: Database) -> None:
    async with running(database) as r:
        r.clock.move(days=30)
        await r.ask("hi", ALICE)
        r.clock.move(days=-30)
        await r.ask("hi", BOB)
        r.clock.move(hours=5)
        await r.runner.expire_idle()
        assert await r.states() == {ALICE: "active", BOB: "timeout"}


@pytest.mark.parametrize("by", ["its silence", "an operator"])
async def test_a_conversation_that_begins_again_while_its_end_is_stored_ends_again(database: Database, by: str) -> None:
    async with running(database) as r:
        await r.ask("hi")
        [row] = await r.store.list_conversations()
        r.store.meanwhile = lambda: r.runner.receive(asked("again"))
        if by == "an operator":
            assert await r.runner.end_conversation(row.conversation_id)
        else:
            r.clock.move(hours=5)
            await r.runner.expire_idle()
        await r.runner.wait_until_idle()
        assert await r.states() == {ALICE: "active"}
        assert len(r.told) == 1
        r.clock.move(hours=50)
        await r.runner.expire_idle()
        assert await r.states() == {ALICE: "timeout"}
        assert [state for _, state in r.told] == ["completed" if by == "an operator" else "timeout", "timeout"]


async def test_one_that_begins_again_while_retention_deletes_it_times_out(database: Database) -> None:
    async with running(database, hours=24 * 30, retention=Retention(default=Keep(age=timedelta(days=1)))) as r:
        await r.ask("hi")
        r.clock.move(days=2)
        r.store.meanwhile = lambda: r.runner.receive(asked("again"))
        assert (await r.runner.purge()).conversations == 1
        await r.runner.wait_until_idle()
        assert await r.states() == {ALICE: "active"}
        r.clock.move(days=31)
        await r.runner.expire_idle()
        assert await r.states() == {ALICE: "timeout"}


async def test_what_a_conversation_became_while_others_were_ended_stays(database: Database) -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(name: str, state: str) -> None:
        if not begun.is_set():
            begun.set()
            await goes_on.wait()

    async with running(database, slow) as r:
        await r.ask("hi", ALICE)
        await r.ask("hi", BOB)
        r.clock.move(hours=2)
        expiring = asyncio.create_task(r.runner.expire_idle())
        await begun.wait()  # one of them has ended, the row of the other is read
        [other] = [owner for owner, state in (await r.states()).items() if state == "active"]
        r.runner.receive(asked("end", other))
        async with asyncio.timeout(PATIENCE_S):
            while (await r.states())[other] == "active":  # noqa: ASYNC110 - in the database
                await asyncio.sleep(0.01)
        goes_on.set()
        await expiring
        await r.runner.wait_until_idle()
        await r.ask("hi again", other)
        [row] = await r.store.list_conversations(owner=other)
        assert row.turns == len(await r.store.load_history(row.id, 10)) == 3


async def test_an_end_that_cannot_be_stored_is_tried_again(database: Database) -> None:
    def fails() -> None:
        raise StoreError("the disk is full")

    async with running(database) as r:
        await r.ask("hi")
        r.clock.move(hours=5)
        r.store.meanwhile = fails
        with pytest.raises(StoreError, match="full"):
            await r.runner.expire_idle()
        assert r.told == []
        await r.runner.expire_idle()
        assert await r.states() == {ALICE: "timeout"}
        assert [state for _, state in r.told] == ["timeout"]


async def test_an_agent_on_demand_shuts_down_when_its_last_conversation_is_deleted(database: Database) -> None:
    async with running(database, lifecycle="on_demand", idle_shutdown_s=0.01) as r:
        await r.ask("hi")
        await r.ask("/forget")
        await r.ask("/forget yes")
        async with asyncio.timeout(PATIENCE_S):
            while not r.agent.shutdowns:  # noqa: ASYNC110 - a timer of the platform's
                await asyncio.sleep(0.01)
        assert await r.states() == {}
