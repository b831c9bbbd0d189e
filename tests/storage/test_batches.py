"""Batches of writes: everything that arrives while the event loop is busy is one write, and nothing waits for a timer."""

from __future__ import annotations

import asyncio
import ctypes
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from spade_coreason.contracts import ConversationState
from spade_coreason.domain.conversation import ConversationStatus
from spade_coreason.exceptions import StoreError
from spade_coreason.storage.backends.database import Database
from spade_coreason.storage.backends.group_commit import Commit
from spade_coreason.storage.backends.statements import MAX_ROWS, RECEIVE
from spade_coreason.storage.records import StoredConversation
from spade_coreason.storage.repository import AgentRepository
from tests.support.databases import SAME_STANZA, open_without_sync
from tests.support.errors import ExpectedErrors
from tests.support.records import open_repository
from tests.support.wait import TIMEOUT_S

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
async def repository(database: Database) -> AgentRepository:
    return await open_repository(database, "echo@localhost")


def receive(repository: AgentRepository, number: int) -> Commit[bool]:
    return repository.inbox.receive(number.to_bytes(16, "big"), "alice@localhost", "{}", NOW, evidence=SAME_STANZA)[1]


async def test_writes_in_successive_rounds_of_the_loop_are_one_transaction(repository: AgentRepository) -> None:
    stored = []
    for number in range(6):
        stored.append(receive(repository, number))
        await asyncio.sleep(0)
    assert await stored[0]
    assert all(one.is_done for one in stored)


async def test_writes_that_never_stop_arriving_are_written_too(repository: AgentRepository) -> None:
    stored = [receive(repository, 0)]
    async with asyncio.timeout(TIMEOUT_S):
        while not stored[0].is_done:
            stored.append(receive(repository, len(stored)))
            await asyncio.sleep(0)
    assert not stored[-1].is_done
    assert all(await asyncio.gather(*stored))
    assert len(await repository.inbox.load_pending()) == len(stored)


async def test_writes_during_a_write_follow_at_once(repository: AgentRepository) -> None:
    stored = []
    for number in range(300):
        stored.append(receive(repository, number))
        await asyncio.sleep(0 if number % 3 else 0.0002)
    assert all(await asyncio.gather(*stored))
    assert [one.key for one in await repository.inbox.load_pending()] == [number.to_bytes(16, "big") for number in range(300)]


