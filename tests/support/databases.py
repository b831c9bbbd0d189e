"""SQLite and PostgreSQL databases for tests, with access to their content as another program sees it."""

from __future__ import annotations

import asyncio
import sqlite3
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from spade_coreason.domain.duplicates import Evidence
from spade_coreason.storage import open_database
from spade_coreason.storage.backends.database import Database
from spade_coreason.storage.backends.group_commit import WriterHook
from tests.support.errors import ExpectedErrors

SQLITE = "sqlite+aiosqlite:///"
TABLES = ("conversations", "interactions", "variables", "inbox")
on_both_databases = pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
"""Mark a test for both databases where others of its kind run on PostgreSQL before a release only."""
RECEIVED, ANSWERED, CLOSED = range(3)
"""The states of a row in the inbox."""
SAME_STANZA = Evidence(server_id="1")
"""The evidence of a message and its copies."""


def new_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database of the kind that is the parameter of a fixture."""
    if request.param == "sqlite":
        return f"{SQLITE}{tmp_path}/platform.db"
    url: str = request.getfixturevalue("postgres").url()
    return url


class WriterGate:
    """A gate between a database and its writer: `open_database(url, writer_hook=writes)`; `on_batch` may be set."""

    def __init__(self) -> None:
        self.on_batch: WriterHook = lambda batch, write: write(batch)

    def __call__(self, batch: list[Any], write: Callable[[list[Any]], None]) -> None:
        self.on_batch(batch, write)

    @contextmanager
    def hold_batches(self) -> Iterator[list[list[Any]]]:
        """Collect the batches of the block; the writer receives them at its end."""
        batches: list[list[Any]] = []
        writers: list[Callable[[list[Any]], None]] = []

        def hold(batch: list[Any], write: Callable[[list[Any]], None]) -> None:
            batches.append(batch)
            writers.append(write)

        before, self.on_batch = self.on_batch, hold
        try:
            yield batches
        finally:
            self.on_batch = before
        for batch, write in zip(batches, writers, strict=True):
            write(batch)


async def open_without_sync(url: str, writer_hook: WriterHook | None = None) -> Database:
    """Open the database at a URL, without syncs."""
    return await open_database(url, "off", writer_hook=writer_hook)


def expect_failing_database(expected_errors: ExpectedErrors, url: str, *texts: str) -> None:
    """Expect the errors of a database that fails. On PostgreSQL the platform also logs that it tries again."""
    expected_errors(*texts, *(() if url.startswith(SQLITE) else ("retrying every 5 s",)))


def read_rows(url: str, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table, in the order of its first columns."""
    return execute(url, f"SELECT * FROM {table} ORDER BY 1, 2, 3, 4")


def read_all_tables(url: str) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of every table, by its name."""
    return {table: read_rows(url, table) for table in TABLES}


def execute(url: str, sql: str) -> list[dict[str, Any]]:
    """Run a statement and return its rows."""
    if url.startswith(SQLITE):
        with closing(sqlite3.connect(url.removeprefix(SQLITE), isolation_level=None)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(sql)]
    return _execute_in_thread(url.replace("+asyncpg", ""), sql)


def count_commits(url: str) -> int:
    """Count the commits: on SQLite those in the log (WAL), on PostgreSQL those behind rows of `interactions` and `inbox`."""
    if not url.startswith(SQLITE):
        transactions = "SELECT xmin::text AS x FROM interactions UNION SELECT xmin::text FROM inbox"
        return len(execute(url, f"SELECT x FROM ({transactions}) AS found"))
    log = Path(f"{url.removeprefix(SQLITE)}-wal").read_bytes()
    if not log:
        return 0
    [page] = struct.unpack_from(">8xI", log)
    # A frame whose header holds the size of the database ends a transaction (SQLite, WAL file format).
    return sum(struct.unpack_from(">4xI", log, frame) != (0,) for frame in range(32, len(log), 24 + page))


def _execute_in_thread(url: str, sql: str) -> list[dict[str, Any]]:
    """Query PostgreSQL in another thread, because the test's thread has a running event loop."""
    found: list[dict[str, Any]] = []
    problems: list[BaseException] = []

    async def query() -> None:
        import asyncpg

        connection = await asyncpg.connect(url)
        try:
            if sql.startswith("SELECT"):
                found.extend(dict(row) for row in await connection.fetch(sql))
            else:
                await connection.execute(sql)
        finally:
            await connection.close()

    def run_query() -> None:
        try:
            asyncio.run(query())
        except Exception as error:  # noqa: BLE001 - it is raised again in the caller's thread
            problems.append(error)

    thread = threading.Thread(target=run_query)
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
    return found
