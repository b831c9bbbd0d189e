"""The PostgreSQL database: a writer task with group commit on its own connection, and a pool of connections for reads."""

from __future__ import annotations

import asyncio
import os
import random
import re
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from secrets import token_hex
from typing import Any

from sqlalchemy import URL, Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ...exceptions import ContentRefusedError, DatabaseUnreachableError, LeaseLostError, StoreError
from ..schema import inbox
from ..workers.leases import RINGS, WorkerTerms, add_worker, make_fence, name_session
from ..workers.mailbox import WorkerBell
from .backend import Backend
from .group_commit import (
    BatchOutcome,
    Commit,
    Durability,
    Outcomes,
    QueryGenerator,
    Row,
    StoreTimings,
    T,
    WriterHook,
    group_rows,
    join_outcomes,
)
from .postgres_connections import CONNECT_TIMEOUT_S, PostgresConnections, find_remedy, sqlstate
from .statements import ADD_INTERACTION, CLOSE, KEY_COLUMNS, RECEIVE, RECEIVE_ANSWERED, postgres_queries, postgres_sql
from .stored_schema import StoredSchema, create_or_migrate

_COMMAND_TIMEOUT_S = 60.0
_BLOCKING_TIMEOUT_S = 10.0
"""The longest time for which a read may block the event loop."""
_OTHERS = (
    "SELECT FROM pg_stat_activity AS other WHERE datname = current_database() AND usename = session_user"
    " AND pid <> pg_backend_pid() AND application_name <> current_setting('application_name')"
    " AND application_name ~ ('^spade-coreason ({}) .* in ' || hashtext(current_schema()::text) || '$')"
)
"""Find the sessions of other processes that hold a lock of the kinds in the first place."""
_ALONE_TIMEOUT_S = 50.0
_LOCK_TIMEOUT_S = 2.0
"""The connection of a killed platform may stay open for this time."""
_NONE = "SELECT 0"
"""The status of a query without rows."""
_MARK = "SET spade_coreason.session = '{}'"
_HAS_MARK = "SELECT WHERE current_setting('spade_coreason.session', true) = '{}'"
_POOLED_STATES = {"26000", "42P05"}
"""The SQLSTATE of prepared statements that are those of another session."""
_POOLED = (
    "a pooler gives the connection to others between transactions, so that settings, locks and LISTEN are lost;"
    " use its pool mode session, or connect to PostgreSQL itself"
)
_PUBLIC_CONNECT = (
    "SELECT format('REVOKE CONNECT ON DATABASE %I FROM PUBLIC', current_database())"
    " WHERE has_database_privilege('public', current_database(), 'CONNECT')"
)
_OTHER_SERVER_STATES = ("25006", "57P")
"""The beginnings of the SQLSTATE if the server takes no writes, or ends: the next connection may lead to another one."""
_CREATED_STATES = {"23505", "42P07", "42710"}
"""The SQLSTATE of tables that another process is just creating."""
_LOST_TABLES_REMEDY = "the database has lost its tables; stop the platform and restore a backup"
_CONNECT_FAILED = re.compile(r"\[Errno (\d+)\] Connect call failed")
"""The reason in an error of asyncio, which has one for each address of a host."""
# SQLSTATE classes of further errors in one write. All other classes are failures of the server (PostgreSQL, appendix A).
_SINGLE_WRITE_STATES = {"21", "23", "42"}
_UNDEFINED_TABLE = "42P01"
_NO_CONNECTION_STATES = {"25006", "53300", "57P03"}  # read-only; too many clients; the server is starting or stopping
_INSERTING_STATEMENTS = (RECEIVE, RECEIVE_ANSWERED, ADD_INTERACTION)
"""The statements whose new rows identify a transaction."""
DRIVER_ERRORS = PostgresConnections.errors


