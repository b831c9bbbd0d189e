"""Row ids: blocks from one sequence, for several processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spade_coreason import StoreError
from spade_coreason.storage import back_up, open_database, restore
from spade_coreason.storage.backends.database import Database
from spade_coreason.storage.backends.group_commit import StoreTimings
from spade_coreason.storage.backends.sequences import MAX_ROW_ID, ROW_ID_BLOCK, take_row_ids
from spade_coreason.storage.records import DocumentCollection, NewDocument
from spade_coreason.storage.repository import AgentRepository
from tests.support.databases import SQLITE, WriterGate, execute, read_rows
from tests.support.errors import ExpectedErrors
from tests.support.records import new_conversation, open_repository, store_turn
from tests.support.servers.postgres import Postgres
from tests.support.wait import eventually
from tests.support.warm import WarmProcess

AGENT, ALICE = "echo@localhost", "alice@localhost"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def receive(repository: AgentRepository, text: str = "{}") -> int:
    return repository.inbox.receive(os.urandom(16), ALICE, text, NOW)[0]


async def test_the_next_block_is_there_before_the_last_one_is_used_up(database_url: str) -> None:
    writes = WriterGate()
    database = await open_database(database_url, "off", writer_hook=writes)
    ids = [database.row_ids.next() for _ in range(ROW_ID_BLOCK // 2)]
    assert read_rows_of_sequence(database_url) == ROW_ID_BLOCK + 1
    with writes.hold_batches() as batches:
        ids.append(database.row_ids.next())
        await eventually(lambda: bool(batches))
    await database.write(lambda connection: None)
    assert read_rows_of_sequence(database_url) == 2 * ROW_ID_BLOCK + 1
    ids += [database.row_ids.next() for _ in range(ROW_ID_BLOCK)]
    assert ids == list(range(1, len(ids) + 1))
    await database.close()


async def test_ids_ascend_for_an_agent_that_comes_from_another_process_while_the_next_block_is_there(
    postgres: Postgres,
) -> None:
    database = await open_database(postgres.url(), "off")
    foreign = (await database.write(lambda connection: take_row_ids(connection, ROW_ID_BLOCK))).stop - 1
    for _ in range(ROW_ID_BLOCK // 2 + 1):
        assert database.row_ids.next() < foreign
    await database.write(lambda connection: None)  # the next block is there, behind that of the other process
    await database.open_agent(AGENT)
    assert database.row_ids.next() > foreign
    await database.close()


def read_rows_of_sequence(url: str) -> int:
    [row] = execute(url, "SELECT next_id FROM sequences")
    return int(row["next_id"])


async def test_row_ids_that_are_used_up_while_nothing_is_written_fail_only_until_it_is(
    tmp_path: Path, expected_errors: ExpectedErrors
) -> None:
    expected_errors("the file is missing")
    path = tmp_path / "platform.db"
    database = await open_database(f"{SQLITE}{path}", "off", timings=StoreTimings(retry_s=0.01))
    repository = await open_repository(database, AGENT)
    path.rename(tmp_path / "away")
    with pytest.raises(StoreError):
        await database.write(lambda connection: None)
    first = [database.row_ids.next() for _ in range(ROW_ID_BLOCK)]
    for _ in range(3):
        with pytest.raises(StoreError, match="no row ids are left, because the database accepts no writes"):
            database.row_ids.next()
        _, commit, may_start_early = repository.inbox.receive(os.urandom(16), ALICE, "{}", NOW)
        assert not may_start_early
        with pytest.raises(StoreError, match="no row ids are left"):
            await commit
    (tmp_path / "away").rename(path)
    await eventually(lambda: not database.writes.is_failing and has_row_ids(database))
    assert database.row_ids.next() > first[-1]
    assert await repository.inbox.receive(os.urandom(16), ALICE, "{}", NOW)[1]
    await database.close()


def has_row_ids(database: Database) -> bool:
    try:
        return database.row_ids.next() > 0
    except StoreError:
        return False


async def test_an_agent_that_comes_from_another_process_goes_on_above_its_row_ids(database_url: str) -> None:
    """The other process is a connection that takes a block, because a database lets one process write at a time today."""
    database = await open_database(database_url, "off")
    repository = await open_repository(database, AGENT)
    await repository.inbox.open()
    first = receive(repository)
    await (await open_repository(database, "notes@localhost")).inbox.open()
    assert receive(repository) == first + 1  # one process wastes no block
    elsewhere = await database.write(lambda connection: take_row_ids(connection, 100))
    await repository.inbox.open()
    assert receive(repository) >= elsewhere.stop
    await database.close()


WRITER = """
import asyncio, os, sys
from datetime import UTC, datetime
from spade_coreason.storage import AgentRepository, open_database

