"""Erased data is in no file of SQLite."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from spade_coreason import StoreError
from spade_coreason.domain.channel_kinds import PROGRAM
from spade_coreason.domain.messages import RequestContext
from spade_coreason.storage import erase_behind_others, find_requests, open_database, search_person
from spade_coreason.storage.backends.database import Database
from spade_coreason.storage.backends.group_commit import StoreTimings
from spade_coreason.storage.records import Variable
from spade_coreason.storage.repository import AgentRepository
from tests.support.databases import SQLITE, WriterGate
from tests.support.records import AGENT, ALICE, BOB, new_conversation, open_repository, receive_request, store_turn
from tests.support.requests import build_incoming
from tests.support.wait import eventually

DEFAULT_TIMINGS = StoreTimings()


def newest_truncation(database: Database) -> asyncio.Future[bool] | None:
    """Return the newest attempt to truncate the log on SQLite."""
    attempt: asyncio.Future[bool] | None = database.backend.log_truncation.attempt  # type: ignore[attr-defined]  # of SQLite's
    return attempt


@pytest.mark.parametrize("is_read", [False, True])
async def test_erased_data_are_not_in_the_log_also_with_a_concurrent_reader(tmp_path: Path, is_read: bool) -> None:
    file, log = tmp_path / "platform.db", tmp_path / "platform.db-wal"
    database = await open_database(f"{SQLITE}{file}", "normal", timings=StoreTimings(truncate_log_again_s=0.05))
    repository = await open_repository(database, AGENT)
    for owner in (ALICE, BOB):
        await store_turn(
            repository, new_conversation(repository, f"{owner}_{AGENT}", owner), Variable("person", owner, "v", f'"{owner}"')
        )
    assert ALICE.encode() in log.read_bytes()
    with closing(sqlite3.connect(file, isolation_level=None)) as reader:
        if is_read:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM conversations").fetchone()
        await repository.erase_person(ALICE)
        if is_read:
            await store_turn(repository, new_conversation(repository, "meanwhile", BOB))
            for _ in range(2):  # it is tried, and again
                previous = newest_truncation(database)
                await eventually(lambda previous=previous: newest_truncation(database) is not previous)  # type: ignore[misc]  # mypy knows no type of a lambda with a default
            assert previous is not None
            assert await previous is False
            assert ALICE.encode() in log.read_bytes()
            reader.execute("COMMIT")
        await eventually(lambda: log.stat().st_size == 0)
    assert ALICE.encode() not in file.read_bytes()
    assert [row.owner for row in await repository.list_conversations()] == [BOB] * (2 if is_read else 1)
    await repository.erase_person(BOB)
    await eventually(lambda: BOB.encode() not in log.read_bytes() + file.read_bytes())
    await repository.erase_person(BOB)
    await database.close()


async def open_with_log(
    tmp_path: Path, timings: StoreTimings = DEFAULT_TIMINGS, writes: WriterGate | None = None
) -> tuple[Database, AgentRepository, Path]:
    """Open a database whose data are all in the write-ahead log, with a person to be erased."""
    file = tmp_path / "platform.db"
    database = await open_database(f"{SQLITE}{file}", "normal", timings=timings, writer_hook=writes)
    repository = await open_repository(database, AGENT)
    await store_turn(repository, new_conversation(repository, f"{ALICE}_{AGENT}", ALICE))
    return database, repository, file


async def test_the_log_is_truncated_also_if_the_erasure_is_not_awaited(tmp_path: Path) -> None:
    writes = WriterGate()
    database, store, file = await open_with_log(tmp_path, writes=writes)
    with writes.hold_batches() as held_batches:
        erasing = asyncio.ensure_future(store.erase_person(ALICE))
        await eventually(lambda: bool(held_batches))  # until it is on its way
        erasing.cancel()
    log = Path(f"{file}-wal")
    await eventually(lambda: ALICE.encode() not in log.read_bytes() + file.read_bytes())
    await database.close()


@pytest.mark.parametrize("after_s", [0, 0.01, 0.02])
async def test_a_closed_database_has_no_log(tmp_path: Path, after_s: float) -> None:
    database, store, file = await open_with_log(tmp_path, StoreTimings(truncate_log_s=0.01))
    await store.erase_person(ALICE)
    await asyncio.sleep(after_s)
    await database.close()
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert ALICE.encode() not in file.read_bytes()


async def test_the_log_is_not_written_into_another_file(tmp_path: Path) -> None:
    database, store, file = await open_with_log(tmp_path)
    (tmp_path / "backup.db").write_bytes(b"another one")
    await store.erase_person(ALICE)
    (tmp_path / "backup.db").replace(file)
    truncation = database.backend.log_truncation.task  # type: ignore[attr-defined]  # of SQLite's
    await asyncio.wait([truncation])
    assert file.read_bytes() == b"another one"
    assert truncation.exception() is None
    with pytest.raises(StoreError, match="the file was replaced while in use"):
        await store.erase_person(ALICE)


async def test_erased_data_left_in_the_log_by_a_crash_are_gone_after_the_next_start(tmp_path: Path) -> None:
    database, store, _ = await open_with_log(tmp_path)
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


async def test_an_unreadable_turn_keeps_no_erased_data_in_the_log(tmp_path: Path) -> None:
    file, log = tmp_path / "platform.db", tmp_path / "platform.db-wal"
    database = await open_database(f"{SQLITE}{file}", "normal")
    repository = await open_repository(database, AGENT)
    for owner in (ALICE, BOB):
        await store_turn(repository, new_conversation(repository, f"{owner}_{AGENT}", owner))
    with closing(sqlite3.connect(file)) as other:
        other.execute("UPDATE interactions SET body = CAST(x'22ff22' AS TEXT) WHERE id = (SELECT max(id) FROM interactions)")
        other.commit()
    with pytest.raises(StoreError, match="decode"):
        await repository.load([f"{BOB}_{AGENT}"], BOB, 5)
    await repository.erase_person(ALICE)
    await eventually(lambda: log.stat().st_size == 0)
    await database.close()


async def test_an_answered_request_is_no_waiting_one_and_is_erased_too(repository: AgentRepository) -> None:
    await store_turn(repository, new_conversation(repository), answer="[]")  # whose reply is not acknowledged
    await receive_request(repository)
    report = await repository.erase_person(ALICE)
    assert (report.interactions, report.requests) == (1, 1)
    assert await repository.inbox.load_pending() == []


async def test_an_answered_request_that_an_agent_passed_on_is_no_waiting_one_and_is_erased_too(
    repository: AgentRepository,
) -> None:
    passed_on = build_incoming("a", BOB, PROGRAM, stanza_id="1", thread=None, context=RequestContext(1, ALICE)).to_json()
    await store_turn(repository, new_conversation(repository, owner=BOB), answer="[]", root=ALICE)
    await receive_request(repository, BOB, passed_on)
    search = await search_person(repository.database, ALICE, [AGENT])
    assert len(await find_requests(repository.database, [AGENT], search, ALICE)) == 2
    requests, _ = await erase_behind_others(repository.database, [AGENT], search, ALICE)
    assert requests == {AGENT: 1}
    assert await repository.inbox.load_pending() == []