class PlatformLock:
    """The lock that a process has on a database, as long as it is connected: the name of a session.

    The process in the name owns it, and it ends with the session. Only sessions of the same user count, so that other users of
    the database can hold no lock. Workers share the lock.
    """

    def __init__(self, database_name: str, *, is_shared: bool) -> None:
        self.owner = token_hex(8)
        """The name of this process."""
        self._database_name = database_name
        self._is_shared = is_shared

    async def acquire(self, driver: Any, worker: int | None) -> None:
        """Take the lock that a platform holds as long as it is connected. Raise StoreError if another platform holds it.

        It is also the name by which another worker can end the session of this one.
        """
        name, others = (name_session(worker or 0), "alone") if self._is_shared else (self._name_owner("alone"), "alone|worker")
        if not await self._name_session(driver, name, others, _LOCK_TIMEOUT_S):
            names = await self._find_workers(driver)
            which, them = (f" ({', '.join(names)})", "all its workers") if names else ("", "it")
            remedy = f"stop {them}, or name another database in storage.url; workers share one: all need server.mode: external"
            raise StoreError(f"{self._database_name}: another platform uses this database{which}; {remedy}")

    async def acquire_for_import(self, driver: Any) -> None:
        """Take the lock of a process that moves interaction memories. Raise StoreError if another one holds it for too long."""
        if not await self._name_session(driver, self._name_owner("import"), "import", _ALONE_TIMEOUT_S):
            remedy = "another process moves interaction memories; start again once it has ended"
            raise StoreError(f"{self._database_name}: {remedy}")

    def _name_owner(self, kind: str) -> str:
        """Return the SQL of the name of a session of this process that holds a lock."""
        return f"'spade-coreason {kind} {self.owner} in ' || hashtext(current_schema()::text)"

    async def _name_session(self, driver: Any, name: str, others: str, timeout_s: float) -> bool:
        """Give a session a name (SQL). Return False, and take the name away, if other processes keep one of the kinds `others`.

        Of two processes at once, at least one sees the other.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            await driver.execute(f"SELECT set_config('application_name', {name}, false)")
            if await driver.execute(_OTHERS.format(others)) == _NONE:
                return True
            await driver.execute("SET application_name = 'spade-coreason waits'")
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(random.uniform(0.01, 0.1))

    async def _find_workers(self, driver: Any) -> list[str]:
        """Return the names of the workers that share the database; none if it has no tables yet."""
        try:
            return [row["name"] for row in await driver.fetch("SELECT name FROM workers ORDER BY id")]
        except DRIVER_ERRORS as error:
            if sqlstate(error) != _UNDEFINED_TABLE:
                raise
            return []


class PostgresBackend(Backend):
    """One schema of a PostgreSQL database: a writer task on its own connection, and a pool of connections for reads.

    One process uses it at a time. Workers share it, and each transaction of theirs is fenced by the lease of its worker (see
    leases.py).
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
        super().__init__(url, timings, writer_hook)
        self.queries = postgres_queries()
        self.connections = PostgresConnections(url, durability, timings, self.writes.retry)
        self._terms = terms
        self._begin_sql = "BEGIN"
        self._lock = PlatformLock(self.name, is_shared=terms is not None)
        # The writer begins its transactions itself, so that prepared statements and functions share one.
        make_engine = self.connections.make_engine
        self._writer_engine = make_engine(command_timeout_s=_COMMAND_TIMEOUT_S)
        pool: dict[str, Any] = {"max_overflow": 0, "pool_pre_ping": True, "isolation_level": "REPEATABLE READ"}
        self._reader_engine = make_engine(pool_size=self.reader_connections, **pool)
        self._blocking_reader: _BlockingReader | None = None
        self._make_blocking_engine = partial(make_engine, command_timeout_s=_BLOCKING_TIMEOUT_S, pool_size=1, **pool)
        self._connection: AsyncConnection | None = None
        self._next_batch: list[Commit[Any]] = []
        self._wake_event = asyncio.Event()
        self._writer_task: asyncio.Task[None] | None = None

    async def review(self) -> str | None:
        try:
            await self._require_usable()
            revoke = await self.read(lambda connection: connection.exec_driver_sql(_PUBLIC_CONNECT).scalar())
        except DRIVER_ERRORS as error:
            raise self.problem(error) from error
        return revoke and f"every user of the server may connect to the database, and slow it down; run: {revoke}"

    async def _require_usable(self) -> None:
        """Raise StoreError for a database that is not in UTF-8, and for a pooler that does not keep sessions."""
        async with self._reader_engine.connect() as connection:
            driver = await _driver_connection(connection)
            if (encoding := driver.get_settings().server_encoding) != "UTF8":
                remedy = "make one with createdb --encoding UTF8 --template template0, and move the data by storage backup"
                raise StoreError(
                    f"{self.name}: has the encoding {encoding}, which lacks characters that people write; {remedy}"
                )
            await driver.execute(_MARK.format(self._lock.owner))
            async with self._reader_engine.connect() as other:
                await (await _driver_connection(other)).execute(_MARK.format("other"))
            if await driver.execute(_HAS_MARK.format(self._lock.owner)) == _NONE:
                raise StoreError(f"{self.name}: {_POOLED}")

    async def open(self) -> StoredSchema:
        self.connections.must_write = True
        try:
            await self._require_usable()
            # This engine has no command timeout: a migration is one transaction, and may take longer than any other command.
            async with self._reader_engine.connect() as connection:
                await connection.execution_options(isolation_level="READ COMMITTED")  # other workers write at the same time
                await self._lock.acquire(await _driver_connection(connection), None)
                create = partial(create_or_migrate, name=self.name)
                try:
                    schema = await connection.run_sync(create)
                except DBAPIError as error:
                    if sqlstate(error) not in _CREATED_STATES:
                        raise
                    await connection.rollback()  # another worker has just created the tables
                    schema = await connection.run_sync(create)
                await connection.invalidate()  # its name is no reader's
            driver = await self._ensure_connection()
            if self._terms is not None and self._connection is not None:
                self.worker_id = await self._connection.run_sync(_add_worker, self._terms)
                self.bell = WorkerBell(self.connections, self.worker_id)
                self._begin_sql = make_fence(self.worker_id)
                await self._lock.acquire(driver, self.worker_id)
                self.bell.start()
        except DRIVER_ERRORS as error:
            problem = self.problem(error)
            raise (DatabaseUnreachableError(str(problem)) if _is_unreachable(error) else problem) from error
        self._writer_task = asyncio.create_task(self._run_writer(), name="database-writer")
        return schema._replace(is_new=False)  # it has been unlocked since its tables were created

    async def close(self) -> None:
        if self._writer_task is not None:
            self._wake_event.set()
            await self._writer_task
        if self._blocking_reader is not None:
            await asyncio.to_thread(self._blocking_reader.close)
        await self._close_connection()
        if self.worker_id is not None:
            await self.bell.close()
        await self._writer_engine.dispose()
        await self._reader_engine.dispose()

    async def read(self, work: Callable[[Connection], T]) -> T:
        server = self.connections.server
        try:
            async with self._reader_engine.connect() as connection:
                return await connection.run_sync(work)
        except DRIVER_ERRORS:
            if self.connections.server == server:
                raise
            return await self.read(work)

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
                await self._lock.acquire_for_import(await _driver_connection(connection))
            except BaseException:
                await connection.invalidate()
                raise
        except DRIVER_ERRORS as error:
            raise self.problem(error) from error
        try:
            yield
        finally:
            await connection.invalidate()

    def run_queries(self, queries: QueryGenerator[T]) -> asyncio.Future[T]:
        """Run a few short prepared queries on a connection of the pool."""
        return asyncio.create_task(self._run_query_generator(queries))

    async def _run_query_generator(self, queries: QueryGenerator[T]) -> T:
        try:
            async with self.reader_slots, self._reader_engine.connect() as connection:
                driver = await _driver_connection(connection)
                query, parameters = next(queries)
                while True:
                    rows = await driver.fetch(self.queries[query], *parameters)
                    try:
                        query, parameters = queries.send(rows)
                    except StopIteration as end:
                        result: T = end.value
                        return result
        except DRIVER_ERRORS as error:
            raise self.problem(error) from error

    # The writer

    def write_batch(self, batch: list[Commit[Any]]) -> None:
        self._next_batch += batch
        self._wake_event.set()

    async def _run_writer(self) -> None:
        while self._next_batch or not self.writes.is_closed:
            await self._wake_event.wait()
            self._wake_event.clear()
            batch, self._next_batch = self._next_batch, []
            if batch:
                resolved = await self._commit(batch)
                batch.clear()  # so that a finished turn can be freed without waiting for the next batch
                self.writes.resolve(*resolved)
                if self._next_batch:
                    self._wake_event.set()

    def truncate_log_soon(self) -> None:
        """Do nothing: the server manages its log."""

    def problem(self, error: Exception) -> StoreError:
        if numbers := dict.fromkeys(_CONNECT_FAILED.findall(str(error))):
            return StoreError(f"{self.name}: cannot connect: {', '.join(os.strerror(int(number)) for number in numbers)}")
        if sqlstate(error) in _POOLED_STATES:
            return StoreError(f"{self.name}: {_POOLED}")
        problem = super().problem(error)
        if _is_refused_content(error):
            return ContentRefusedError(str(problem))
        remedy = _LOST_TABLES_REMEDY if _has_lost_tables(error) else find_remedy(error)
        return problem if remedy is None else StoreError(f"{problem}: {remedy}")

    def is_failure(self, error: Exception) -> bool:
        """Return True if the server accepts no writes at all: unreachable, full, read-only, or used by another platform."""
        if isinstance(error, StoreError):
            return True
        if _is_refused_content(error) or not isinstance(error, DRIVER_ERRORS):
            return False
        state = sqlstate(error)
        return state is None or _has_lost_tables(error) or state[:2] not in _SINGLE_WRITE_STATES

    async def _commit(self, batch: list[Commit[Any]]) -> BatchOutcome:
        """Commit a batch. Return the result of each write, and the failure if the server accepts no writes at all."""
        server = self.connections.server
        try:
            results = await self._run_transaction(batch)
        except Exception as error:  # noqa: BLE001 - any error goes to the caller of the write
            if self.connections.server != server and isinstance(error, DRIVER_ERRORS):
                return await self._commit(batch)  # its connection was ended, because another server takes writes now
            if (failed := self.judge(batch, error)) is not None:
                return failed
            return join_outcomes([await self._commit([write]) for write in batch])
        return results, None

    async def _run_transaction(self, batch: list[Commit[Any]]) -> Outcomes:
        groups = group_rows(batch)
        driver = await self._ensure_connection()
        rings = self._connection.info.setdefault(RINGS, set()) if self._connection is not None else set()
        rings.clear()  # of a transaction that failed
        try:
            if await driver.execute(self._begin_sql) == _NONE:
                raise LeaseLostError(f"{self.name}: another worker serves the agents of this one now")
            results = await self._run_batch(driver, groups, batch)
            ids = [row[0] for statement in _INSERTING_STATEMENTS for row in groups[statement]]
            transaction_id = None if ids else await driver.fetchval("SELECT txid_current()")
        except TimeoutError:
            driver.terminate()  # a server that does not answer cannot receive a rollback
            raise
        except BaseException as error:
            if (sqlstate(error) or "").startswith(_OTHER_SERVER_STATES):
                self.connections.end_others()
            with suppress(*DRIVER_ERRORS):  # the connection may be what failed
                await driver.execute("ROLLBACK")
            raise
        try:
            await driver.execute("COMMIT")
        except DRIVER_ERRORS:
            # The connection broke before the server confirmed the commit, so ask whether it was done.
            if not driver.is_closed() or not await self._was_committed(ids, transaction_id):
                raise
        for address, message in rings:
            self.bell.ring(address, message)
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
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
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
            await self._lock.acquire(driver, self.worker_id)
            first_foreign = self.row_ids.known_next
            if await connection.run_sync(self.row_ids.renew) and first_foreign:
                # Another platform has stored these while this one had no connection.
                of_agents = inbox.c.agent.in_(list(self.inbox_index.open_rows))
                async with self.reader_slots, self._reader_engine.connect() as reader:
                    await reader.run_sync(self.inbox_index.load, inbox.c.id >= first_foreign, of_agents)
        except BaseException:
            await connection.invalidate()
            await connection.close()
            raise
        self._connection = connection
        return driver

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