async def main(url):
    store = AgentRepository(await open_database(url, "off"), "echo@localhost")
    await store.inbox.open()
    while True:
        row, commit, _ = store.inbox.receive(os.urandom(16), "a@localhost", "{}", datetime.now(UTC))
        await commit
        os.write(1, f"{row}\\n".encode())

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_process_that_is_killed_loses_two_blocks_at_most(database_url: str) -> None:
    last = 0
    for _ in range(3):
        child = WarmProcess([sys.executable, "-c", WRITER, database_url], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None
        rows = [int(child.stdout.readline()) for _ in range(50)]
        child.send_signal(signal.SIGKILL)
        child.communicate()
        assert last < rows[0] <= last + 2 * ROW_ID_BLOCK
        assert rows == sorted(set(rows))
        last = rows[-1]
    assert last < MAX_ROW_ID


async def test_row_ids_end_below_what_the_index_of_keys_can_hold(database: Database, expected_errors: ExpectedErrors) -> None:
    expected_errors("has used up its row ids")
    taken = await database.write(lambda connection: take_row_ids(connection, 1))
    await database.write(lambda connection: take_row_ids(connection, MAX_ROW_ID - taken.stop))
    assert await database.write(lambda connection: take_row_ids(connection, 1)) == range(MAX_ROW_ID, MAX_ROW_ID + 1)
    with pytest.raises(StoreError, match="has used up its row ids"):
        await database.write(lambda connection: take_row_ids(connection, 1))


async def test_a_document_with_more_passages_than_a_block_is_stored_in_order(database: Database) -> None:
    repository = await open_repository(database, AGENT)
    collection = DocumentCollection("person", ALICE)
    passages = [f"passage {number}" for number in range(ROW_ID_BLOCK + 10)]
    await repository.knowledge.save_documents(collection, [NewDocument("book", b"digest", passages)], NOW)
    [document] = await repository.knowledge.list_documents(collection)
    assert document.passages == len(passages)
    assert receive(repository) < ROW_ID_BLOCK  # the block of the process is left to its requests


async def test_a_restored_database_gives_no_row_id_twice(database_url: str, tmp_path: Path) -> None:
    database = await open_database(f"{SQLITE}{tmp_path}/source.db", "off")
    repository = await open_repository(database, AGENT)
    rows = [receive(repository) for _ in range(3)]
    await repository.inbox.flush()
    (tmp_path / "memory").mkdir()
    await back_up(database, tmp_path / "memory", tmp_path / "backup.tar", "test", lambda done, total: None)
    await database.close()
    for _ in range(2):  # the second time with the ids of a process that has just restored
        restored = await open_database(database_url, "off")
        if not read_rows(database_url, "inbox"):
            await restore(restored, tmp_path / "restored", tmp_path / "backup.tar", lambda done, total: None)
            assert [row["id"] for row in read_rows(database_url, "inbox")] == rows
        again = await open_repository(restored, AGENT)
        await again.inbox.open()
        assert await again.inbox.receive(os.urandom(16), ALICE, "{}", NOW)[1]
        await restored.close()
    ids = [row["id"] for row in read_rows(database_url, "inbox")]
    assert len(set(ids)) == 5
    assert await asyncio.to_thread(read_rows_of_sequence, database_url) > max(ids)


async def test_no_two_rows_have_the_same_id_whatever_their_tables(database_url: str) -> None:
    """After a lost connection, PostgreSQL is asked for the row ids of a transaction, to learn if it was committed.

    A row of another table with the same id would say so of one that was not.
    """
    database = await open_database(database_url, "off")
    repository = await open_repository(database, AGENT)
    for number in range(3):
        await store_turn(repository, new_conversation(repository, f"t{number}", ALICE))
    ids = [row["id"] for table in ("inbox", "interactions", "conversations") for row in read_rows(database_url, table)]
    assert len(ids) == len(set(ids)) == 9
    await database.close()
