"""The SQLite database: a writer thread with group commit, and connections for reads beside it."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, cast
from urllib.parse import quote

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ...domain.environment.private_files import create_private
from ...exceptions import DatabaseEmptyError, StoreError
from .database import (
    INBOX_PAGE_ROWS,
    Commit,
    Database,
    Durability,
    Outcomes,
    QueryGenerator,
    Remains,
    Row,
    StoreTimings,
    T,
    WriterHook,
    group_rows,
    select_inbox_rows,
    select_rows_with_steps,
)
from .statements import CLOSE, MAX_ROWS, SQLITE_QUERIES, STATEMENTS, TEXT_INDEXES, sqlite_sql

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


@dataclass(slots=True, eq=False)
class _Lookup:
    """Prepared queries of one caller, which run in the writer's thread."""

    queries: QueryGenerator[Any]
    future: asyncio.Future[Any]


_LookupResults: TypeAlias = list[tuple[asyncio.Future[Any], Any]]
"""The futures of lookups, each with its result or an exception."""


class SqliteDatabase(Database):
    """A file in WAL mode. The writer is a thread; it also runs lookups, between two transactions."""

    reader_connections = 2  # each is used by a thread; more threads do not read faster

    def __init__(self, url: URL, durability: Durability, timings: StoreTimings, writer_hook: WriterHook | None) -> None:
        super().__init__(url, durability, timings, writer_hook)
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
        self._truncation_task: asyncio.Task[None] | None = None
        self._truncation_future: asyncio.Future[bool] | None = None
        self._has_erased = False
        self._only_looks_up = False
        """True if the next batch has lookups only."""
        self._only_looked_up = False
        """True if the last batch had."""
        self._inode = 0
        self._queue: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run_writer, name="database-writer", daemon=True)

    async def open(self) -> None:
        await self._loop.run_in_executor(self._readers, self._open_file)
        self._thread.start()

    def _open_file(self) -> None:
        try:
            _create_private_file(Path(self.name))
        except OSError as error:
            raise StoreError(
                f"{self.name}: cannot be opened: {error.strerror}; check that the directory exists and can be written"
            ) from error
        with self._writer_engine.connect() as connection:
            self._create_or_migrate(connection)
            self._renew_row_ids(connection)
            self._load_all_agents(connection)
        self._remember_inode()
        if self.is_new:
            return
        try:
            self._truncate_log()  # it may still contain data that was deleted just before a crash
        except sqlite3.Error as error:
            raise self.problem(error) from error

    def _load_all_agents(self, connection: Connection) -> None:
        """Load the keys, the open rows and the steps of all agents: an index of the agents would cost too much at each turn."""
        self.open_inbox_rows = defaultdict(set)
        if self.is_new:
            return
        for rows in connection.execute(select_inbox_rows()).partitions():
            self._add_inbox_rows(rows)
        open_ids = [row for rows in self.open_inbox_rows.values() for row in rows]  # only these may have steps that run again
        for first in range(0, len(open_ids), INBOX_PAGE_ROWS):
            page = open_ids[first : first + INBOX_PAGE_ROWS]
            self.inbox_rows_with_steps.update(connection.scalars(select_rows_with_steps(page)))

    async def _load_agent(self, agent: str) -> None:
        """Do nothing: the agents were loaded with the file."""

    async def open_to_read(self) -> None:
        self._remember_inode()
        await super().open_to_read()

    def _remember_inode(self) -> None:
        if not os.path.isfile(self.name):
            raise DatabaseEmptyError(self.name)
        self._inode = os.stat(self.name).st_ino

    async def _read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a thread. If the caller is cancelled, a query that takes long is interrupted."""
        is_cancelled = False

        def read() -> T:
            self._require_file()  # a new connection would create another file
            with self._reader_engine.connect() as connection:
                driver = cast(sqlite3.Connection, connection.connection.driver_connection)
                driver.set_progress_handler(lambda: is_cancelled, _STEPS_BETWEEN_CHECKS)
                try:
                    return work(connection)
                finally:
                    driver.set_progress_handler(None, 0)

        try:
            return await self._loop.run_in_executor(self._readers, read)
        except asyncio.CancelledError:
            is_cancelled = True
            raise

    async def _stop_writer(self) -> None:
        if self._truncation_task is not None:
            self._truncation_task.cancel()  # closing the last connection truncates the log
        if self._truncation_future is not None:
            await asyncio.gather(self._truncation_future, return_exceptions=True)  # until then its connection is open
        if self._thread.is_alive():
            self._queue.put(None)
            await self._loop.run_in_executor(self._readers, self._thread.join)
            await asyncio.sleep(0)  # the loop delivers the last results

    async def dispose(self) -> None:
        # Closing the last connection copies the log into the file.
        await self._loop.run_in_executor(self._readers, self._writer_engine.dispose)
        self._readers.shutdown(wait=False)

    @property
    def queries(self) -> Mapping[int, str]:
        """The texts of the prepared queries."""
        return SQLITE_QUERIES

    def run_queries(self, queries: QueryGenerator[T]) -> asyncio.Future[T]:
        """Run a few short prepared queries in the writer's thread, between two transactions: the fastest way to read."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._enqueue(_Lookup(queries, future))
        self._has_lookups = True
        return future

    def _choose_batch(self, batch: list[Any]) -> list[Any]:
        # A turn that waits for a lookup and for nothing else ends soon after it. Then its request, its conversation and its
        # reply share one transaction. Of two batches one writes, however many lookups there are.
        self._has_lookups = False
        if not (self._only_looked_up or self._is_closed):
            writes = [item for item in batch if not isinstance(item, _Lookup)]
            # A transaction runs functions last. A deletion must not come behind what is written because of the lookup.
            if all(write.work is None for write in writes):
                self._pending, self._only_looks_up = writes, True
                return [item for item in batch if isinstance(item, _Lookup)]
        return batch

    def _write_batch(self, batch: list[Any]) -> None:
        self._only_looked_up, self._only_looks_up = self._only_looks_up, False
        self._queue.put(batch)

    # The log

    def _schedule_log_truncation(self) -> None:
        self._has_erased = True
        if self._is_closed:
            return
        if self._truncation_task is None or self._truncation_task.done():
            self._truncation_task = self._loop.create_task(self._retry_truncating_log())

    async def wait_until_erased(self, timeout_s: float) -> Remains | None:
        is_rewritten = await asyncio.to_thread(self._rewrite_file, timeout_s)
        self._schedule_log_truncation()
        if self._truncation_task is not None:
            await asyncio.wait([self._truncation_task], timeout=timeout_s)
        return "log" if self._has_erased else None if is_rewritten else "file"

    def _rewrite_file(self, timeout_s: float) -> bool:
        """Write the file anew, because deleted rows have copies in it. Return False if it is too large.

        SQLite overwrites a row that it deletes, but not where it was before it was moved to another page. Writes wait for it.
        """
        if os.stat(self.name).st_size > _MAX_REWRITTEN_BYTES:
            return False
        with closing(self._connect_alone(timeout_s)) as connection, suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA temp_store=MEMORY")
            connection.execute("VACUUM")
            return True
        return False

    async def _retry_truncating_log(self) -> None:
        """Truncate the log once for all deletions of a short time. Retry while other connections read it."""
        wait_s, has_warned = self._timings.truncate_log_s, False
        while self._has_erased:
            await asyncio.sleep(wait_s)
            self._has_erased = False
            self._truncation_future = asyncio.ensure_future(asyncio.to_thread(self._truncate_log))
            try:
                is_empty = await asyncio.shield(self._truncation_future)
            except StoreError:  # the file was replaced: the next write reports it
                return
            except sqlite3.Error as error:
                is_empty = False
                if not has_warned:
                    log.warning(
                        "%s: deleted data is still in the write-ahead log, which cannot be truncated yet: %s", self.name, error
                    )
                has_warned = True
            if not is_empty:
                self._has_erased, wait_s = True, self._timings.truncate_log_again_s

    def _truncate_log(self) -> bool:
        """Copy the log into the file and truncate it. Return False if another connection still reads the log."""
        with closing(self._connect_alone()) as connection:
            is_busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not is_busy

    def _connect_alone(self, timeout_s: float = _READER_WAIT_S) -> sqlite3.Connection:
        self._require_file()
        address = f"file:{quote(os.fsencode(self.name))}?mode=rw"
        return sqlite3.connect(address, timeout=timeout_s, isolation_level=None, uri=True)

    # The writer thread

    def _run_writer(self) -> None:
        with self._writer_engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            cursor = driver.cursor()  # one for all writes: a new cursor costs as much as a short statement
            while (batch := self._queue.get()) is not None:
                lookups = [item for item in batch if isinstance(item, _Lookup)]
                writes = [item for item in batch if not isinstance(item, _Lookup)] if lookups else batch
                if lookups:
                    self._loop.call_soon_threadsafe(self._on_looked_up, self._run_lookups(driver, lookups), bool(writes))
                if writes:
                    resolved = self._commit(connection, cursor, writes)
                    # Free the finished turns now: the next batch, which would replace these lists, may take long to come.
                    batch.clear()
                    writes.clear()
                    self._loop.call_soon_threadsafe(self._resolve, *resolved)

    def _on_looked_up(self, results: _LookupResults, is_writing: bool) -> None:
        if not is_writing:
            self._on_writer_idle()
        for future, outcome in results:
            if future.done():  # the caller was cancelled
                continue
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        results.clear()

    def _run_lookups(self, driver: sqlite3.Connection, lookups: list[_Lookup]) -> _LookupResults:
        results: _LookupResults = []
        for lookup in lookups:
            try:
                results.append((lookup.future, _run_query_generator(driver, lookup.queries)))
            except Exception as error:  # noqa: BLE001 - as in `_commit`
                results.append((lookup.future, self.problem(error) if isinstance(error, sqlite3.Error) else error))
        return results

    def _commit(
        self, connection: Connection, cursor: sqlite3.Cursor, batch: list[Commit[Any]]
    ) -> tuple[Outcomes, StoreError | None]:
        """Commit a batch. Return the result of each write, and the failure if the file accepts no writes at all."""
        try:
            self._require_file()
            # Prepared statements alone go directly to the driver, because SQLAlchemy would cost more time than SQLite itself. A
            # function needs SQLAlchemy's connection and transaction.
            if any(write.work is not None for write in batch):
                with connection.begin():
                    results = self._run_batch(connection, cursor, batch)
            else:
                results = self._run_prepared(connection, cursor, batch)
        except Exception as error:  # noqa: BLE001 - any error goes to the caller of the write
            problem = self.problem(error) if isinstance(error, SQLAlchemyError | sqlite3.Error) else error
            failure = problem if isinstance(problem, StoreError) and _is_file_failure(error) else None
            if failure is not None or len(batch) == 1:
                return [(write, problem) for write in batch], failure
            # Repeat the writes one by one, so that only the faulty one fails.
            outcomes = [self._commit(connection, cursor, [write]) for write in batch]
            return list(chain.from_iterable(results for results, _ in outcomes)), outcomes[-1][1]
        return results, None

    def _require_file(self) -> None:
        """Raise StoreError if the file was deleted or replaced. SQLite would write to the deleted file without an error."""
        try:
            if os.stat(self.name).st_ino == self._inode:
                return
            problem = "the file was replaced while in use"
        except OSError as error:
            problem = f"the file is missing ({error.strerror})"
        raise StoreError(f"{self.name}: {problem}; put the original back, or stop the platform and restore a backup")

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


def _is_file_failure(error: Exception) -> bool:
    """Return True if the whole file accepts no writes: locked, full or unreadable."""
    if isinstance(error, StoreError):
        return True
    return _sqlite_result_code(error) in _REMEDIES


def _sqlite_result_code(error: Exception) -> int:
    """Return SQLite's primary result code; 0 for other errors."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return int(getattr(cause, "sqlite_errorcode", 0)) & 0xFF if isinstance(cause, sqlite3.Error) else 0


def _create_private_file(path: Path) -> None:
    """Create the file with access for its owner only (0600), because it holds private messages.

    SQLite gives the other files of the database the same mode.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    create_private(path)


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN" if connection.get_execution_options().get(_READS) else "BEGIN IMMEDIATE")
