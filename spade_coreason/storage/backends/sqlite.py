"""The SQLite database: a file, a writer thread with group commit, and connections for reads beside it."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, cast
from urllib.parse import quote

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ...domain.environment.private_files import create_private
from ...exceptions import DatabaseEmptyError, StoreError
from .backend import Backend, Remains
from .group_commit import (
    BatchOutcome,
    Commit,
    Durability,
    Lookup,
    Outcomes,
    QueryGenerator,
    Row,
    StoreTimings,
    T,
    WriterHook,
    group_rows,
    join_outcomes,
)
from .statements import CLOSE, MAX_ROWS, SQLITE_QUERIES, STATEMENTS, TEXT_INDEXES, sqlite_sql
from .stored_schema import StoredSchema, create_or_migrate

log = logging.getLogger(__name__)

_CHECKPOINT_PAGES = 4000
"""The size of the log that starts a checkpoint: 16 MiB."""
_LARGE_CHARACTERS = 2**16
_READS = "reads"
"""The name of the option of an engine whose transactions only read."""
_STEPS_BETWEEN_CHECKS = 100_000
"""The steps of SQLite's machine, some milliseconds, after which a query checks if its caller is cancelled."""
_READER_WAIT_S = 0.2
"""The time that a truncation of the log waits for readers. No write runs during it."""
_MAX_REWRITTEN_BYTES = 128 * 2**20
"""The largest file that is written anew: it takes memory of this size, and about a second."""

# Result codes that concern the whole file, not one write, and the remedy for each.
_REMEDIES = {
    sqlite3.SQLITE_BUSY: "stop the other program that uses it",
    sqlite3.SQLITE_READONLY: "correct the permissions of the file and its directory",
    sqlite3.SQLITE_IOERR: "check the disk, which may be full",
    sqlite3.SQLITE_CORRUPT: "stop the platform and restore a backup",
    sqlite3.SQLITE_FULL: "free space on the disk",
    sqlite3.SQLITE_CANTOPEN: "check that the directory exists and can be written",
    sqlite3.SQLITE_NOTADB: "name another file in storage.url, or restore a backup",
}


_LookupResults: TypeAlias = list[tuple[asyncio.Future[Any], Any]]
"""The futures of lookups, each with its result or an exception."""


