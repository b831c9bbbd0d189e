"""The database on PostgreSQL: a writer task with group commit on a connection of its own, reads on others."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import chain
from typing import Any

from sqlalchemy import URL, Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from ..exceptions import StoreError
from .database import (
    Database,
    Durability,
    Intercept,
    PendingWrite,
    QueryGenerator,
    Row,
    StoreTimings,
    T,
    WriteResults,
    group_rows,
)
from .statements import ADD_INTERACTION, CLOSE, KEY_COLUMNS, RECEIVE, RECEIVE_ANSWERED, postgres_queries, postgres_sql

try:
    import asyncpg
except ImportError as error:
    raise StoreError("PostgreSQL needs asyncpg, which is not installed: pip install 'spade-coreason[postgres]'") from error

_READER_CONNECTIONS = 4
_CONNECT_TIMEOUT_S = 5.0
_COMMAND_TIMEOUT_S = 60.0
_LOCK_KEY = 0x73706164
"""The first half of the advisory lock of a platform; the second is its schema."""
_ACQUIRE_LOCK_SQL = f"SELECT pg_advisory_lock({_LOCK_KEY}, hashtext(current_schema()::text))"
_LOCK_TIMEOUT_MS = 2000
"""For so long the connection of a platform that was killed may be there still."""
# Classes of SQLSTATE that speak of what was to be written; all others speak of the server (PostgreSQL, appendix A).
_SINGLE_WRITE_STATES = {"21", "22", "23", "42"}
_INSERTING_STATEMENTS = (RECEIVE, RECEIVE_ANSWERED, ADD_INTERACTION)
"""The statements by whose rows one knows a transaction again."""
_DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, SQLAlchemyError, OSError)


class PostgresDatabase(Database):
    """A schema of a PostgreSQL database. One platform uses it at a time: an advisory lock says which."""

    def __init__(self, url: URL, durability: Durability, timings: StoreTimings, intercept: Intercept | None) -> None:
        super().__init__(url, durability, timings, intercept)
        settings = {
            "application_name": "spade-coreason",
            "synchronous_commit": "on" if durability == "full" else "off",
            "jit": "off",  # no query of ours is long enough
        }
        arguments = {"timeout": _CONNECT_TIMEOUT_S, "server_settings": settings}
        # Its transactions are begun by us, so that prepared statements and functions share one.
        self._writer_engine = create_async_engine(
            url,
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            connect_args={**arguments, "command_timeout": _COMMAND_TIMEOUT_S},
        )
        self._reader_engine: AsyncEngine = create_async_engine(
            url,
            pool_size=_READER_CONNECTIONS,
            max_overflow=0,
            pool_pre_ping=True,
            isolation_level="REPEATABLE READ",
            connect_args=arguments,
        )
        self._connection: AsyncConnection | None = None
        self._handed_over: list[PendingWrite] = []
        self._wake_event = asyncio.Event()
        self._writer_task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        try:
            # In one transaction, and a migration may take longer than any other command.
            async with self._reader_engine.connect() as connection:
                await self._acquire_lock(await _driver_connection(connection))
                await connection.run_sync(self._create_or_migrate)
                await connection.invalidate()  # with its lock
            await self._ensure_connection()
        except _DRIVER_ERRORS as error:
            raise self.problem(error) from error
        self._writer_task = asyncio.create_task(self._run_writer(), name="database-writer")

    def _schedule_log_truncation(self) -> None:
        """It is the server's."""

    async def _stop_writer(self) -> None:
        if self._writer_task is not None:
            self._wake_event.set()
            await self._writer_task

    async def dispose(self) -> None:
        await self._close_connection()
        await self._writer_engine.dispose()
        await self._reader_engine.dispose()

    def run_queries(self, queries: QueryGenerator[T]) -> asyncio.Future[T]:
        """Answers a few short questions, beside the writer."""
        return self._loop.create_task(self._run_query_generator(queries))

    async def _run_query_generator(self, queries: QueryGenerator[T]) -> T:
        texts = postgres_queries()
        try:
            async with self._reader_engine.connect() as connection:
                driver = await _driver_connection(connection)
                query, parameters = next(queries)
                while True:
                    rows = await driver.fetch(texts[query], *parameters)
                    try:
                        query, parameters = queries.send(rows)
                    except StopIteration as end:
                        answer: T = end.value
                        return answer
        except _DRIVER_ERRORS as error:
            raise self.problem(error) from error

    # The writer

    def _write_batch(self, batch: list[PendingWrite]) -> None:
        self._handed_over += batch
        self._wake_event.set()

    async def _run_writer(self) -> None:
        while self._handed_over or not self._is_closed:
            await self._wake_event.wait()
            self._wake_event.clear()
            batch, self._handed_over = self._handed_over, []
            if batch:
                resolved = await self._commit(batch)
                batch.clear()  # a turn is let go of where it ends, not here
                self._resolve(*resolved)
                if self._handed_over:
                    self._wake_event.set()

    async def _commit(self, batch: list[PendingWrite]) -> tuple[WriteResults, StoreError | None]:
        """What became of the writes, and why none at all can be done if that is so."""
        try:
            results = await self._run_transaction(batch)
        except Exception as error:  # noqa: BLE001 - of whatever kind, it belongs to whoever asked for the write
            problem = self.problem(error) if isinstance(error, _DRIVER_ERRORS) else error
            failure = problem if isinstance(problem, StoreError) and _is_server_failure(error) else None
            if failure is not None or len(batch) == 1:
                return [(future, problem, None) for _, _, future, _ in batch], failure
            # Only the write that cannot be done fails; the others are done each for itself.
            each = [await self._commit([write]) for write in batch]
            return list(chain.from_iterable(results for results, _ in each)), each[-1][1]
        return results, None

    async def _run_transaction(self, batch: list[PendingWrite]) -> WriteResults:
        groups = group_rows(batch)
        driver = await self._ensure_connection()
        transaction = driver.transaction()
        await transaction.start()
        try:
            results = await self._run_batch(driver, groups, batch)
            ids = [row[0] for statement in _INSERTING_STATEMENTS for row in groups[statement]]
            number = None if ids else await driver.fetchval("SELECT txid_current()")
        except TimeoutError:
            driver.terminate()  # a server that does not answer would not hear of a rollback either
            raise
        except BaseException:
            with suppress(*_DRIVER_ERRORS):  # the connection may be what failed
                await transaction.rollback()
            raise
        try:
            await transaction.commit()
        except _DRIVER_ERRORS:
            # Whether it was done nobody has said.
            if not driver.is_closed() or not await self._was_committed(ids, number):
                raise
        return results

    async def _run_batch(self, driver: Any, groups: list[list[Row]], batch: list[PendingWrite]) -> WriteResults:
        *others, closed = groups
        for statement, rows in enumerate(others):
            await _write_rows(driver, statement, rows)
        results: WriteResults = []
        for _, work, future, then in batch:
            if work is not None and self._connection is not None:
                results.append((future, await self._connection.run_sync(work), then))
            else:
                results.append((future, True, then))
        await _write_rows(driver, CLOSE, closed)  # also what a function has only just received
        return results

    async def _was_committed(self, ids: list[int], transaction_id: int | None) -> bool:
        """Whether a transaction whose end nobody heard was done; looked for as soon as the server answers.

        By the rows that are new with it; one without any, which is rare, has its `transaction_id`.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                while True:
                    try:
                        driver = await self._ensure_connection()
                        if transaction_id is not None:
                            return bool(await driver.fetchval("SELECT txid_status($1) = 'committed'", transaction_id))
                        found = await driver.fetchval(
                            "SELECT EXISTS (SELECT FROM inbox WHERE id = ANY($1))"
                            " OR EXISTS (SELECT FROM interactions WHERE id = ANY($1))",
                            ids,
                        )
                        return bool(found)
                    except _DRIVER_ERRORS:
                        await asyncio.sleep(0.1)
        return False

    # Connections

    async def _ensure_connection(self) -> Any:
        """The writer's connection, a new one where the server has ended it."""
        if self._connection is not None:
            driver = await _driver_connection(self._connection)
            if not driver.is_closed():
                return driver
            await self._close_connection()
        connection = await self._writer_engine.connect()
        try:
            driver = await _driver_connection(connection)
            await self._acquire_lock(driver)
            await connection.run_sync(self._load_ids_and_keys)
        except BaseException:
            await connection.invalidate()
            await connection.close()
            raise
        self._connection = connection
        return driver

    async def _acquire_lock(self, driver: Any) -> None:
        """Takes the lock that a platform holds as long as it is connected."""
        await driver.execute(f"SET lock_timeout = {_LOCK_TIMEOUT_MS}")
        try:
            await driver.execute(_ACQUIRE_LOCK_SQL)
        except asyncpg.LockNotAvailableError:
            remedy = "stop that one, or name another database in storage.url"
            raise StoreError(f"{self.name}: another platform uses this database; {remedy}") from None
        await driver.execute("RESET lock_timeout")

    async def _close_connection(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with suppress(*_DRIVER_ERRORS):  # it may be closed already
                await connection.close()

    def _load_ids_and_keys(self, connection: Connection) -> None:
        super()._load_ids_and_keys(connection)
        connection.commit()


async def _driver_connection(connection: AsyncConnection) -> Any:
    return (await connection.get_raw_connection()).driver_connection


def _is_server_failure(error: Exception) -> bool:
    """Whether it is the server that cannot write, whoever asks: gone, full, read-only, owned by another platform."""
    if isinstance(error, StoreError):
        return True
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, ValueError) or not isinstance(error, _DRIVER_ERRORS):
        return False  # of a value that PostgreSQL has no room for, asyncpg says so itself
    state = getattr(cause, "sqlstate", None)
    return state is None or state[:2] not in _SINGLE_WRITE_STATES


async def _write_rows(driver: Any, statement: int, rows: list[Row]) -> None:
    if not rows:
        return
    key = KEY_COLUMNS[statement]
    different = {row[key]: row for row in rows}  # no statement may touch a row twice: the last counts
    await driver.fetch(postgres_sql()[statement], *map(list, zip(*different.values(), strict=True)))
