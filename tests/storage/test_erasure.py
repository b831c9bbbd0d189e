"""What is deleted stands nowhere in the files of SQLite."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from spade_coreason import StoreError
from spade_coreason.storage import open_database
from spade_coreason.storage.database import Database, StoreTimings
from spade_coreason.storage.records import Variable
from spade_coreason.storage.repository import AgentRepository
from tests.support.databases import SQLITE
from tests.support.records import AGENT, ALICE, BOB, new_conversation, store_turn
from tests.support.wait import eventually

USUAL = StoreTimings()


def tried(database: Database) -> asyncio.Future[bool] | None:
    """The newest attempt to empty the log of one on SQLite."""
    attempt: asyncio.Future[bool] | None = database._truncation_future  # type: ignore[attr-defined]  # of SQLite's
    return attempt


@pytest.mark.parametrize("is_read", [False, True])
async def test_what_was_forgotten_is_not_in_the_log_either_even_if_somebody_reads_meanwhile(
    tmp_path: Path, is_read: bool
) -> None:
    file, log = tmp_path / "platform.db", tmp_path / "platform.db-wal"
    database = await open_database(f"{SQLITE}{file}", "normal", timings=StoreTimings(truncate_log_again_s=0.05))
    store = AgentRepository(database, AGENT)
    for owner in (ALICE, BOB):
        await store_turn(
            store, new_conversation(store, f"{owner}_{AGENT}", owner), Variable("person", owner, "v", f'"{owner}"')
        )
    assert ALICE.encode() in log.read_bytes()
    with closing(sqlite3.connect(file, isolation_level=None)) as reader:
        if is_read:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM conversations").fetchone()
        await store.erase_person(ALICE)
        if is_read:
            await store_turn(store, new_conversation(store, "meanwhile", BOB))
            for _ in range(2):  # it is tried, and again
                before = tried(database)
                await eventually(lambda before=before: tried(database) is not before)  # type: ignore[misc]  # mypy knows no type of a lambda with a default
            assert before is not None
            assert await before is False
            assert ALICE.encode() in log.read_bytes()
            reader.execute("COMMIT")
        await eventually(lambda: log.stat().st_size == 0)
    assert ALICE.encode() not in file.read_bytes()
    assert [row.owner for row in await store.list_conversations()] == [BOB] * (2 if is_read else 1)
    await store.erase_person(BOB)
    await eventually(lambda: BOB.encode() not in log.read_bytes() + file.read_bytes())
    await store.erase_person(BOB)
    await database.close()


async def forgotten(tmp_path: Path, timings: StoreTimings = USUAL) -> tuple[Database, AgentRepository, Path]:
    """A database of which nothing is in the file yet, all in the log, and where somebody is about to be forgotten."""
    file = tmp_path / "platform.db"
    database = await open_database(f"{SQLITE}{file}", "normal", timings=timings)
    store = AgentRepository(database, AGENT)
    await store_turn(store, new_conversation(store, f"{ALICE}_{AGENT}", ALICE))
    return database, store, file


async def test_whoever_deletes_need_not_wait_for_it(tmp_path: Path) -> None:
    database, store, file = await forgotten(tmp_path)
    forgetting = asyncio.ensure_future(store.erase_person(ALICE))
    while not database._pending:  # noqa: ASYNC110 - until it is on its way
        await asyncio.sleep(0)
    forgetting.cancel()
    log = Path(f"{file}-wal")
    await eventually(lambda: ALICE.encode() not in log.read_bytes() + file.read_bytes())
    await database.close()


@pytest.mark.parametrize("after_s", [0, 0.01, 0.02])
async def test_a_closed_database_has_no_log(tmp_path: Path, after_s: float) -> None:
    database, store, file = await forgotten(tmp_path, StoreTimings(truncate_log_s=0.01))
    await store.erase_person(ALICE)
    await asyncio.sleep(after_s)
    await database.close()
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert ALICE.encode() not in file.read_bytes()


async def test_the_log_is_not_written_into_another_file(tmp_path: Path) -> None:
    database, store, file = await forgotten(tmp_path)
    (tmp_path / "backup.db").write_bytes(b"another one")
    await store.erase_person(ALICE)
    (tmp_path / "backup.db").replace(file)
    emptying = database._truncation_task  # type: ignore[attr-defined]  # of SQLite's
    await asyncio.wait([emptying])
    assert file.read_bytes() == b"another one"
    assert emptying.exception() is None
    with pytest.raises(StoreError, match="is another file now"):
        await store.erase_person(ALICE)


async def test_what_a_crash_left_in_the_log_is_not_there_after_the_next_start(tmp_path: Path) -> None:
    database, store, _ = await forgotten(tmp_path)
    await store.erase_person(ALICE)
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("platform.db", "platform.db-wal"):
        (copy / name).write_bytes((tmp_path / name).read_bytes())
    assert ALICE.encode() in (copy / "platform.db-wal").read_bytes()
    again = await open_database(f"{SQLITE}{copy}/platform.db", "normal")
    assert ALICE.encode() not in (copy / "platform.db-wal").read_bytes() + (copy / "platform.db").read_bytes()
    await again.close()
    await database.close()


async def test_a_turn_that_cannot_be_read_keeps_nothing_of_others_in_the_log(tmp_path: Path) -> None:
    file, log = tmp_path / "platform.db", tmp_path / "platform.db-wal"
    database = await open_database(f"{SQLITE}{file}", "normal")
    store = AgentRepository(database, AGENT)
    for owner in (ALICE, BOB):
        await store_turn(store, new_conversation(store, f"{owner}_{AGENT}", owner))
    with closing(sqlite3.connect(file)) as other:
        other.execute("UPDATE interactions SET body = CAST(x'22ff22' AS TEXT) WHERE id = 2")
        other.commit()
    with pytest.raises(StoreError, match="decode"):
        await store.load([f"{BOB}_{AGENT}"], BOB, 5)
    await store.erase_person(ALICE)
    await eventually(lambda: log.stat().st_size == 0)
    await database.close()
