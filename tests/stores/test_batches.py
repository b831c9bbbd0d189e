"""What is written together: as much as comes while the event loop has anything new, and nothing waits for the clock."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from spade_coreason import ConversationState
from spade_coreason.conversation import Life
from spade_coreason.stores import AgentStore, ConversationRow, Database

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def store(database: Database) -> AgentStore:
    return AgentStore(database, "echo@localhost")


def received(store: AgentStore, number: int) -> asyncio.Future[bool]:
    return store.inbox.receive(number.to_bytes(16, "big"), "alice@localhost", "{}", NOW)[1]


async def test_what_comes_in_round_after_round_of_the_loop_is_one_transaction(store: AgentStore) -> None:
    stored = []
    for number in range(6):
        stored.append(received(store, number))
        await asyncio.sleep(0)
    assert await stored[0]
    assert all(one.done() for one in stored)


async def test_what_never_stops_coming_is_written_all_the_same(store: AgentStore) -> None:
    stored = [received(store, 0)]
    async with asyncio.timeout(10):
        while not stored[0].done():
            stored.append(received(store, len(stored)))
            await asyncio.sleep(0)
    assert not stored[-1].done()
    assert all(await asyncio.gather(*stored))
    assert len(await store.inbox.pending()) == len(stored)


async def test_what_comes_while_others_are_written_follows_at_once(store: AgentStore) -> None:
    stored = []
    for number in range(300):
        stored.append(received(store, number))
        await asyncio.sleep(0 if number % 3 else 0.0002)
    assert all(await asyncio.gather(*stored))
    assert [one.key for one in await store.inbox.pending()] == [number.to_bytes(16, "big") for number in range(300)]


async def test_reading_alone_keeps_nothing_back(store: AgentStore) -> None:
    for number in range(3):
        assert (await store.load(["t"], "alice@localhost", 5)).rows == {}
        assert await received(store, number)
        both = await asyncio.gather(store.load(["t"], "alice@localhost", 5), received(store, 10 + number))
        assert both[1]


async def test_what_is_written_later_is_written_without_anything_else(store: AgentStore, database: Database) -> None:
    row, is_new, _ = store.inbox.receive(b"k" * 16, "alice@localhost", "{}", NOW)
    assert await is_new
    store.inbox.close(row)
    async with asyncio.timeout(5):
        while [one.state for one in await store.inbox.received_from("alice@localhost")] != [2]:  # noqa: ASYNC110 - in the database
            await asyncio.sleep(0.02)


async def test_an_agent_that_starts_again_finds_what_is_open_and_nothing_else(store: AgentStore, database: Database) -> None:
    life = Life(ConversationState.ACTIVE, 1, NOW, NOW)
    talk = ConversationRow(store.new_conversation_row(), "t", "alice@localhost", "s", life, 100)
    rows = [store.inbox.receive(bytes([number]) * 16, "alice@localhost", "{}", NOW)[0] for number in range(6)]
    assert not await store.inbox.receive(bytes([0]) * 16, "alice@localhost", "{}", NOW)[1]
    await store.inbox.finish(rows[1], talk, None, None)  # refused, and nothing is said
    await store.inbox.finish(rows[2], talk, None, '["answer"]')
    await store.inbox.finish(rows[3], talk, None, '["answer"]')
    store.inbox.close(rows[3])
    again = AgentStore(database, store.agent)
    assert [one.row for one in await again.inbox.pending()] == [rows[0], rows[2], rows[4], rows[5]]
    again.inbox.close(rows[4])
    assert [one.row for one in await store.inbox.pending()] == [rows[0], rows[2], rows[5]]
    assert await AgentStore(database, "notes@localhost").inbox.pending() == []