class SqliteFile:
    """The file of a database. It is known by its inode, because SQLite would write to a deleted file without an error."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._inode = 0

    def create(self) -> None:
        """Create the file, if it is missing, with access for its owner only (0600), because it holds private messages.

        SQLite gives the other files of the database the same mode.
        """
        path = Path(self.name)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            create_private(path)
        except OSError as error:
            raise StoreError(
                f"{self.name}: cannot be opened: {error.strerror}; check that the directory exists and can be written"
            ) from error

    def remember(self) -> None:
        """Take the file that is there now for that of the database."""
        if not os.path.isfile(self.name):
            raise DatabaseEmptyError(self.name)
        self._inode = os.stat(self.name).st_ino

    def require(self) -> None:
        """Raise StoreError if the file was deleted or replaced."""
        try:
            if os.stat(self.name).st_ino == self._inode:
                return
            problem = "the file was replaced while in use"
        except OSError as error:
            problem = f"the file is missing ({error.strerror})"
        raise StoreError(f"{self.name}: {problem}; put the original back, or stop the platform and restore a backup")

    def rewrite(self, timeout_s: float) -> bool:
        """Write the file anew, because deleted rows have copies in it. Return False if it is too large.

        SQLite overwrites a row that it deletes, but not where it was before it was moved to another page. Writes wait for it.
        """
        if os.stat(self.name).st_size > _MAX_REWRITTEN_BYTES:
            return False
        with closing(self._connect(timeout_s)) as connection, suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA temp_store=MEMORY")
            connection.execute("VACUUM")
            return True
        return False

    def truncate_log(self) -> bool:
        """Copy the log into the file and truncate it. Return False if another connection still reads the log."""
        with closing(self._connect()) as connection:
            is_busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not is_busy

    def _connect(self, timeout_s: float = _READER_WAIT_S) -> sqlite3.Connection:
        self.require()
        address = f"file:{quote(os.fsencode(self.name))}?mode=rw"
        return sqlite3.connect(address, timeout=timeout_s, isolation_level=None, uri=True)


class LogTruncation:
    """The truncation of the log of a file, which still has what was deleted: once for all deletions of a short time."""

    def __init__(self, file: SqliteFile, timings: StoreTimings) -> None:
        self.task: asyncio.Task[None] | None = None
        """The task that waits for the next truncation, if one is due."""
        self.attempt: asyncio.Future[bool] | None = None
        """The last truncation: True if the log was empty then."""
        self.is_due = False
        """True while deleted data may be in the log."""
        self._file = file
        self._timings = timings
        self._is_closed = False

    def schedule(self) -> None:
        """Truncate the log soon. Retry while other connections read it."""
        self.is_due = True
        if not self._is_closed and (self.task is None or self.task.done()):
            self.task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """End it. The last connection that is closed truncates the log."""
        self._is_closed = True
        if self.task is not None:
            self.task.cancel()
        if self.attempt is not None:
            await asyncio.gather(self.attempt, return_exceptions=True)  # until then its connection is open

    async def _run(self) -> None:
        wait_s, has_warned = self._timings.truncate_log_s, False
        while self.is_due:
            await asyncio.sleep(wait_s)
            self.is_due = False
            self.attempt = asyncio.ensure_future(asyncio.to_thread(self._file.truncate_log))
            try:
                is_empty = await asyncio.shield(self.attempt)
            except StoreError:  # the file was replaced: the next write reports it
                return
            except sqlite3.Error as error:
                is_empty = False
                if not has_warned:
                    log.warning(
                        "%s: deleted data is still in the write-ahead log, which cannot be truncated yet: %s",
                        self._file.name,
                        error,
                    )
                has_warned = True
            if not is_empty:
                self.is_due, wait_s = True, self._timings.truncate_log_again_s


class SqliteBackend(Backend):
    """A file in WAL mode. The writer is a thread; it also runs lookups, between two transactions."""

    driver_errors = (SQLAlchemyError, sqlite3.Error, OSError)
    queries = SQLITE_QUERIES
    reader_connections = 2  # each is used by a thread; more threads do not read faster

    def __init__(self, url: URL, durability: Durability, timings: StoreTimings, writer_hook: WriterHook | None) -> None:
        super().__init__(url, timings, writer_hook)
        self._durability = durability
        self._file = SqliteFile(self.name)
        self.log_truncation = LogTruncation(self._file, timings)
        self._writer_engine = create_engine(
            url.set(drivername="sqlite"),
            pool_size=1 + self.reader_connections,
            max_overflow=0,
            connect_args={"cached_statements": len(STATEMENTS) * MAX_ROWS + 128},
        )
        event.listen(self._writer_engine, "connect", self._configure_connection)
        event.listen(self._writer_engine, "begin", _begin)
        # With the same pool and the same compiled statements.
        self._reader_engine = self._writer_engine.execution_options(**{_READS: True})
        self._readers = ThreadPoolExecutor(self.reader_connections, "database-reader")
        self._queue: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run_writer, name="database-writer", daemon=True)

    async def open(self) -> StoredSchema:
        schema = await self.writes.loop.run_in_executor(self._readers, self._open_file)
        self._thread.start()
        return schema

    def _open_file(self) -> StoredSchema:
        self._file.create()
        with self._writer_engine.connect() as connection:
            schema = create_or_migrate(connection, self.name)
            self.row_ids.renew(connection)
            # Those of all agents: an index of the agents would cost too much at each turn.
            self.inbox_index.open_rows = defaultdict(set)
            if not schema.is_new:
                self.inbox_index.load(connection)
        self._file.remember()
        if not schema.is_new:
            self._file.truncate_log()  # it may still contain data that was deleted just before a crash
        return schema

    async def open_to_read(self) -> StoredSchema:
        self._file.remember()
        return await super().open_to_read()

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a thread. If the caller is cancelled, a query that takes long is interrupted."""
        is_cancelled = False

        def read() -> T:
            self._file.require()  # a new connection would create another file
            with self._reader_engine.connect() as connection:
                driver = cast(sqlite3.Connection, connection.connection.driver_connection)
                driver.set_progress_handler(lambda: is_cancelled, _STEPS_BETWEEN_CHECKS)
                try:
                    return work(connection)
                finally:
                    driver.set_progress_handler(None, 0)

        try:
            return await self.writes.loop.run_in_executor(self._readers, read)
        except asyncio.CancelledError:
            is_cancelled = True
            raise

    async def close(self) -> None:
        await self.log_truncation.close()
        loop = self.writes.loop
        if self._thread.is_alive():
            self._queue.put(None)
            await loop.run_in_executor(self._readers, self._thread.join)
            await asyncio.sleep(0)  # the loop delivers the last results
        # Closing the last connection copies the log into the file.
        await loop.run_in_executor(self._readers, self._writer_engine.dispose)
        self._readers.shutdown(wait=False)

    def run_queries(self, queries: QueryGenerator[T]) -> asyncio.Future[T]:
        """Run a few short prepared queries in the writer's thread, between two transactions: the fastest way to read."""
        return self.writes.look_up(queries)

    def write_batch(self, batch: list[Any]) -> None:
        self._queue.put(batch)

    def truncate_log_soon(self) -> None:
        self.log_truncation.schedule()

    async def wait_until_erased(self, timeout_s: float) -> Remains | None:
        is_rewritten = await asyncio.to_thread(self._file.rewrite, timeout_s)
        log_truncation = self.log_truncation
        log_truncation.schedule()
        if log_truncation.task is not None:
            await asyncio.wait([log_truncation.task], timeout=timeout_s)
        return "log" if log_truncation.is_due else None if is_rewritten else "file"

    # The writer thread

    def _run_writer(self) -> None:
        call_soon = self.writes.loop.call_soon_threadsafe
        with self._writer_engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            cursor = driver.cursor()  # one for all writes: a new cursor costs as much as a short statement
            while (batch := self._queue.get()) is not None:
                lookups = [item for item in batch if isinstance(item, Lookup)]
                writes = [item for item in batch if not isinstance(item, Lookup)] if lookups else batch
                if lookups:
                    call_soon(self._on_looked_up, self._run_lookups(driver, lookups), bool(writes))
                if writes:
                    resolved = self._commit(connection, cursor, writes)
                    # Free the finished turns now: the next batch, which would replace these lists, may take long to come.
                    batch.clear()
                    writes.clear()
                    call_soon(self.writes.resolve, *resolved)

    def _on_looked_up(self, results: _LookupResults, is_writing: bool) -> None:
        if not is_writing:
            self.writes.on_idle()
        for future, outcome in results:
            if future.done():  # the caller was cancelled
                continue
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        results.clear()

    def _run_lookups(self, driver: sqlite3.Connection, lookups: list[Lookup]) -> _LookupResults:
        results: _LookupResults = []
        for lookup in lookups:
            try:
                results.append((lookup.future, _run_query_generator(driver, lookup.queries)))
            except Exception as error:  # noqa: BLE001 - as in `_commit`
                results.append((lookup.future, self.problem(error) if isinstance(error, sqlite3.Error) else error))
        return results

    def _commit(self, connection: Connection, cursor: sqlite3.Cursor, batch: list[Commit[Any]]) -> BatchOutcome:
        """Commit a batch. Return the result of each write, and the failure if the file accepts no writes at all."""
        try:
            self._file.require()
            # Prepared statements alone go directly to the driver, because SQLAlchemy would cost more time than SQLite itself. A
            # function needs SQLAlchemy's connection and transaction.
            if any(write.work is not None for write in batch):
                with connection.begin():
                    results = self._run_batch(connection, cursor, batch)
            else:
                results = self._run_prepared(connection, cursor, batch)
        except Exception as error:  # noqa: BLE001 - any error goes to the caller of the write
            if (failed := self.judge(batch, error)) is not None:
                return failed
            return join_outcomes([self._commit(connection, cursor, [write]) for write in batch])
        return results, None

    def _run_prepared(self, connection: Connection, cursor: sqlite3.Cursor, batch: list[Commit[Any]]) -> Outcomes:
        cursor.execute("BEGIN IMMEDIATE")
        try:
            results = self._run_batch(connection, cursor, batch)
            cursor.execute("COMMIT")
        except BaseException:
            cursor.connection.rollback()
            raise
        return results

    def _run_batch(self, connection: Connection, cursor: sqlite3.Cursor, batch: list[Commit[Any]]) -> Outcomes:
        *groups, closed = group_rows(batch)
        for statement, rows in enumerate(groups):
            if rows:
                _write_rows(cursor, statement, rows)
        results: Outcomes = [(write, True if write.work is None else write.work(connection)) for write in batch]
        if closed:
            _write_rows(cursor, CLOSE, closed)  # also requests that a function of this batch has just stored
        return results

    def is_failure(self, error: Exception) -> bool:
        """Return True if the whole file accepts no writes: locked, full or unreadable."""
        return isinstance(error, StoreError) or _sqlite_result_code(error) in _REMEDIES

    def problem(self, error: Exception) -> StoreError:
        problem = super().problem(error)
        remedy = _REMEDIES.get(_sqlite_result_code(error))
        return problem if remedy is None else StoreError(f"{problem}; {remedy}")

    def _configure_connection(self, dbapi_connection: Any, _record: object) -> None:
        dbapi_connection.isolation_level = (
            None  # the "begin" listeners begin transactions (SQLAlchemy documentation, SQLite: savepoints)
        )
        cursor = dbapi_connection.cursor()
        cursor.execute("PRAGMA busy_timeout=5000")
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute(f"PRAGMA synchronous={self._durability}")
        # A checkpoint writes each page once, however often it changed since the last checkpoint, and syncs twice.
        cursor.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute("PRAGMA secure_delete=ON")  # overwrite deleted data in the file
        # By default a statement of many rows writes its undo data to a temporary file: a third of all written data.
        cursor.execute("PRAGMA temp_store=MEMORY")
        cursor.close()


