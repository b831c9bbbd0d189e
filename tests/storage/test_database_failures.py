"""What happens to a database that runs: full, read-only, locked, gone; nothing is lost, and it goes on when it can."""

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
from spade_coreason.storage import open_database
from spade_coreason.storage.database import Database, StoreTimings
from spade_coreason.storage.repository import AgentRepository
from tests.support.databases import SQLITE, execute
from tests.support.errors import ExpectedErrors
from tests.support.servers.postgres import Postgres
from tests.support.wait import PATIENCE_S, eventually

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SOON = StoreTimings(retry_s=0.02)


class Accident:
    """One, on SQLite: it happens, and is over."""

    def __init__(self, database: Database, path: Path) -> None:
        self.database, self.path = database, path

    async def _run(self, sql: str) -> None:
        await self.database.write(lambda connection: connection.exec_driver_sql(sql))

    async def full(self) -> Callable[[], object]:
        await self._run("PRAGMA max_page_count = 1")  # no smaller than it is
        return lambda: self._off("PRAGMA max_page_count = 100000")

    async def gone(self) -> Callable[[], object]:
        aside = self.path.with_name("aside")
        os.rename(self.path, aside)
        return lambda: os.rename(aside, self.path)

    async def replaced(self) -> Callable[[], object]:
        mend = await self.gone()
        self.path.write_bytes(b"")
        return mend

    async def locked(self) -> Callable[[], object]:
        await self._run("PRAGMA busy_timeout = 10")
        other = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        return other.close

    def _off(self, sql: str) -> object:
        # As when somebody makes room: the writer's own connection feels it.
        return asyncio.ensure_future(asyncio.wait_for(self._until_done(sql), PATIENCE_S))

    async def _until_done(self, sql: str) -> None:
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
        ("full", "database or disk is full; make room on the disk"),
        ("gone", "is gone (No such file or directory); put it back, or stop the platform and restore a backup"),
        ("replaced", "is another file now; put it back, or stop the platform and restore a backup"),
        ("locked", "database is locked; end the other program that has it open"),
    ],
)
async def test_after_an_accident_it_goes_on_by_itself_and_nothing_is_lost(
    tmp_path: Path,
    kind: str,
    problem: str,
    caplog: pytest.LogCaptureFixture,
    expected_errors: ExpectedErrors,
) -> None:
    expected_errors(f"{problem}; it is tried again every 0.02 s")
    path = tmp_path / "platform.db"
    database = await open_database(f"{SQLITE}{path}", "off", timings=SOON)
    store = AgentRepository(database, "echo@localhost")

    def received(number: int) -> tuple[int, asyncio.Future[bool], bool]:
        return store.inbox.receive(bytes([number]) * 16, "alice@localhost", f'"{"x" * 9000}"', NOW)

    def receive(number: int) -> asyncio.Future[bool]:
        return received(number)[1]

    assert await receive(0)
    mend = await getattr(Accident(database, path), kind)()
    outcomes = await asyncio.gather(*(receive(number) for number in range(1, 20)), return_exceptions=True)
    assert {str(outcome) for outcome in outcomes} == {f"{path}: {problem}"}
    assert store.is_failing
    _, is_new, is_surely_new = received(20)
    assert not is_surely_new  # no turn begins on it
    with pytest.raises(StoreError):
        await is_new
    if kind in ("gone", "replaced"):
        with pytest.raises(StoreError, match="put it back"):
            await store.inbox.load_pending()
    else:
        assert [pending.key[0] for pending in await store.inbox.load_pending()] == [0]  # reading goes on
    await eventually(lambda: f"{path}: {problem}; it is tried again every 0.02 s" in caplog.text)
    if isinstance(mended := mend(), asyncio.Future):
        await mended
    await eventually(lambda: not store.is_failing)
    assert caplog.text.count("it is tried again") == 1
    assert "can be written again" in caplog.text
    assert await receive(20)
    await database.close()
    database = await open_database(f"{SQLITE}{path}", "off")
    assert [pending.key[0] for pending in await AgentRepository(database, "echo@localhost").inbox.load_pending()] == [0, 20]
    await database.close()


FULL = """
CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'could not extend file "base/5/16384": No space left on device' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER no_room BEFORE INSERT OR UPDATE ON inbox FOR EACH STATEMENT EXECUTE FUNCTION no_room();
CREATE TRIGGER no_room BEFORE INSERT OR UPDATE ON alembic_version FOR EACH STATEMENT EXECUTE FUNCTION no_room();
"""


async def test_when_the_disk_of_the_database_server_is_full_nothing_is_lost_either(
    postgres: Postgres, caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors
) -> None:
    expected_errors("No space left on device; it is tried again every 0.02 s")
    url = postgres.url()
    database = await open_database(url, "off", timings=SOON)
    store = AgentRepository(database, "echo@localhost")

    def receive(number: int) -> asyncio.Future[bool]:
        return store.inbox.receive(bytes([number]) * 16, "alice@localhost", "{}", NOW)[1]

    assert await receive(0)
    await asyncio.to_thread(execute, url, FULL)  # the server says to each writer what it says of a full disk
    outcomes = await asyncio.gather(*(receive(number) for number in range(1, 20)), return_exceptions=True)
    [problem] = {str(outcome) for outcome in outcomes}
    assert problem.startswith(f"{database.name}: ")
    assert "No space left on device" in problem
    assert store.is_failing
    assert [pending.key[0] for pending in await store.inbox.load_pending()] == [0]  # reading goes on
    await eventually(lambda: f"{problem}; it is tried again every 0.02 s" in caplog.text)
    await asyncio.to_thread(execute, url, "DROP FUNCTION no_room CASCADE")
    await eventually(lambda: not store.is_failing)
    assert await receive(20)
    assert [pending.key[0] for pending in await store.inbox.load_pending()] == [0, 20]
    await database.close()


async def test_one_write_that_cannot_be_done_is_no_accident(tmp_path: Path) -> None:
    database = await open_database(f"{SQLITE}{tmp_path}/platform.db", "off")
    with pytest.raises(StoreError, match="nowhere"):
        await database.write(lambda connection: connection.exec_driver_sql("INSERT INTO nowhere VALUES (1)"))
    assert not database.is_failing
    await database.close()


async def test_what_became_read_only_says_so(tmp_path: Path, expected_errors: ExpectedErrors) -> None:
    expected_errors("a readonly database; see to the rights of the file and its directory; it is tried again")
    database = await open_database(f"{SQLITE}{tmp_path}/platform.db", "off")
    store = AgentRepository(database, "echo@localhost")
    await database.write(lambda connection: connection.exec_driver_sql("PRAGMA query_only = ON"))
    for number in range(2):
        with pytest.raises(StoreError, match=r"a readonly database; see to the rights of the file"):
            await store.inbox.receive(bytes([number]) * 16, "alice@localhost", "{}", NOW)[1]
        assert store.is_failing
    assert await store.inbox.load_pending() == []
    await database.close()


async def test_a_place_where_no_database_can_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "directory").mkdir()
    for place, problem in (
        ("file/sub/platform.db", "cannot be opened: Not a directory; see to the directory"),
        ("directory", "unable to open database file; see to the directory"),
    ):
        with pytest.raises(StoreError) as caught:
            await open_database(f"{SQLITE}{tmp_path}/{place}")
        assert str(caught.value) == f"{tmp_path}/{place}: {problem}"
