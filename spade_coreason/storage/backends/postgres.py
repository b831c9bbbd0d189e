"""The PostgreSQL database: a writer task with group commit on its own connection, and a pool of connections for reads."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import chain
from typing import Any

from sqlalchemy import URL, Connection, Select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from ...domain.environment.installation import install_hint
from ...exceptions import DatabaseUnreachableError, LeaseLostError, StoreError
from ..schema import CLOSED, inbox
from ..workers.leases import WorkerTerms, add_worker, make_fence, name_session
from .database import (
    INBOX_PAGE_ROWS,
    Commit,
    Database,
    Durability,
    Outcomes,
    QueryGenerator,
    Row,
    StoreTimings,
    T,
    WriterHook,
    group_rows,
    is_of_agent,
    select_inbox_rows,
    select_rows_with_steps,
)
from .statements import ADD_INTERACTION, CLOSE, KEY_COLUMNS, RECEIVE, RECEIVE_ANSWERED, postgres_queries, postgres_sql

try:
    import asyncpg
except ImportError as error:
    raise StoreError(f"PostgreSQL needs asyncpg, which is not installed: {install_hint('postgres')}") from error

_CONNECT_TIMEOUT_S = 5.0
_COMMAND_TIMEOUT_S = 60.0
_BLOCKING_TIMEOUT_S = 10.0
"""The longest time for which a read may block the event loop."""
_LOCK_KEY = 0x73706164
"""The first key of a platform's advisory lock; the second key is the hash of its schema."""
_LOCK_SQL = f"SELECT pg_advisory_lock{{}}({_LOCK_KEY}, hashtext(current_schema()::text))"
_MIGRATION_LOCK_SQL = f"SET lock_timeout = 0; SELECT pg_advisory_lock({_LOCK_KEY + 1}, hashtext(current_schema()::text))"
_ALONE_TIMEOUT_MS = 50_000
_ALONE_LOCK_SQL = (
    f"SET lock_timeout = {_ALONE_TIMEOUT_MS}; SELECT pg_advisory_lock({_LOCK_KEY + 2}, hashtext(current_schema()::text))"
)
_LOCK_TIMEOUT_MS = 2000
"""The connection of a killed platform may stay open for this time."""
_FENCED = "SELECT 0"
"""The status of the statements of `make_fence` if the lease is lost."""
_LOST_TABLES_REMEDY = "the database has lost its tables; stop the platform and restore a backup"
_ENDED_REMEDY = "the connection was ended, probably because the platform hung; the log of the server says why"
_REMEDIES = {
    "55P03": "another program has locked a table for too long; pg_locks names it",
    "25P03": "the platform hung during a transaction, which was undone; its log names what blocked it",
}
"""The remedy of an error, by its SQLSTATE."""
_CONNECT_FAILED = re.compile(r"\[Errno (\d+)\] Connect call failed")
"""The reason in an error of asyncio, which has one for each address of a host."""
# SQLSTATE classes of errors in one write. All other classes are failures of the server (PostgreSQL, appendix A).
_SINGLE_WRITE_STATES = {"21", "22", "23", "42"}
_UNDEFINED_TABLE = "42P01"
_NO_CONNECTION_STATES = {"53300", "57P03"}  # too many clients; the server is starting or stopping
_INSERTING_STATEMENTS = (RECEIVE, RECEIVE_ANSWERED, ADD_INTERACTION)
"""The statements whose new rows identify a transaction."""
DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, SQLAlchemyError, OSError)
"""The errors of a connection. `InternalClientError` comes from one that the server is just ending."""


