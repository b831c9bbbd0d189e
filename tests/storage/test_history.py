"""The history of a conversation, and the window of it that an agent sees."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import Connection, text

from spade_coreason import AgentDefinition, AgentRequest, ConversationState, ResponseHandler, SessionHandle
from spade_coreason.contracts import Interaction, MemoryConfig, MemoryStrategy
from spade_coreason.domain.conversation import Rules
from spade_coreason.domain.memory_strategies import window_bounds
from spade_coreason.domain.messages import InboundRequest
from spade_coreason.domain.value import replace
from spade_coreason.runtime.policy import Policy
from spade_coreason.storage.database import Database
from spade_coreason.storage.records import TurnRecord
from spade_coreason.storage.repository import AgentRepository
from tests.support.clock import Clock
from tests.support.databases import SQLITE, execute, open_without_sync
from tests.support.records import AGENT, ALICE, BOB, NOW, new_conversation, receive_request
from tests.support.runner import RunnerHarness


@pytest.mark.parametrize("limit", [0, 1, 4, 25, 100])
@pytest.mark.parametrize("offset", [0, 1, 22, 25, 100])
async def test_history_is_paged_from_the_newest_in_chronological_order(database_url: str, limit: int, offset: int) -> None:
    database_url = await _twenty_five_turns(database_url)
    database = await open_without_sync(database_url)
    store = AgentRepository(database, AGENT)
    row = (await store.find_conversations(["t"]))["t"]
    numbers = list(range(1, 26))
    end = max(25 - offset, 0)
    expected = numbers[max(end - limit, 0) : end]
    assert [json.loads(body)["n"] for body in await store.load_history(row.id, limit, offset)] == expected
    await database.close()


async def _twenty_five_turns(database_url: str) -> str:
    """Of two conversations in turns, with a clock that goes backwards."""
    database = await open_without_sync(database_url)
    store = AgentRepository(database, AGENT)
    talks = [new_conversation(store, "t"), new_conversation(store, "other", BOB)]
    finished = []
    for n in range(1, 26):
        for row in talks:
            what = TurnRecord(f"{n}", NOW - timedelta(hours=n), json.dumps({"n": n if row.owner == ALICE else -n}))
            finished.append(store.inbox.finish(await receive_request(store), replace(row, turns=n), what, None))
    await asyncio.gather(*finished)
    await database.close()
    return database_url


LONG = 100_000


class Pages:
    """Looks back a little."""

    manifest = AgentDefinition.simple("pages")

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        assert len(await session.history(5, 40)) == 5
        await response.markdown("x")


async def test_a_long_session_costs_what_its_window_costs(database_url: str) -> None:
    """Whatever reads the rest of a hundred thousand turns takes longer than to count their letters; see `make bench`."""
    database = await open_without_sync(database_url)
    store = AgentRepository(database, AGENT)
    for name, turns in (("short", 100), ("long", LONG)):
        row = new_conversation(store, name, turns=turns, window_start=turns - 19)
        await store.save_conversation(row)
        await database.write(partial(_fill, row.id, turns))
    await database.close()
    async with RunnerHarness(database_url, Pages(), Policy(rules=Rules(max_interactions=0))) as talk:
        if not database_url.startswith(SQLITE):  # as autovacuum does, which is off here
            await asyncio.to_thread(execute, database_url, "ANALYZE interactions")
        found = await talk.store.find_conversations(["short", "long"])

        async def loaded(name: str) -> None:
            assert len((await talk.store.load([name], ALICE, 20)).history) == 20

        async def paged(name: str) -> None:
            row = found[name]
            assert len(await talk.store.load_history(row.id, 5, row.turns // 2)) == 5

        async def turned(name: str) -> None:
            await talk.say("x", name)

        async def counted(name: str) -> None:
            letters = text("SELECT sum(length(body)) FROM interactions WHERE conversation = :row")
            await database_of(talk).read(lambda connection: connection.execute(letters, {"row": found[name].id}).scalar_one())

        rest = await _quickest(counted, "long")
        for deed in (loaded, paged, turned):
            best = {name: await _quickest(deed, name) for name in ("short", "long")}
            assert best["long"] - best["short"] < rest / 2, deed.__name__


def database_of(talk: RunnerHarness) -> Database:
    return talk.store._database


def _fill(conversation_row: int, turns: int, connection: Connection) -> None:
    series = "generate_series(1, :turns) AS numbers (n)"
    if connection.dialect.name == "sqlite":
        counted = "SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :turns"
        series = f"(WITH RECURSIVE numbers (n) AS ({counted}) SELECT n FROM numbers)"
    body = Interaction(input={"query": "x"}, output={"text": "y" * 100}).model_dump_json()
    said = {"turns": turns, "row": conversation_row, "first": conversation_row * 10 * LONG, "body": body}
    connection.execute(text(f"INSERT INTO interactions SELECT :first + n, :row, n, 'i', n, :body FROM {series}"), said)


async def _quickest(deed: Callable[[str], Awaitable[None]], name: str) -> float:
    """Seconds, of twenty times: the machine may be busy at any of them."""
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        await deed(name)
        times.append(time.perf_counter() - begin)
    return min(times)


@pytest.mark.parametrize(
    ("strategy", "limit", "kept", "start"),
    [
        (MemoryStrategy.SLIDING_WINDOW, 3, 3, 8),
        (MemoryStrategy.SLIDING_WINDOW, 10, 10, 1),
        (MemoryStrategy.SLIDING_WINDOW, 50, 10, 1),
        (MemoryStrategy.ALL, 3, 10, 1),
    ],
)
def test_the_window_begins_with_the_first_turn_that_is_kept(
    strategy: MemoryStrategy, limit: int, kept: int, start: int
) -> None:
    assert window_bounds(10, MemoryConfig(strategy=strategy, limit=limit), 10) == (kept, start)


async def test_what_leaves_the_window_stays_in_storage_and_a_window_never_grows_back(database_url: str) -> None:
    starts = []
    for limit in (3, 10, 2):
        async with RunnerHarness(database_url, policy=Policy(memory=MemoryConfig(limit=limit))) as talk:
            for n in range(5):
                await talk.say(str(n))
                starts.append((await talk.store.find_conversations(["t"]))["t"].window_start)
            assert len(await talk.store.load_history(1, 1000)) == len(starts)
    assert starts == [1, 1, 1, 2, 3, 3, 3, 3, 3, 3, 10, 11, 12, 13, 14]


async def test_a_clock_that_jumps_back_loses_and_reorders_nothing(database_url: str) -> None:
    clock = Clock()
    async with RunnerHarness(database_url, clock=clock) as talk:
        for n, days in enumerate((0, -400, 1, -30, 500)):
            clock.move(days=days)
            await talk.say(str(n))
        # The same message, after the clock has gone back, is known all the same.
        again = InboundRequest("person", f"{ALICE}/x", "again", "t", {"query": "5"}, "5")
        for _ in range(2):
            talk.runner.receive(again)
            await talk.runner.wait_until_idle()
            clock.move(days=-100)
    async with RunnerHarness(database_url, clock=clock) as talk:
        row = (await talk.store.find_conversations(["t"]))["t"]
        bodies = [json.loads(body)["input"]["query"] for body in await talk.store.load_history(row.id, 10)]
        assert bodies == [str(n) for n in range(6)]
        assert row.status.state is ConversationState.ACTIVE
        await talk.say("6")
        assert (await talk.store.find_conversations(["t"]))["t"].turns == 7
