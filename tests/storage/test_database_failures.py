"""Failures of a running database (full, read-only, locked, gone): nothing is lost, and it recovers by itself."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Connection

from spade_coreason import StoreError
from spade_coreason.storage import Commit, open_database
from spade_coreason.storage.backends.database import Database
from spade_coreason.storage.backends.group_commit import StoreTimings
from spade_coreason.storage.backends.statements import SAVE_VARIABLE
from spade_coreason.storage.records import StoredStep
from spade_coreason.storage.repository import AgentRepository
from tests.support.databases import CLOSED, RECEIVED, SAME_STANZA, SQLITE, execute, read_rows
from tests.support.errors import ExpectedErrors
from tests.support.records import AGENT, ALICE, open_repository, receive_request
from tests.support.servers.postgres import Postgres
from tests.support.wait import TIMEOUT_S, eventually

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
FAST_RETRY = StoreTimings(retry_s=0.02)


class SqliteFailure:
    """A failure on SQLite; each method causes one and returns the function that ends it."""

    def __init__(self, database: Database, path: Path) -> None:
        self.database, self.path = database, path

    async def _run(self, sql: str) -> None:
        await self.database.write(lambda connection: connection.exec_driver_sql(sql))

    async def fill(self) -> Callable[[], object]:
        await self._run("PRAGMA max_page_count = 1")  # no smaller than it is
        return lambda: self._execute_later("PRAGMA max_page_count = 100000")

    async def remove(self) -> Callable[[], object]:
        aside = self.path.with_name("aside")
        os.rename(self.path, aside)
        return lambda: os.rename(aside, self.path)

    async def replace(self) -> Callable[[], object]:
        recover = await self.remove()
        self.path.write_bytes(b"")
        return recover

    async def lock(self) -> Callable[[], object]:
        await self._run("PRAGMA busy_timeout = 10")
        other = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        return other.close

    def _execute_later(self, sql: str) -> object:
        # As when somebody makes room: the writer's own connection feels it.
        return asyncio.ensure_future(asyncio.wait_for(self._retry_until_done(sql), TIMEOUT_S))

    async def _retry_until_done(self, sql: str) -> None:
        def work(connection: Connection) -> None:
            connection.exec_driver_sql(sql)

        while True:
            try:
                await self.database.write(work)
                return
            except StoreError:  # it was in one transaction with what cannot be written
                await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("fill", "database or disk is full; free space on the disk"),
        (
            "remove",
            "the file is missing (No such file or directory); put the original back, or stop the platform and restore a backup",
        ),
        ("replace", "the file was replaced while in use; put the original back, or stop the platform and restore a backup"),
        ("lock", "database is locked; stop the other program that uses it"),
    ],
)
async def test_after_a_failure_the_database_recovers_and_nothing_is_lost(
    tmp_path: Path,
    kind: str,
    problem: str,
    caplog: pytest.LogCaptureFixture,
    expected_errors: ExpectedErrors,
) -> None:
    expected_errors(f"{problem}; retrying every 0.02 s")
    path = tmp_path / "platform.db"
    database = await open_database(f"{SQLITE}{path}", "off", timings=FAST_RETRY)
    repository = await open_repository(database, "echo@localhost")

    def receive_whole(number: int) -> tuple[int, Commit[bool], bool]:
        return repository.inbox.receive(bytes([number]) * 16, "alice@localhost", f'"{"x" * 9000}"', NOW, evidence=SAME_STANZA)

    def receive(number: int) -> Commit[bool]:
        return receive_whole(number)[1]

    assert await receive(0)
    recover = await getattr(SqliteFailure(database, path), kind)()
    outcomes = await asyncio.gather(*(receive(number) for number in range(1, 20)), return_exceptions=True)
    assert {str(outcome) for outcome in outcomes} == {f"{path}: {problem}"}
    assert repository.database.writes.is_failing
    _, is_new, is_surely_new = receive_whole(20)
    assert not is_surely_new  # no turn begins on it
    with pytest.raises(StoreError):
        await is_new
    if kind in ("remove", "replace"):
        with pytest.raises(StoreError, match="put the original back"):
            await repository.inbox.load_pending()
    else:
        assert [pending.key[0] for pending in await repository.inbox.load_pending()] == [0]  # reading goes on
    await eventually(lambda: f"{path}: {problem}; retrying every 0.02 s" in caplog.text)
    if isinstance(recovered := recover(), asyncio.Future):
        await recovered
    await eventually(lambda: not repository.database.writes.is_failing)
    assert caplog.text.count("retrying") == 1
    assert "writing works again" in caplog.text
    assert await receive(20)
    await database.close()
    database = await open_database(f"{SQLITE}{path}", "off")
    assert [pending.key[0] for pending in await (await open_repository(database, "echo@localhost")).inbox.load_pending()] == [
        0,
        20,
    ]
    await database.close()


DISK_FULL_TRIGGERS = """
CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'could not extend file "base/5/16384": No space left on device' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER no_room BEFORE INSERT OR UPDATE ON inbox FOR EACH STATEMENT EXECUTE FUNCTION no_room();
CREATE TRIGGER no_room BEFORE INSERT OR UPDATE ON alembic_version FOR EACH STATEMENT EXECUTE FUNCTION no_room();
"""


async def test_a_full_disk_of_the_database_server_loses_nothing(
    postgres: Postgres, caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors
) -> None:
    expected_errors("No space left on device; retrying every 0.02 s")
    url = postgres.url()
    database = await open_database(url, "off", timings=FAST_RETRY)
    repository = await open_repository(database, "echo@localhost")

    def receive(number: int) -> Commit[bool]:
        return repository.inbox.receive(bytes([number]) * 16, "alice@localhost", "{}", NOW)[1]

    assert await receive(0)
    await asyncio.to_thread(execute, url, DISK_FULL_TRIGGERS)  # the server says to each writer what it says of a full disk
    outcomes = await asyncio.gather(*(receive(number) for number in range(1, 20)), return_exceptions=True)
    [problem] = {str(outcome) for outcome in outcomes}
    assert problem.startswith(f"{database.name}: ")
    assert "No space left on device" in problem
    assert repository.database.writes.is_failing
    assert [pending.key[0] for pending in await repository.inbox.load_pending()] == [0]  # reading goes on
    await eventually(lambda: f"{problem}; retrying every 0.02 s" in caplog.text)
    await asyncio.to_thread(execute, url, "DROP FUNCTION no_room CASCADE")
    await eventually(lambda: not repository.database.writes.is_failing)
    assert await receive(20)
    assert [pending.key[0] for pending in await repository.inbox.load_pending()] == [0, 20]
    await database.close()


async def make_unwritable(database: Database, url: str) -> Callable[[], object]:
    """Make all writes fail. Return the function that ends it, which may wait for the writer."""
    if url.startswith(SQLITE):
        return await SqliteFailure(database, Path(url.removeprefix(SQLITE))).remove()
    await asyncio.to_thread(execute, url, DISK_FULL_TRIGGERS)
    return lambda: execute(url, "DROP FUNCTION no_room CASCADE")


async def test_requests_that_are_closed_while_nothing_can_be_written_stay_closed(
    database_url: str, expected_errors: ExpectedErrors
) -> None:
    expected_errors("retrying every 0.02 s")
    database = await open_database(database_url, "off", timings=FAST_RETRY)
    repository = await open_repository(database, AGENT)
    withdrawn, answered, later, waiting = [await receive_request(repository) for _ in range(4)]
    await repository.inbox.save_step(answered, StoredStep("charge", 1, "a" * 64, "1"))
    await repository.inbox.store_reply(answered, '["<message/>"]')
    recover = await make_unwritable(database, database_url)
    for row in (withdrawn, answered):
        repository.inbox.close(row)
    await eventually(lambda: repository.database.writes.is_failing)
    repository.inbox.close(later)
    await asyncio.to_thread(recover)
    await eventually(lambda: not repository.database.writes.is_failing)
    stored = {row["id"]: row["state"] for row in read_rows(database_url, "inbox")}  # what a start after a crash would find
    assert stored == {withdrawn: CLOSED, answered: CLOSED, later: CLOSED, waiting: RECEIVED}
    assert read_rows(database_url, "steps") == []
    await database.close()


async def test_a_faulty_row_of_a_transaction_does_not_keep_a_request_open(
    repository: AgentRepository, database: Database, database_url: str
) -> None:
    row = await receive_request(repository)
    database.writes.submit_with_next(lambda: [(SAVE_VARIABLE, (AGENT, "person", ALICE, "colour", None, 0))])
    repository.inbox.close(row)
    await receive_request(repository)
    assert [stored["state"] for stored in read_rows(database_url, "inbox")] == [CLOSED, RECEIVED]
    assert not repository.database.writes.is_failing


async def test_one_invalid_write_is_no_database_failure(tmp_path: Path) -> None:
    database = await open_database(f"{SQLITE}{tmp_path}/platform.db", "off")
    with pytest.raises(StoreError, match="nowhere"):
        await database.write(lambda connection: connection.exec_driver_sql("INSERT INTO nowhere VALUES (1)"))
    assert not database.writes.is_failing
    await database.close()


async def test_a_database_that_became_read_only_says_so(tmp_path: Path, expected_errors: ExpectedErrors) -> None:
    expected_errors("a readonly database; correct the permissions of the file and its directory; retrying")
    database = await open_database(f"{SQLITE}{tmp_path}/platform.db", "off")
    repository = await open_repository(database, "echo@localhost")
    await database.write(lambda connection: connection.exec_driver_sql("PRAGMA query_only = ON"))
    for number in range(2):
        with pytest.raises(StoreError, match=r"a readonly database; correct the permissions of the file"):
            await repository.inbox.receive(bytes([number]) * 16, "alice@localhost", "{}", NOW)[1]
        assert repository.database.writes.is_failing
    assert await repository.inbox.load_pending() == []
    await database.close()


async def test_an_unusable_address_of_a_database_names_the_usable_ones(tmp_path: Path) -> None:
    for url, problem in (
        (
            "data/platform.db",
            "storage.url is not a database address; write sqlite+aiosqlite:///data/platform.db"
            " or postgresql+asyncpg://user:password@host/database",
        ),
        (
            f"{SQLITE}{tmp_path}/platform.db",
            f"{tmp_path}/platform.db: nothing is stored here yet; start the platform once, or correct storage.url",
        ),
    ):
        with pytest.raises(StoreError) as caught:
            await open_database(url, is_read_only=True)
        assert str(caught.value) == problem


async def test_an_unusable_path_of_a_database_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "directory").mkdir()
    for place, problem in (
        ("file/sub/platform.db", "cannot be opened: Not a directory; check that the directory exists and can be written"),
        ("directory", "cannot be opened: Is a directory; check that the directory exists and can be written"),
    ):
        with pytest.raises(StoreError) as caught:
            await open_database(f"{SQLITE}{tmp_path}/{place}")
        assert str(caught.value) == f"{tmp_path}/{place}: {problem}"