def find_sqlite_memory_used() -> Callable[[], int]:
    """Return SQLite's own function that tells the bytes which it has allocated in this process."""
    library = next((line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libsqlite3" in line), "")
    if not library:
        pytest.skip("Python has a SQLite of its own, which tells nobody its memory")
    memory_used = ctypes.CDLL(library).sqlite3_memory_used
    memory_used.restype = ctypes.c_int64
    return memory_used


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_large_requests_of_batches_of_every_size_leave_no_memory_behind(repository: AgentRepository) -> None:
    memory_used = find_sqlite_memory_used()
    text, before = "x" * 2**20, memory_used()
    for size in range(1, MAX_ROWS + 1):
        await asyncio.gather(*(repository.inbox.receive(uuid4().bytes, "alice@localhost", text, NOW)[1] for _ in range(size)))
    # The largest text of a statement, and the cache of pages. With a statement of 16 rows, each size would keep its rows.
    assert memory_used() - before < 16 * 2**20


def finish(repository: AgentRepository, row: int, callback: Callable[[bool], None]) -> Commit[bool]:
    commit = repository.inbox.finish(row, make_conversation(repository, f"t{row}"), None, "[]")
    commit.on_stored(callback)
    return commit


def make_conversation(repository: AgentRepository, thread: str) -> StoredConversation:
    status = ConversationStatus(ConversationState.ACTIVE, 1, NOW, NOW)
    return StoredConversation(repository.database.row_ids.next(), thread, "alice@localhost", "s", status, 100)


async def test_callback_is_called_when_a_turn_is_durable_and_before_its_waiters(repository: AgentRepository) -> None:
    order: list[str] = []
    row, is_new, _ = repository.inbox.receive(b"k" * 16, "alice@localhost", "{}", NOW)

    def callback(is_stored: bool) -> None:
        order.append(f"then, {is_stored}, {is_new.is_stored}")

    async def wait() -> None:
        await finish(repository, row, callback)
        order.append("whoever waits")

    await wait()
    assert order == ["then, True, True", "whoever waits"]


async def test_callbacks_tell_failed_writes_and_outlive_cancelled_waiters(
    repository: AgentRepository, database: Database
) -> None:
    called: list[str] = []
    receive(repository, 0)  # so that the others are written together
    broken_row = (database.row_ids.next(), None, bytearray(16), "alice@localhost", 0, 0, "{}")
    broken, cancelled, fine = (
        database.writes.submit([(RECEIVE, broken_row)]),
        database.writes.submit([]),
        database.writes.submit([]),
    )
    for commit, name in (broken, "broken"), (cancelled, "cancelled"), (fine, "fine"):
        commit.on_stored(lambda _, name=name: called.append(name))  # type: ignore[misc]  # mypy knows no type of a default
        commit.on_failed(lambda _, name=name: called.append(f"{name} has failed"))  # type: ignore[misc]  # as above
    waiting = asyncio.ensure_future(cancelled)
    await asyncio.sleep(0)
    waiting.cancel()  # the write goes on without it
    assert await fine
    assert isinstance(broken.error, Exception)
    assert not await broken.wait()
    assert await cancelled
    assert sorted(called) == ["broken has failed", "cancelled", "fine"]
    broken.on_stored(lambda _: called.append("late"))
    broken.on_failed(lambda error: called.append(type(error).__name__))
    assert called[3:] == [type(broken.error).__name__]


@pytest.mark.parametrize("problem", [ZeroDivisionError, asyncio.CancelledError])
async def test_a_failing_callback_delays_no_other_write(
    repository: AgentRepository,
    database: Database,
    caplog: pytest.LogCaptureFixture,
    problem: type[BaseException],
    expected_errors: ExpectedErrors,
) -> None:
    expected_errors(f"a caller cannot be notified that its write has ended: {problem.__name__}")

    def fail(_: bool) -> None:
        raise problem

    all_of_them = receive(repository, 0), database.writes.submit([]), database.writes.submit([])
    all_of_them[1].on_stored(fail)
    assert all([await one for one in all_of_them])
    assert "a caller cannot be notified that its write has ended" in caplog.text
    assert problem.__name__ in caplog.text
    assert await database.writes.submit([])


@pytest.mark.parametrize("looks_up", [False, True])
async def test_callback_is_released_by_the_writer(repository: AgentRepository, database: Database, looks_up: bool) -> None:
    class Turn:
        def end(self, _: bool) -> None:
            pass

    turn = Turn()
    gone = weakref.ref(turn)
    looked_up = [repository.load(["t"], "alice@localhost", 5)] if looks_up else []
    stored = database.writes.submit([])
    stored.on_stored(turn.end)
    del turn
    await asyncio.gather(stored, *looked_up)
    assert gone() is None


async def test_callback_gets_the_result_of_a_function(database: Database) -> None:
    got: list[int] = []
    commit = database.run(lambda connection: 7)
    commit.on_stored(got.append)
    assert await commit == 7
    commit.on_stored(got.append)
    assert got == [7, 7]


async def test_a_single_turn_waits_for_no_round_of_the_loop(database_url: str) -> None:
    batch_sizes: list[int] = []

    def record_batches(batch: list[Any], write: Callable[[list[Any]], None]) -> None:
        batch_sizes.append(len(batch))
        write(batch)

    database = await open_without_sync(database_url, record_batches)
    repository = await open_repository(database, "echo@localhost")
    await receive(repository, 0)
    batch_sizes.clear()
    row, is_new, _ = repository.inbox.receive(b"k" * 16, "alice@localhost", "{}", NOW)
    assert batch_sizes == []
    ended = finish(repository, row, lambda _: None)
    assert batch_sizes == [2]  # the request and its end, in one transaction
    assert await ended
    assert await is_new

    rows = [repository.inbox.receive(bytes([number]) * 16, "alice@localhost", "{}", NOW)[0] for number in range(2, 5)]
    several = [finish(repository, row, lambda _: None) for row in rows]
    assert batch_sizes == [2]  # they are not alone: what else comes in this moment goes with them
    assert all(await asyncio.gather(*several))
    assert batch_sizes == [2, 6]

    row, is_new, _ = repository.inbox.receive(b"l" * 16, "alice@localhost", "{}", NOW)
    ended = finish(repository, row, lambda _: None)
    assert batch_sizes == [2, 6]  # nor is the next, as far as is known
    assert all(await asyncio.gather(is_new, ended))
    row = repository.inbox.receive(b"m" * 16, "alice@localhost", "{}", NOW)[0]
    ended = finish(repository, row, lambda _: None)
    assert batch_sizes == [2, 6, 2, 2]  # but the one after it is
    assert await ended
    row = repository.inbox.receive(b"n" * 16, "alice@localhost", "{}", NOW)[0]
    ended = repository.inbox.finish(row, make_conversation(repository, "refused"), None, "[]")
    assert batch_sizes == [2, 6, 2, 2, 2]  # a refusal, or a command, likewise
    assert await ended
    await database.close()


async def test_all_that_ends_in_one_round_is_one_batch(database_url: str) -> None:
    batch_sizes: list[int] = []

    def record_batches(batch: list[Any], write: Callable[[list[Any]], None]) -> None:
        batch_sizes.append(len(batch))
        write(batch)

    database = await open_without_sync(database_url, record_batches)
    repository = await open_repository(database, "echo@localhost")
    await receive(repository, 0)
    batch_sizes.clear()
    rows = [repository.inbox.receive(bytes([number]) * 16, "alice@localhost", "{}", NOW)[0] for number in range(1, 41)]
    ended = [finish(repository, row, lambda _: None) for row in rows]
    assert batch_sizes == []
    assert all(await asyncio.gather(*ended))
    assert batch_sizes == [40 + 40]
    await database.close()


async def test_reading_delays_no_write(repository: AgentRepository) -> None:
    for number in range(3):
        assert (await repository.load(["t"], "alice@localhost", 5)).conversations == {}
        assert await receive(repository, number)
        both = await asyncio.gather(repository.load(["t"], "alice@localhost", 5), receive(repository, 10 + number))
        assert both[1]


async def test_a_deferred_write_needs_no_other_write(repository: AgentRepository, database: Database) -> None:
    row, is_new, _ = repository.inbox.receive(b"k" * 16, "alice@localhost", "{}", NOW)
    assert await is_new
    repository.inbox.close(row)
    async with asyncio.timeout(TIMEOUT_S):
        while [one.state for one in await repository.inbox.load_received_from("alice@localhost")] != [2]:  # noqa: ASYNC110 - in the database
            await asyncio.sleep(0.02)


async def test_an_agent_that_starts_again_finds_only_its_open_requests(repository: AgentRepository, database: Database) -> None:
    conversation = make_conversation(repository, "t")
    rows = [
        repository.inbox.receive(bytes([number]) * 16, "alice@localhost", "{}", NOW, evidence=SAME_STANZA)[0]
        for number in range(6)
    ]
    assert not await repository.inbox.receive(bytes([0]) * 16, "alice@localhost", "{}", NOW, evidence=SAME_STANZA)[1]
    await repository.inbox.finish(rows[1], conversation, None, None)  # refused, and nothing is said
    await repository.inbox.finish(rows[2], conversation, None, '["answer"]')
    await repository.inbox.finish(rows[3], conversation, None, '["answer"]')
    repository.inbox.close(rows[3])
    again = await open_repository(database, repository.agent)
    assert [one.inbox_row for one in await again.inbox.load_pending()] == [rows[0], rows[2], rows[4], rows[5]]
    again.inbox.close(rows[4])
    assert [one.inbox_row for one in await repository.inbox.load_pending()] == [rows[0], rows[2], rows[5]]
    assert await (await open_repository(database, "notes@localhost")).inbox.load_pending() == []


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
@pytest.mark.parametrize("failing", [(), (1,), (2, 0), (0, 1, 2)], ids=str)
def test_joined_commits_are_done_when_the_last_one_is(order: tuple[int, ...], failing: tuple[int, ...]) -> None:
    commits: list[Commit[bool]] = [Commit() for _ in range(3)]
    joined, called = Commit.join(commits), list[Any]()
    joined.on_stored(called.append)
    joined.on_failed(lambda error: called.append(str(error)))
    for number in order:
        assert (joined.is_done, called) == (False, [])
        commits[number].resolve(StoreError(f"{number}") if number in failing else False)
    assert joined.is_done
    assert called == [str(min(failing)) if failing else True]


@pytest.mark.parametrize("outcomes", [(True,), (True, True), (StoreError("full"), True), (True, StoreError("full"))], ids=str)
@pytest.mark.parametrize("finished", [0, 1, 2])
def test_commits_that_are_done_before_they_are_joined_count(outcomes: tuple[Any, ...], finished: int) -> None:
    commits: list[Commit[bool]] = [Commit() for _ in outcomes]
    for commit, outcome in list(zip(commits, outcomes, strict=True))[:finished]:
        commit.resolve(outcome)
    joined = Commit.join(commits)
    assert joined.is_done is (finished >= len(commits))
    for commit, outcome in list(zip(commits, outcomes, strict=True))[finished:]:
        commit.resolve(outcome)
    assert joined.is_stored is all(outcome is True for outcome in outcomes)
    assert joined.error == next((outcome for outcome in outcomes if outcome is not True), None)


def test_a_commit_that_is_joined_with_itself_counts_each_time() -> None:
    commit: Commit[bool] = Commit()
    joined = Commit.join([commit, commit])
    commit.resolve(True)
    assert joined.is_stored
