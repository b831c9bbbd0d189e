"""What is written together: as much as comes while the event loop has anything new, and nothing waits for the clock."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from spade_coreason import ConversationState
from spade_coreason.domain.conversation import ConversationStatus
from spade_coreason.storage.database import Database
from spade_coreason.storage.records import StoredConversation
from spade_coreason.storage.repository import AgentRepository
from spade_coreason.storage.statements import RECEIVE
from tests.support.databases import open_without_sync
from tests.support.errors import ExpectedErrors
from tests.support.wait import PATIENCE_S

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def store(database: Database) -> AgentRepository:
    return AgentRepository(database, "echo@localhost")


def received(store: AgentRepository, number: int) -> asyncio.Future[bool]:
    return store.inbox.receive(number.to_bytes(16, "big"), "alice@localhost", "{}", NOW)[1]


async def test_what_comes_in_round_after_round_of_the_loop_is_one_transaction(store: AgentRepository) -> None:
    stored = []
    for number in range(6):
        stored.append(received(store, number))
        await asyncio.sleep(0)
    assert await stored[0]
    assert all(one.done() for one in stored)


async def test_what_never_stops_coming_is_written_all_the_same(store: AgentRepository) -> None:
    stored = [received(store, 0)]
    async with asyncio.timeout(PATIENCE_S):
        while not stored[0].done():
            stored.append(received(store, len(stored)))
            await asyncio.sleep(0)
    assert not stored[-1].done()
    assert all(await asyncio.gather(*stored))
    assert len(await store.inbox.load_pending()) == len(stored)


async def test_what_comes_while_others_are_written_follows_at_once(store: AgentRepository) -> None:
    stored = []
    for number in range(300):
        stored.append(received(store, number))
        await asyncio.sleep(0 if number % 3 else 0.0002)
    assert all(await asyncio.gather(*stored))
    assert [one.key for one in await store.inbox.load_pending()] == [number.to_bytes(16, "big") for number in range(300)]


def finish(store: AgentRepository, row: int, then: Callable[[bool], None]) -> asyncio.Future[bool]:
    return store.inbox.finish(row, talk(store, f"t{row}"), None, "[]", on_commit=then)


def talk(store: AgentRepository, thread: str) -> StoredConversation:
    life = ConversationStatus(ConversationState.ACTIVE, 1, NOW, NOW)
    return StoredConversation(store.next_conversation_row_id(), thread, "alice@localhost", "s", life, 100)


async def test_what_follows_a_turn_is_called_when_it_is_durable_and_before_anybody_goes_on(store: AgentRepository) -> None:
    order: list[str] = []
    row, is_new, _ = store.inbox.receive(b"k" * 16, "alice@localhost", "{}", NOW)

    def then(is_stored: bool) -> None:
        order.append(f"then, {is_stored}, {is_new.result()}")

    async def wait() -> None:
        await finish(store, row, then)
        order.append("whoever waits")

    await wait()
    assert order == ["then, True, True", "whoever waits"]


async def test_what_follows_is_not_called_of_what_is_not_stored_or_given_up(store: AgentRepository, database: Database) -> None:
    called: list[str] = []
    received(store, 0)  # so that the others are written together
    nobody = (database.next_id("inbox"), None, bytearray(16), "alice@localhost", 0, 0, "{}")
    broken = database.submit([(RECEIVE, nobody)], lambda _: called.append("broken"))
    given_up = database.submit([], lambda _: called.append("given up"))
    given_up.cancel()
    fine = database.submit([], lambda _: called.append("fine"))
    assert await fine
    assert broken.exception() is not None
    assert called == ["fine"]


@pytest.mark.parametrize("problem", [ZeroDivisionError, asyncio.CancelledError])
async def test_what_follows_and_fails_holds_up_nobody(
    store: AgentRepository,
    database: Database,
    caplog: pytest.LogCaptureFixture,
    problem: type[BaseException],
    expected_errors: ExpectedErrors,
) -> None:
    expected_errors(f"what is stored cannot be told: {problem.__name__}")

    def fail(_: bool) -> None:
        raise problem

    all_of_them = received(store, 0), database.submit([], fail), database.submit([], lambda _: None)
    assert all([await one for one in all_of_them])
    assert "what is stored cannot be told" in caplog.text
    assert problem.__name__ in caplog.text
    assert await database.submit([])


@pytest.mark.parametrize("looks_up", [False, True])
async def test_what_follows_is_not_held_by_the_writer(store: AgentRepository, database: Database, looks_up: bool) -> None:
    class Turn:
        def end(self, _: bool) -> None:
            pass

    turn = Turn()
    gone = weakref.ref(turn)
    looked_up = [store.load(["t"], "alice@localhost", 5)] if looks_up else []
    stored = database.submit([], turn.end)
    del turn
    await asyncio.gather(stored, *looked_up)
    assert gone() is None


async def test_what_follows_gets_what_a_function_gives(database: Database) -> None:
    got: list[int] = []
    assert await database.run(lambda connection: 7, got.append) == 7
    assert got == [7]


async def test_a_turn_that_is_alone_waits_for_no_round_of_the_loop(database_url: str) -> None:
    handed: list[int] = []

    def watched(batch: list[Any], write: Callable[[list[Any]], None]) -> None:
        handed.append(len(batch))
        write(batch)

    database = await open_without_sync(database_url, watched)
    store = AgentRepository(database, "echo@localhost")
    await received(store, 0)
    handed.clear()
    row, is_new, _ = store.inbox.receive(b"k" * 16, "alice@localhost", "{}", NOW)
    assert handed == []
    ended = finish(store, row, lambda _: None)
    assert handed == [2]  # the request and its end, in one transaction
    assert await ended
    assert await is_new

    rows = [store.inbox.receive(bytes([number]) * 16, "alice@localhost", "{}", NOW)[0] for number in range(2, 5)]
    several = [finish(store, row, lambda _: None) for row in rows]
    assert handed == [2]  # they are not alone: what else comes in this moment goes with them
    assert all(await asyncio.gather(*several))
    assert handed == [2, 6]

    row, is_new, _ = store.inbox.receive(b"l" * 16, "alice@localhost", "{}", NOW)
    ended = finish(store, row, lambda _: None)
    assert handed == [2, 6]  # nor is the next, as far as is known
    assert all(await asyncio.gather(is_new, ended))
    row = store.inbox.receive(b"m" * 16, "alice@localhost", "{}", NOW)[0]
    ended = finish(store, row, lambda _: None)
    assert handed == [2, 6, 2, 2]  # but the one after it is
    assert await ended
    row = store.inbox.receive(b"n" * 16, "alice@localhost", "{}", NOW)[0]
    ended = store.inbox.finish(row, talk(store, "refused"), None, "[]")
    assert handed == [2, 6, 2, 2, 2]  # a refusal, or a command, likewise
    assert await ended
    await database.close()


async def test_reading_alone_keeps_nothing_back(store: AgentRepository) -> None:
    for number in range(3):
        assert (await store.load(["t"], "alice@localhost", 5)).conversations == {}
        assert await received(store, number)
        both = await asyncio.gather(store.load(["t"], "alice@localhost", 5), received(store, 10 + number))
        assert both[1]


async def test_what_is_written_later_is_written_without_anything_else(store: AgentRepository, database: Database) -> None:
    row, is_new, _ = store.inbox.receive(b"k" * 16, "alice@localhost", "{}", NOW)
    assert await is_new
    store.inbox.close(row)
    async with asyncio.timeout(PATIENCE_S):
        while [one.state for one in await store.inbox.load_received_from("alice@localhost")] != [2]:  # noqa: ASYNC110 - in the database
            await asyncio.sleep(0.02)


async def test_an_agent_that_starts_again_finds_what_is_open_and_nothing_else(
    store: AgentRepository, database: Database
) -> None:
    one_talk = talk(store, "t")
    rows = [store.inbox.receive(bytes([number]) * 16, "alice@localhost", "{}", NOW)[0] for number in range(6)]
    assert not await store.inbox.receive(bytes([0]) * 16, "alice@localhost", "{}", NOW)[1]
    await store.inbox.finish(rows[1], one_talk, None, None)  # refused, and nothing is said
    await store.inbox.finish(rows[2], one_talk, None, '["answer"]')
    await store.inbox.finish(rows[3], one_talk, None, '["answer"]')
    store.inbox.close(rows[3])
    again = AgentRepository(database, store.agent)
    assert [one.inbox_row for one in await again.inbox.load_pending()] == [rows[0], rows[2], rows[4], rows[5]]
    again.inbox.close(rows[4])
    assert [one.inbox_row for one in await store.inbox.load_pending()] == [rows[0], rows[2], rows[5]]
    assert await AgentRepository(database, "notes@localhost").inbox.load_pending() == []
