"""One SQL database: writes in groups by a thread of its own, reads beside it.

Many turns that end together share one commit: callers enqueue what they write and await a future, and the writer thread takes
everything that waits, in one transaction, without lingering for more. That makes a durable turn cost a tenth of what a
transaction a turn costs.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, func, inspect, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from ..exceptions import StoreError
from . import schema
from .known import KnownKeys
from .statements import ANSWER, MAX_ROWS, RECEIVE, STATEMENTS, sql

T = TypeVar("T")
Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = Sequence[tuple[int, Row]]
Durability: TypeAlias = Literal["full", "normal", "off"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_OF_THE_FILE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOTADB,
}


def micros(moment: datetime) -> int:
    """A time as the tables hold it."""
    return (moment - _EPOCH) // _MICROSECOND


def moment(micros: int) -> datetime:
    """A time as everybody else holds it."""
    return _EPOCH + timedelta(microseconds=micros)


@dataclass(slots=True, eq=False)
class _Write:
    """What one caller wants written: rows of the prepared statements, or a function; and who waits for it."""

    rows: Rows
    work: Callable[[Connection], Any] | None
    future: asyncio.Future[Any] | None
    inbox_row: int | None = None


@dataclass(slots=True, eq=False)
class _Lookup:
    """What one caller wants to know at once."""

    work: Callable[[sqlite3.Connection], Any]
    future: asyncio.Future[Any]


class Database:
    """Opened by `Database.open`, closed by `close`. One event loop uses it."""

    def __init__(self, url: str, durability: Durability) -> None:
        parsed = make_url(url)
        if parsed.get_backend_name() != "sqlite":
            raise StoreError(f"{parsed.render_as_string()}: only sqlite+aiosqlite:/// is supported")
        self._path = parsed.database or ""
        self._durability = durability
        self._writer_engine: Engine = create_engine(
            parsed.set(drivername="sqlite"), connect_args={"cached_statements": len(STATEMENTS) * MAX_ROWS + 128}
        )
        self._readers: AsyncEngine = create_async_engine(
            # Every connection is a thread; more of them read no faster.
            parsed.set(drivername="sqlite+aiosqlite"),
            pool_size=2,
            max_overflow=0,
        )
        for engine in (self._writer_engine, self._readers.sync_engine):
            event.listen(engine, "connect", self._prepare)
            event.listen(engine, "begin", _begin_deferred if engine is not self._writer_engine else _begin_immediate)
        self._fresh: list[_Write | _Lookup] = []
        self._queue: queue.SimpleQueue[list[_Write | _Lookup] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="database-writer", daemon=True)
        self._next_ids: dict[str, int] = {}
        self._later: list[tuple[int, Row]] = []
        self._later_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self.known = KnownKeys()
        """The keys of the inbox, of all agents."""
        self.is_failing = False
        """Whether the last transaction could not be done."""

    @classmethod
    async def open(cls, url: str, durability: Durability = "full", *, reads_only: bool = False) -> Database:
        """Opens, makes or migrates the database at `url` (sqlite+aiosqlite:///path).

        One that is opened only to read waits for no writer, and is neither made nor migrated.

        `durability`: "full" survives a power cut, "normal" the end of the process, "off" is for tests. StoreError names what
        is wrong with the file.
        """
        database = cls(url, durability)
        try:
            if reads_only:
                await database.read(database._check)
                return database
            await asyncio.to_thread(_make_private, Path(database._path))
            await asyncio.to_thread(database._open)
            database._thread.start()
            return database
        except BaseException as error:
            await database._dispose()
            if isinstance(error, SQLAlchemyError):
                raise database._error(error) from error
            if isinstance(error, OSError):
                raise StoreError(f"{database._path}: cannot be opened: {error.strerror}; see to the directory") from error
            raise

    async def close(self) -> None:
        """Writes what waits, and closes."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._thread.is_alive():
            self._hand_over()
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)
            await asyncio.sleep(0)  # the last results come in through the loop
        await self._dispose()

    async def _dispose(self) -> None:
        self._writer_engine.dispose()
        await self._readers.dispose()

    def next_id(self, table: str) -> int:
        """A row id that nobody has; made here, since one process owns the database."""
        self._next_ids[table] += 1
        return self._next_ids[table]

    def submit(self, rows: Rows, inbox_row: int | None = None) -> asyncio.Future[Any]:
        """Writes rows of the prepared statements in one transaction; the future is done when they are durable.

        Its result is True; with `inbox_row` whether that row was new.
        """
        future = self._loop.create_future()
        self._enqueue(_Write(rows, None, future, inbox_row))
        return future

    def submit_later(self, rows: Rows) -> None:
        """Writes rows for which nobody waits: with the next transaction, or alone after a while."""
        self._later += rows
        if self._later_timer is None:
            self._later_timer = self._loop.call_later(0.2, self._hand_over)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Runs `work` in the writer's transaction and gives its result; for what is rare."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._enqueue(_Write((), work, future))
        return await future

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Runs `work` in a transaction of its own, beside the writer."""
        try:
            async with self._readers.connect() as connection:
                return await connection.run_sync(work)
        except SQLAlchemyError as error:
            raise self._error(error) from error

    def look_up(self, work: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Runs `work`, a few short queries, in the writer's thread between two transactions: no way is shorter."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._enqueue(_Lookup(work, future))
        return future

    def _enqueue(self, item: _Write | _Lookup) -> None:
        if self._is_closed:
            raise StoreError(f"{self._path}: the database is closed")
        self._fresh.append(item)
        if len(self._fresh) == 1:
            # Two rounds of the event loop. What a round reads goes to the thread in one piece, and a turn that waits for
            # nothing has ended by then: its request and its answer become one transaction.
            self._loop.call_soon(self._loop.call_soon, self._hand_over)

    def _hand_over(self) -> None:
        if self._later_timer is not None:
            self._later_timer.cancel()
            self._later_timer = None
        if self._later:
            rows, self._later = self._later, []
            self._fresh.append(_Write(rows, None, None))
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            self._queue.put(fresh)

    # The writer thread

    def _run(self) -> None:
        with self._writer_engine.connect() as connection:
            while (batch := self._queue.get()) is not None:
                is_last = False
                with suppress(queue.Empty):
                    while not is_last:
                        further = self._queue.get_nowait()
                        is_last = further is None
                        batch += further or ()
                lookups = [item for item in batch if isinstance(item, _Lookup)]
                if lookups:
                    self._resolve_soon(self._answer(connection, lookups))
                writes = [item for item in batch if isinstance(item, _Write)]
                if writes:
                    self._resolve_soon(self._commit(connection, writes))
                if is_last:
                    break

    def _resolve_soon(self, results: list[tuple[asyncio.Future[Any], Any]]) -> None:
        self._loop.call_soon_threadsafe(_resolve, results)

    def _answer(self, connection: Connection, lookups: list[_Lookup]) -> list[tuple[asyncio.Future[Any], Any]]:
        driver: Any = connection.connection.driver_connection
        results: list[tuple[asyncio.Future[Any], Any]] = []
        for lookup in lookups:
            try:
                results.append((lookup.future, lookup.work(driver)))
            except Exception as error:  # noqa: BLE001 - as in `_commit`
                results.append((lookup.future, self._error(error) if isinstance(error, sqlite3.Error) else error))
        return results

    def _commit(self, connection: Connection, batch: list[_Write]) -> list[tuple[asyncio.Future[Any], Any]]:
        try:
            # A transaction of prepared statements alone goes to the driver as it is: SQLAlchemy's way there costs more than
            # SQLite's work. A function gets SQLAlchemy's connection, and its transaction.
            if any(write.work is not None for write in batch):
                with connection.begin():
                    results = self._run_batch(connection, batch)
            else:
                results = self._run_prepared(connection, batch)
        except Exception as error:  # noqa: BLE001 - of whatever kind, it belongs to whoever asked for the write
            if len(batch) == 1 or _concerns_all(error):
                self.is_failing = True
                problem = self._error(error) if isinstance(error, SQLAlchemyError | sqlite3.Error) else error
                return [(write.future, problem) for write in batch if write.future is not None]
            # Only the write that cannot be done fails; the others are done each for itself.
            return [result for write in batch for result in self._commit(connection, [write])]
        self.is_failing = False
        return [(write.future, result) for write, result in zip(batch, results, strict=True) if write.future is not None]

    def _run_prepared(self, connection: Connection, batch: list[_Write]) -> list[Any]:
        driver: Any = connection.connection.driver_connection
        driver.execute("BEGIN IMMEDIATE")
        try:
            results = self._run_batch(connection, batch)
            driver.execute("COMMIT")
        except BaseException:
            driver.rollback()
            raise
        return results

    def _run_batch(self, connection: Connection, batch: list[_Write]) -> list[Any]:
        groups: list[list[Row]] = [[] for _ in STATEMENTS]
        for write in batch:
            for statement, row in write.rows:
                groups[statement].append(row)
        if groups[RECEIVE] and groups[ANSWER]:
            groups[RECEIVE], groups[ANSWER] = _answered(groups[RECEIVE], groups[ANSWER])
        driver: Any = connection.connection.driver_connection
        new_rows: set[int] | None = None
        for statement, rows in enumerate(groups):
            done = 0
            for begin in range(0, len(rows), MAX_ROWS):
                part = rows[begin : begin + MAX_ROWS]
                done += driver.execute(sql(statement, len(part)), list(chain.from_iterable(part))).rowcount
            if statement == RECEIVE and done < len(rows):
                first = min(row[0] for row in rows)
                new_rows = {row[0] for row in driver.execute("SELECT id FROM inbox WHERE id >= ?", (first,))}
        return [
            write.work(connection)
            if write.work is not None
            else write.inbox_row is None or new_rows is None or write.inbox_row in new_rows
            for write in batch
        ]

    # Opening

    def _open(self) -> None:
        with self._writer_engine.connect() as connection:
            tables = inspect(connection).get_table_names()
            if not tables:
                schema.metadata.create_all(connection)
                connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
                connection.exec_driver_sql("INSERT INTO alembic_version VALUES (?)", (schema.REVISION,))
            elif (stored := self._revision(connection)) != schema.REVISION:
                from .migrations import upgrade  # Alembic is slow to import

                upgrade(connection, self._path, stored)
            connection.commit()
            for table in (schema.inbox, schema.interactions, schema.conversations):
                self._next_ids[table.name] = connection.execute(select(func.max(table.c.id))).scalar() or 0
            for key in connection.scalars(select(schema.inbox.c.key)):
                self.known.add(key)

    def _revision(self, connection: Connection) -> Any:
        if "alembic_version" not in inspect(connection).get_table_names():
            raise StoreError(f"{self._path}: is a database of another program; name another file in storage.url")
        return connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()

    def _check(self, connection: Connection) -> None:
        stored = self._revision(connection)
        if stored != schema.REVISION:
            raise StoreError(f"{self._path}: is of another version ({stored}); the next start of the platform migrates it")

    def _prepare(self, dbapi_connection: Any, _record: object) -> None:
        dbapi_connection.isolation_level = None  # transactions are begun by us (SQLAlchemy, SQLite: savepoints)
        cursor = dbapi_connection.cursor()
        cursor.execute("PRAGMA busy_timeout=5000")
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute(f"PRAGMA synchronous={self._durability}")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.execute("PRAGMA secure_delete=ON")  # what is forgotten is not in the file either
        cursor.close()

    def _error(self, error: SQLAlchemyError | sqlite3.Error) -> StoreError:
        cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
        return StoreError(f"{self._path}: {' '.join(str(cause).split())}")


def _concerns_all(error: Exception) -> bool:
    """Whether it is the file that cannot be written, whoever writes: locked, full, unreadable."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return isinstance(cause, sqlite3.Error) and getattr(cause, "sqlite_errorcode", 0) & 0xFF in _OF_THE_FILE


def _answered(received: list[Row], answers: list[Row]) -> tuple[list[Row], list[Row]]:
    """Requests that are answered in the same transaction go in as answered, instead of being written twice."""
    new = {row[0]: row for row in received}
    rest = []
    for answer in answers:
        row = new.get(answer[0])
        if row is None:
            rest.append(answer)
        else:
            new[row[0]] = (*row[:-3], answer[1], None, answer[2])
    return list(new.values()), rest


def _make_private(path: Path) -> None:
    """What people said is for nobody else on this machine; SQLite gives its other files the rights of this one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(0o600)


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _begin_deferred(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _resolve(results: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, result in results:
        if future.done():  # its waiter was cancelled
            continue
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)