def _add_worker(connection: Connection, terms: WorkerTerms) -> int:
    worker = add_worker(connection, terms)
    connection.commit()
    return worker


async def _driver_connection(connection: AsyncConnection) -> Any:
    return (await connection.get_raw_connection()).driver_connection


def _is_refused_content(error: Exception) -> bool:
    """Return True if the server rejects a value, or asyncpg does, because it does not fit a column."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return isinstance(cause, ValueError) or (sqlstate(error) or "").startswith("22")


def _is_unreachable(error: Exception) -> bool:
    """Return True if there is no connection to the server, or not yet."""
    return isinstance(error, OSError) or sqlstate(error) in _NO_CONNECTION_STATES


def _has_lost_tables(error: Exception) -> bool:
    """Return True if the table of requests is missing, or that of the probe: the database was made anew while in use."""
    is_missing = sqlstate(error) == _UNDEFINED_TABLE
    return is_missing and any(table in str(error) for table in (inbox.name, "alembic_version"))


async def _write_rows(driver: Any, statement: int, rows: list[Row]) -> None:
    if not rows:
        return
    key = KEY_COLUMNS[statement]
    distinct = {row[key]: row for row in rows}  # a statement must not touch a row twice: the last one counts
    await driver.fetch(postgres_sql()[statement], *map(list, zip(*distinct.values(), strict=True)))