class PostgresDatabase(Database):
    """One schema of a PostgreSQL database.

    An advisory lock lets one process use it at a time. Workers share the lock, and each transaction of theirs is fenced by the
    lease of its worker (see leases.py).
    """

    reader_connections = 4
    driver_errors = DRIVER_ERRORS
    has_memories = True

    def __init__(
        self,
        url: URL,
        durability: Durability,
        timings: StoreTimings,
        writer_hook: WriterHook | None,
        terms: WorkerTerms | None = None,
    ) -> None:
        super().__init__(url, durability, timings, writer_hook)
        self._terms = terms
        self._begin_sql = "BEGIN"
        settings = {
            "application_name": "spade-coreason",
            "synchronous_commit": "on" if durability == "full" else "off",
            "jit": "off",  # the queries are too short to profit
            "lock_timeout": f"{timings.lock_timeout_s:g}s",
            "idle_in_transaction_session_timeout": f"{timings.idle_transaction_timeout_s:g}s",
            # With the connections of a lost platform, its lock on the database ends.
            "tcp_user_timeout": f"{timings.lost_client_timeout_s:g}s",
            "tcp_keepalives_idle": f"{max(1.0, timings.lost_client_timeout_s / 2):.0f}s",
            "tcp_keepalives_interval": f"{max(1.0, timings.lost_client_timeout_s / 6):.0f}s",
        }
        arguments = {"timeout": _CONNECT_TIMEOUT_S, "server_settings": settings}
        # The writer begins its transactions itself, so that prepared statements and functions share one.
        self._writer_engine = create_async_engine(
            url,
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            connect_args={**arguments, "command_timeout": _COMMAND_TIMEOUT_S},
        )
        self._reader_engine: AsyncEngine = create_async_engine(
            url,
            pool_size=self.reader_connections,
            max_overflow=0,
            pool_pre_ping=True,
            isolation_level="REPEATABLE READ",
            connect_args=arguments,
        )
        self._blocking_reader: _BlockingReader | None = None
        self._make_blocking_engine = partial(
            create_async_engine,
            url,
            pool_size=1,
            max_overflow=0,
            pool_pre_ping=True,
            isolation_level="REPEATABLE READ",
            connect_args={**arguments, "command_timeout": _BLOCKING_TIMEOUT_S},
        )
        self._connection: AsyncConnection | None = None
        self._next_batch: list[Commit[Any]] = []
        self._wake_event = asyncio.Event()
        self._writer_task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        try:
            # This engine has no command timeout: a migration is one transaction, and may take longer than any other command.
            async with self._reader_engine.connect() as connection:
                await connection.execution_options(isolation_level="READ COMMITTED")  # other workers write at the same time
                driver = await _driver_connection(connection)
                await self._acquire_lock(driver)
                await driver.execute(_MIGRATION_LOCK_SQL)  # of several workers one creates or migrates the tables
                await connection.run_sync(self._create_or_migrate)
                await connection.invalidate()  # this releases its locks
            await self._ensure_connection()
            if self._terms is not None and self._connection is not None:
                self.worker_id = await self._connection.run_sync(self._add_worker, self._terms)
                self._begin_sql = make_fence(self.worker_id)
                await self._name_session(await _driver_connection(self._connection))
        except DRIVER_ERRORS as error:
            problem = self.problem(error)
            raise (DatabaseUnreachableError(str(problem)) if _is_unreachable(error) else problem) from error
        self._writer_task = asyncio.create_task(self._run_writer(), name="database-writer")

    def _schedule_log_truncation(self) -> None:
        """Do nothing: the server manages its log."""

    async def _stop_writer(self) -> None:
        if self._writer_task is not None:
            self._wake_event.set()
            await self._writer_task

    async def dispose(self) -> None:
        if self._blocking_reader is not None:
            await asyncio.to_thread(self._blocking_reader.close)
        await self._close_connection()
        await self._writer_engine.dispose()
        await self._reader_engine.dispose()

    async def _read(self, work: Callable[[Connection], T]) -> T:
        async with self._reader_engine.connect() as connection:
            return await connection.run_sync(work)

    def read_blocking(self, work: Callable[[Connection], T]) -> T:
        if self._blocking_reader is None:
            self._blocking_reader = _BlockingReader(self._make_blocking_engine())
        try:
            return self._blocking_reader.read(work)
        except DRIVER_ERRORS as error:
            raise self.problem(error) from error

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Hold a lock of the database, on a connection of its own, whose end releases it."""
        try:
            connection = await self._writer_engine.connect()
            try:
                await (await _driver_connection(connection)).execute(_ALONE_LOCK_SQL)
            except BaseException:
                await connection.invalidate()
                raise
        except DRIVER_ERRORS as error:
            raise self.problem(error) from error
        try:
            yield
        finally:
            await connection.invalidate()

    @property
    def queries(self) -> Mapping[int, str]:
        """The texts of the prepared queries."""
        return postgres_queries()

    def run_queries(self, queries: QueryGenerator[T]) -> asyncio.Future[T]:
        """Run a few short prepared queries on a connection of the pool."""
        return self._loop.create_task(self._run_query_generator(queries))

    async def _run_query_generator(self, queries: QueryGenerator[T]) -> T:
        texts = self.queries
        try:
            async with self._reader_slots, self._reader_engine.connect() as connection:
                driver = await _driver_connection(connection)
                query, parameters = next(queries)
                while True:
                    rows = await driver.fetch(texts[query], *parameters)
                    try:
                        query, parameters = queries.send(rows)
                    except StopIteration as end:
                        result: T = end.value
                        return result
        except DRIVER_ERRORS as error:
            raise self.problem(error) from error

    # The writer

    def _write_batch(self, batch: list[Commit[Any]]) -> None:
        self._next_batch += batch
        self._wake_event.set()

    async def _run_writer(self) -> None:
        while self._next_batch or not self._is_closed:
            await self._wake_event.wait()
            self._wake_event.clear()
            batch, self._next_batch = self._next_batch, []
            if batch:
                resolved = await self._commit(batch)
                batch.clear()  # so that a finished turn can be freed without waiting for the next batch
                self._resolve(*resolved)
                if self._next_batch:
                    self._wake_event.set()

    def problem(self, error: Exception) -> StoreError:
        if numbers := dict.fromkeys(_CONNECT_FAILED.findall(str(error))):
            return StoreError(f"{self.name}: cannot connect: {', '.join(os.strerror(int(number)) for number in numbers)}")
        problem = super().problem(error)
        remedy = _LOST_TABLES_REMEDY if _has_lost_tables(error) else _find_remedy(error)
        return problem if remedy is None else StoreError(f"{problem}: {remedy}")

    async def _commit(self, batch: list[Commit[Any]]) -> tuple[Outcomes, StoreError | None]:
        """Commit a batch. Return the result of each write, and the failure if the server accepts no writes at all."""
        try:
            results = await self._run_transaction(batch)
        except Exception as error:  # noqa: BLE001 - any error goes to the caller of the write
            problem = self.problem(error) if isinstance(error, DRIVER_ERRORS) else error
            failure = problem if isinstance(problem, StoreError) and _is_server_failure(error) else None
            if failure is not None or len(batch) == 1:
                return [(write, problem) for write in batch], failure
            # Repeat the writes one by one, so that only the faulty one fails.
            outcomes = [await self._commit([write]) for write in batch]
            return list(chain.from_iterable(results for results, _ in outcomes)), outcomes[-1][1]
        return results, None

    async def _run_transaction(self, batch: list[Commit[Any]]) -> Outcomes:
        groups = group_rows(batch)
        driver = await self._ensure_connection()
        try:
            if await driver.execute(self._begin_sql) == _FENCED:
                raise LeaseLostError(f"{self.name}: another worker serves the agents of this one now")
            results = await self._run_batch(driver, groups, batch)
            ids = [row[0] for statement in _INSERTING_STATEMENTS for row in groups[statement]]
            transaction_id = None if ids else await driver.fetchval("SELECT txid_current()")
        except TimeoutError:
            driver.terminate()  # a server that does not answer cannot receive a rollback
            raise
        except BaseException:
            with suppress(*DRIVER_ERRORS):  # the connection may be what failed
                await driver.execute("ROLLBACK")
            raise
        try:
            await driver.execute("COMMIT")
        except DRIVER_ERRORS:
            # The connection broke before the server confirmed the commit, so ask whether it was done.
            if not driver.is_closed() or not await self._was_committed(ids, transaction_id):
                raise
        return results

    async def _run_batch(self, driver: Any, groups: list[list[Row]], batch: list[Commit[Any]]) -> Outcomes:
        *other_groups, closed = groups
        for statement, rows in enumerate(other_groups):
            await _write_rows(driver, statement, rows)
        results: Outcomes = []
        for write in batch:
            if write.work is not None and self._connection is not None:
                results.append((write, await self._connection.run_sync(write.work)))
            else:
                results.append((write, True))
        await _write_rows(driver, CLOSE, closed)  # also requests that a function of this batch has just stored
        return results

    async def _was_committed(self, ids: list[int], transaction_id: int | None) -> bool:
        """Return True if a transaction was committed whose confirmation is missing. Ask as soon as the server answers.

        The new rows of the transaction (`ids`) identify it. One without new rows, which is rare, has its `transaction_id`.
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
                    except DRIVER_ERRORS:
                        await asyncio.sleep(0.1)
        return False

    # Connections

    async def _ensure_connection(self) -> Any:
        """Return the driver of the writer's connection. Connect again if the server has closed it."""
        if self._connection is not None:
            if not self._connection.invalidated:  # SQLAlchemy never lets go of a connection that broke in a function
                driver = await _driver_connection(self._connection)
                if not driver.is_closed():
                    return driver
            await self._close_connection()
        connection = await self._writer_engine.connect()
        try:
            driver = await _driver_connection(connection)
            await self._acquire_lock(driver)
            await self._name_session(driver)
            self.is_new = False  # it has been unlocked since its tables were created
            first_foreign, is_first = self._known_next_id, not self._known_next_id
            if await connection.run_sync(self._renew_row_ids) and not is_first:
                # Another platform has stored these while this one had no connection.
                of_agents = inbox.c.agent.in_(list(self.open_inbox_rows))
                await self._load_rows(select_inbox_rows(inbox.c.id >= first_foreign, of_agents))
        except BaseException:
            await connection.invalidate()
            await connection.close()
            raise
        self._connection = connection
        return driver

    async def _load_agent(self, agent: str) -> None:
        self.open_inbox_rows[agent] = set()
        try:
            await self._load_rows(select_rows_of(agent))
        except BaseException:
            del self.open_inbox_rows[agent]
            raise

    async def _load_rows(self, query: Select[Any]) -> None:
        """Remember the rows of the inbox that a query finds, a page at a time, so that other tasks run in between."""
        open_ids = []
        try:
            async with self._reader_slots, self._reader_engine.connect() as connection:
                async for rows in (await connection.stream(query)).partitions():
                    self._add_inbox_rows(rows)
                    open_ids += [row.id for row in rows if row.state < CLOSED]  # only these may have steps
                while open_ids:
                    page, open_ids = open_ids[:INBOX_PAGE_ROWS], open_ids[INBOX_PAGE_ROWS:]
                    with_steps = await connection.scalars(select_rows_with_steps(page))
                    self.inbox_rows_with_steps.difference_update(page)  # another worker may have parked them since
                    self.inbox_rows_with_steps.update(with_steps)
        except DRIVER_ERRORS as error:
            raise self.problem(error) from error

    def _add_worker(self, connection: Connection, terms: WorkerTerms) -> int:
        worker = add_worker(connection, terms)
        connection.commit()
        return worker

    async def _name_session(self, driver: Any) -> None:
        """Name the session of a worker, so that another one can end it."""
        if self.worker_id is not None:
            await driver.execute(f"SELECT set_config('application_name', {name_session(self.worker_id)}, false)")

    async def _acquire_lock(self, driver: Any) -> None:
        """Take the lock that a platform holds as long as it is connected. Raise StoreError if another platform holds it."""
        await driver.execute(f"SET lock_timeout = {_LOCK_TIMEOUT_MS}")
        try:
            await driver.execute(_LOCK_SQL.format("" if self._terms is None else "_shared"))
        except asyncpg.LockNotAvailableError:
            names = await self._find_workers(driver)
            which, them = (f" ({', '.join(names)})", "all its workers") if names else ("", "it")
            remedy = f"stop {them}, or name another database in storage.url; workers share one: all need server.mode: external"
            raise StoreError(f"{self.name}: another platform uses this database{which}; {remedy}") from None
        await driver.execute("RESET lock_timeout")

    async def _find_workers(self, driver: Any) -> list[str]:
        """Return the names of the workers that share the database; none if it has no tables yet, or older ones."""
        try:
            return [row["name"] for row in await driver.fetch("SELECT name FROM workers ORDER BY id")]
        except asyncpg.UndefinedTableError:
            return []

    async def _close_connection(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with suppress(*DRIVER_ERRORS):  # it may be closed already
                await connection.close()


class _BlockingReader:
    """A thread with an event loop and a connection, for reads that block their caller."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="database-blocking-reads", daemon=True)
        self._thread.start()

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction, and return its result."""
        return asyncio.run_coroutine_threadsafe(self._read(work), self._loop).result()

    async def _read(self, work: Callable[[Connection], T]) -> T:
        try:
            async with asyncio.timeout(_BLOCKING_TIMEOUT_S), self._engine.connect() as connection:
                return await connection.run_sync(work)
        except TimeoutError:
            raise TimeoutError(f"the server did not answer within {_BLOCKING_TIMEOUT_S:g} s") from None

    def close(self) -> None:
        """Close the connection and end the thread."""
        asyncio.run_coroutine_threadsafe(self._engine.dispose(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def select_rows_of(agent: str) -> Select[Any]:
    """Return the query of the rows of one agent."""
    return select_inbox_rows(is_of_agent(agent))


async def _driver_connection(connection: AsyncConnection) -> Any:
    return (await connection.get_raw_connection()).driver_connection


def _is_server_failure(error: Exception) -> bool:
    """Return True if the server accepts no writes at all: unreachable, full, read-only, or used by another platform."""
    if isinstance(error, StoreError):
        return True
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, ValueError) or not isinstance(error, DRIVER_ERRORS):
        return False  # asyncpg itself rejects a value that does not fit a column
    state = _sqlstate(error)
    return state is None or _has_lost_tables(error) or state[:2] not in _SINGLE_WRITE_STATES


def _is_unreachable(error: Exception) -> bool:
    """Return True if there is no connection to the server, or not yet."""
    return isinstance(error, OSError) or _sqlstate(error) in _NO_CONNECTION_STATES


def _has_lost_tables(error: Exception) -> bool:
    """Return True if the table of requests is missing, or that of the probe: the database was made anew while in use."""
    is_missing = _sqlstate(error) == _UNDEFINED_TABLE
    return is_missing and any(table in str(error) for table in (inbox.name, "alembic_version"))


def _find_remedy(error: BaseException) -> str | None:
    """Return what to do about an error or one that caused it; None if nothing is known."""
    cause: BaseException | None = error
    while cause is not None:
        if remedy := _REMEDIES.get(getattr(cause, "sqlstate", None) or ""):
            return remedy
        if isinstance(cause, asyncpg.InternalClientError):  # asyncpg does not pass on why the server ends an idle connection
            return _ENDED_REMEDY
        cause = cause.__cause__ or cause.__context__
    return None


def _sqlstate(error: Exception) -> str | None:
    cause = error.orig if isinstance(error, DBAPIError) else error
    return getattr(cause, "sqlstate", None)


async def _write_rows(driver: Any, statement: int, rows: list[Row]) -> None:
    if not rows:
        return
    key = KEY_COLUMNS[statement]
    distinct = {row[key]: row for row in rows}  # a statement must not touch a row twice: the last one counts
    await driver.fetch(postgres_sql()[statement], *map(list, zip(*distinct.values(), strict=True)))
