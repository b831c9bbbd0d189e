"""The history of a conversation, and the window of it that an agent sees."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import product

import pytest
from sqlalchemy import Connection, text

from spade_coreason import AgentDefinition, AgentRequest, ResponseHandler, SessionHandle
from spade_coreason.contracts import ConversationState, Interaction, MemoryConfig, MemoryStrategy
from spade_coreason.domain.memory_strategies import window_bounds
from spade_coreason.storage.records import TurnRecord
from spade_coreason.testing import Policy, Rules
from tests.support.clock import Clock
from tests.support.databases import SAME_STANZA, SQLITE, execute, open_without_sync
from tests.support.records import AGENT, ALICE, BOB, NOW, new_conversation, open_repository, receive_request
from tests.support.requests import build_incoming
from tests.support.runner import RunnerHarness


async def test_history_is_paged_from_the_newest_in_chronological_order(database_url: str) -> None:
    database_url = await _store_25_turns(database_url)
    database = await open_without_sync(database_url)
    repository = await open_repository(database, AGENT)
    row = (await repository.find_conversations(["t"]))["t"]
    numbers = list(range(1, 26))
    pages = list(product((0, 1, 4, 25, 100), (0, 1, 22, 25, 100)))
    found = {page: [json.loads(body)["n"] for body in await repository.turns.load_history(row.id, *page)] for page in pages}
    ends = {offset: max(25 - offset, 0) for _, offset in pages}
    assert found == {(limit, offset): numbers[max(ends[offset] - limit, 0) : ends[offset]] for limit, offset in pages}
    await database.close()


async def _store_25_turns(database_url: str) -> str:
    """Store 25 turns of each of two conversations, alternating, with a clock that goes backwards."""
    database = await open_without_sync(database_url)
    repository = await open_repository(database, AGENT)
    conversations = [new_conversation(repository, "t"), new_conversation(repository, "other", BOB)]
    finished = []
    for n in range(1, 26):
        for row in conversations:
            turn = TurnRecord(f"{n}", NOW - timedelta(hours=n), json.dumps({"n": n if row.owner == ALICE else -n}))
            finished.append(repository.inbox.finish(await receive_request(repository), replace(row, turns=n), turn, None))
    await asyncio.gather(*finished)
    await database.close()
    return database_url


LONG = 100_000


class PagingAgent:
    """Read a page of the history in each turn."""

    manifest = AgentDefinition.simple("pages")

    async def assist(self, request: AgentRequest, session: SessionHandle, response: ResponseHandler) -> None:
        assert len(await session.history(5, 40)) == 5
        await response.markdown("x")


@pytest.mark.parametrize("database_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.release)], indirect=True)
async def test_the_cost_of_a_long_session_depends_only_on_its_window(database_url: str) -> None:
    """Reading all of a hundred thousand turns would take longer than to count their letters; see `make bench`."""
    database = await open_without_sync(database_url)
    repository = await open_repository(database, AGENT)
    for name, turns in (("short", 100), ("long", LONG)):
        row = new_conversation(repository, name, turns=turns, window_start=turns - 19)
        await repository.save_conversation(row)
        await database.write(partial(_insert_turns, row.id, turns))
    await database.close()
    async with RunnerHarness(database_url, PagingAgent(), Policy(rules=Rules(max_interactions=0))) as harness:
        if not database_url.startswith(SQLITE):  # as autovacuum does, which is off here
            await asyncio.to_thread(execute, database_url, "ANALYZE interactions")
        found = await harness.repository.find_conversations(["short", "long"])

        async def load_window(name: str) -> None:
            assert len((await harness.repository.load([name], ALICE, 20)).history) == 20

        async def load_page(name: str) -> None:
            row = found[name]
            assert len(await harness.repository.turns.load_history(row.id, 5, row.turns // 2)) == 5

        async def run_turn(name: str) -> None:
            await harness.receive_and_wait("x", name)

        async def count_letters(name: str) -> None:
            letters = text("SELECT sum(length(body)) FROM interactions WHERE conversation = :row")
            await harness.database.read(lambda connection: connection.execute(letters, {"row": found[name].id}).scalar_one())

        read_all_s = await _quickest(count_letters, "long")
        for operation in (load_window, load_page, run_turn):
            fastest_s = {name: await _quickest(operation, name) for name in ("short", "long")}
            assert fastest_s["long"] - fastest_s["short"] < read_all_s / 2, operation.__name__


def _insert_turns(conversation_row: int, turns: int, connection: Connection) -> None:
    series = "generate_series(1, :turns) AS numbers (n)"
    if connection.dialect.name == "sqlite":
        numbers_sql = "SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :turns"
        series = f"(WITH RECURSIVE numbers (n) AS ({numbers_sql}) SELECT n FROM numbers)"
    body = Interaction(input={"query": "x"}, output={"text": "y" * 100}).model_dump_json()
    parameters = {"turns": turns, "row": conversation_row, "first": conversation_row * 10 * LONG, "body": body}
    connection.execute(
        text(f"INSERT INTO interactions SELECT :first + n, :row, n, 'i', n, :body, '' FROM {series}"), parameters
    )


async def _quickest(operation: Callable[[str], Awaitable[None]], name: str) -> float:
    """Return the seconds of the fastest of twenty calls: the machine may be busy during any of them."""
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        await operation(name)
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
def test_the_window_begins_with_its_first_turn(strategy: MemoryStrategy, limit: int, kept: int, start: int) -> None:
    assert window_bounds(10, MemoryConfig(strategy=strategy, limit=limit), 10) == (kept, start)


async def test_turns_that_leave_the_window_stay_stored_and_a_window_never_grows_back(database_url: str) -> None:
    starts = []
    for limit in (3, 10, 2):
        async with RunnerHarness(database_url, policy=Policy(memory=MemoryConfig(limit=limit))) as harness:
            for n in range(5):
                await harness.receive_and_wait(str(n))
                conversation = (await harness.repository.find_conversations(["t"]))["t"]
                starts.append(conversation.window_start)
            assert len(await harness.repository.turns.load_history(conversation.id, 1000)) == len(starts)
    assert starts == [1, 1, 1, 2, 3, 3, 3, 3, 3, 3, 10, 11, 12, 13, 14]


async def test_a_clock_that_jumps_back_loses_and_reorders_nothing(database_url: str) -> None:
    clock = Clock()
    async with RunnerHarness(database_url, clock=clock) as harness:
        for n, days in enumerate((0, -400, 1, -30, 500)):
            clock.advance(days=days)
            await harness.receive_and_wait(str(n))
        # The same message, after the clock has gone back, is known all the same.
        again = build_incoming("5", ALICE, stanza_id="again", evidence=SAME_STANZA)
        for _ in range(2):
            harness.runner.intake.receive(again)
            await harness.runner.mailboxes.wait_until_idle()
            clock.advance(days=-100)
    async with RunnerHarness(database_url, clock=clock) as harness:
        row = (await harness.repository.find_conversations(["t"]))["t"]
        bodies = [json.loads(body)["input"]["query"] for body in await harness.repository.turns.load_history(row.id, 10)]
        assert bodies == [str(n) for n in range(6)]
        assert row.status.state is ConversationState.ACTIVE
        await harness.receive_and_wait("6")
        assert (await harness.repository.find_conversations(["t"]))["t"].turns == 7