def _write_rows(cursor: sqlite3.Cursor, statement: int, rows: list[Row]) -> None:
    if len(rows) == 1 or _has_large_row(statement, rows):
        for row in rows:
            cursor.execute(sqlite_sql(statement, 1), row)
        return
    for start in range(0, len(rows), MAX_ROWS):
        part = rows[start : start + MAX_ROWS]
        cursor.execute(sqlite_sql(statement, len(part)), list(chain.from_iterable(part)))


def _has_large_row(statement: int, rows: list[Row]) -> bool:
    """Return True if one of the rows has a long text.

    A prepared statement keeps the memory of its largest values, so only the statements of one row get such rows.
    """
    index = TEXT_INDEXES.get(statement)
    if index is not None:
        for row in rows:  # for few rows a loop costs half as much as `max` and `map`
            if len(row[index] or "") > _LARGE_CHARACTERS:
                return True
    return False


def _run_query_generator(driver: sqlite3.Connection, queries: QueryGenerator[T]) -> T:
    # Each query has its own cursor, which is freed with it. A statement that cannot read a row stays open on its cursor, and an
    # open statement keeps the log from being truncated.
    try:
        query, parameters = next(queries)
        while True:
            query, parameters = queries.send(driver.execute(SQLITE_QUERIES[query], parameters).fetchall())
    except StopIteration as end:
        result: T = end.value
        return result


def _sqlite_result_code(error: Exception) -> int:
    """Return SQLite's primary result code; 0 for other errors."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return int(getattr(cause, "sqlite_errorcode", 0)) & 0xFF if isinstance(cause, sqlite3.Error) else 0


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN" if connection.get_execution_options().get(_READS) else "BEGIN IMMEDIATE")
