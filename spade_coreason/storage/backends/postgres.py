"""The PostgreSQL database: a writer task with group commit on its own connection, and a pool of connections for reads."""

from __future__ import annotations

import asyncio
import os
import random
import re
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from itertools import chain
from secrets import token_hex
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import URL, Connection, Select, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from ...domain.environment.installation import install_hint
from ...exceptions import ContentRefusedError, DatabaseUnreachableError, LeaseLostError, StoreError
from ..schema import CLOSED, inbox
from ..workers.leases import RINGS, WorkerTerms, add_worker, make_fence, name_session
from ..workers.mailbox import WorkerBell
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
_ADVISORY_LOCK = "SELECT pg_try_advisory_lock{}(1936744804, hashtext(current_schema()::text))"
"""Hold the lock for which versions before schema 0028 look. Everyone who may connect can hold it, so this one does without."""
_OTHERS = (
    "SELECT FROM pg_stat_activity AS other WHERE datname = current_database() AND usename = session_user"
    " AND pid <> pg_backend_pid() AND application_name <> current_setting('application_name')"
    " AND (application_name ~ ('^spade-coreason ({}) .* in ' || hashtext(current_schema()::text) || '$') {})"
)
"""Find the sessions of other processes that hold a lock of the kinds in the first place."""
_HOLDS_ADVISORY_LOCK = (
    "OR EXISTS (SELECT FROM pg_locks WHERE pg_locks.pid = other.pid AND locktype = 'advisory' AND mode = 'ExclusiveLock'"
    " AND classid = 1936744804 AND objid::bigint = hashtext(current_schema()::text)::bigint & 4294967295)"
)
_ALONE_TIMEOUT_S = 50.0
_LOCK_TIMEOUT_S = 2.0
"""The connection of a killed platform may stay open for this time."""
_NONE = "SELECT 0"
"""The status of a query without rows."""
_SERVER = "SELECT pg_postmaster_start_time(), pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean"
"""Identify the server, and find out if it takes no writes."""
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
_ENDED_REMEDY = "the connection was ended, probably because the platform hung; the log of the server says why"
_REMEDIES = {
    "25006": "the address leads to a standby, or to a server that is read-only; the connections are made anew",
    "55P03": "another program has locked a table for too long; pg_locks names it",
    "25P03": "the platform hung during a transaction, which was undone; its log names what blocked it",
}
"""The remedy of an error, by its SQLSTATE."""
_CONNECT_FAILED = re.compile(r"\[Errno (\d+)\] Connect call failed")
"""The reason in an error of asyncio, which has one for each address of a host."""
# SQLSTATE classes of further errors in one write. All other classes are failures of the server (PostgreSQL, appendix A).
_SINGLE_WRITE_STATES = {"21", "23", "42"}
_UNDEFINED_TABLE = "42P01"
_NO_CONNECTION_STATES = {"25006", "53300", "57P03"}  # read-only; too many clients; the server is starting or stopping
_INSERTING_STATEMENTS = (RECEIVE, RECEIVE_ANSWERED, ADD_INTERACTION)
"""The statements whose new rows identify a transaction."""
DRIVER_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, SQLAlchemyError, OSError)
"""The errors of a connection. `InternalClientError` comes from one that the server is just ending."""


class PostgresDatabase(Database):
    """One schema of a PostgreSQL database.

    One process uses it at a time. Workers share it, and each transaction of theirs is fenced by the lease of its worker (see
    leases.py).

    A lock is the name of a session: the process in the name owns it, and it ends with the session. Only sessions of the same
    user count, so that other users of the database can hold no lock.
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
        self._bell: WorkerBell | None = None
        self._owner = token_hex(8)
        self._is_writer = False
        self._server: datetime | None = None
        """The server of the newest connection, as the time of its start."""
        self._connections: WeakKeyDictionary[Any, tuple[asyncio.AbstractEventLoop, datetime]] = WeakKeyDictionary()
        """The drivers of all connections, with their event loops and servers."""
        # The writer begins its transactions itself, so that prepared statements and functions share one.
        self._writer_engine = self.make_engine(command_timeout_s=_COMMAND_TIMEOUT_S)
        pool: dict[str, Any] = {"max_overflow": 0, "pool_pre_ping": True, "isolation_level": "REPEATABLE READ"}
        self._reader_engine = self.make_engine(pool_size=self.reader_connections, **pool)
        self._blocking_reader: _BlockingReader | None = None
        self._make_blocking_engine = partial(self.make_engine, command_timeout_s=_BLOCKING_TIMEOUT_S, pool_size=1, **pool)
        self._connection: AsyncConnection | None = None
        self._next_batch: list[Commit[Any]] = []
        self._wake_event = asyncio.Event()
        self._writer_task: asyncio.Task[None] | None = None

    def make_engine(
        self,
        name: str = "spade-coreason",
        timeout_s: float = _CONNECT_TIMEOUT_S,
        command_timeout_s: float | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
        **options: Any,
    ) -> AsyncEngine:
        """Make an engine whose connections are like those of turns, of sessions with a name.

        Once one of them leads to another server, or the writer finds its server read-only, all others are ended.
        """
        timings = self._timings
        settings = {
            "application_name": name,
            "synchronous_commit": "on" if self._durability == "full" else "off",
            "jit": "off",  # the queries are too short to profit
            "lock_timeout": f"{timings.lock_timeout_s:g}s",
            "idle_in_transaction_session_timeout": f"{timings.idle_transaction_timeout_s:g}s",
            # With the connections of a lost platform, its lock on the database ends.
            "tcp_user_timeout": f"{timings.lost_client_timeout_s:g}s",
            "tcp_keepalives_idle": f"{max(1.0, timings.lost_client_timeout_s / 2):.0f}s",
            "tcp_keepalives_interval": f"{max(1.0, timings.lost_client_timeout_s / 6):.0f}s",
            **settings,
        }
        # Not as parameters of the start, most of which a pooler refuses or ignores.
        statements = "; ".join(f"SET {key} = '{value}'" for key, value in settings.items())

        async def prepare(driver: Any) -> None:
            try:
                await driver.execute(statements)
                server, is_read_only = await driver.fetchrow(_SERVER)
                if self._is_writer and is_read_only:
                    raise asyncpg.ReadOnlySQLTransactionError("no writes are possible")
            except BaseException:
                driver.terminate()
                raise
            note = partial(self._note_server, driver, asyncio.get_running_loop(), server)
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(note)

        arguments = {"timeout": timeout_s, "command_timeout": command_timeout_s}
        options = options or {"poolclass": NullPool, "isolation_level": "AUTOCOMMIT"}
        engine = create_async_engine(self.url, connect_args=arguments, **options)
        event.listen(engine.sync_engine, "connect", lambda connection, _: connection.run_async(prepare))
        return engine

    def _note_server(self, driver: Any, loop: asyncio.AbstractEventLoop, server: datetime) -> None:
        self._connections[driver] = loop, server
        if server != self._server:
            self._server = server
            self._end_connections(server)
            if not self._is_closed:
                self._retry_write()

    def _end_connections(self, server: datetime | None = None) -> None:
        """End the connections to all servers but one. They are made anew when they are needed."""
        for driver, (loop, other) in list(self._connections.items()):
            if other != server:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(driver.terminate)

    async def review(self) -> str | None:
        try:
            await self._require_usable()
        except DRIVER_ERRORS as error:
            raise self.problem(error) from error
        revoke = await self.read(lambda connection: connection.exec_driver_sql(_PUBLIC_CONNECT).scalar())
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
            await driver.execute(_MARK.format(self._owner))
            async with self._reader_engine.connect() as other:
                await (await _driver_connection(other)).execute(_MARK.format("other"))
            if await driver.execute(_HAS_MARK.format(self._owner)) == _NONE:
                raise StoreError(f"{self.name}: {_POOLED}")

    async def open(self) -> None:
        self._is_writer = True
        try:
            await self._require_usable()
            # This engine has no command timeout: a migration is one transaction, and may take longer than any other command.
            async with self._reader_engine.connect() as connection:
                await connection.execution_options(isolation_level="READ COMMITTED")  # other workers write at the same time
                await self._acquire_lock(await _driver_connection(connection))
                try:
                    await connection.run_sync(self._create_or_migrate)
                except DBAPIError as error:
                    if _sqlstate(error) not in _CREATED_STATES:
                        raise
                    await connection.rollback()  # another worker has just created the tables
                    await connection.run_sync(self._create_or_migrate)
                await connection.invalidate()  # its name is no reader's
            driver = await self._ensure_connection()
            if self._terms is not None and self._connection is not None:
                self.worker_id = await self._connection.run_sync(self._add_worker, self._terms)
                self._begin_sql = make_fence(self.worker_id)
                await self._acquire_lock(driver)
                self.bell = self._bell = WorkerBell(self)
                self._bell.start()
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
        if self._bell is not None:
            await self._bell.close()
        await self._writer_engine.dispose()
        await self._reader_engine.dispose()

    async def _read(self, work: Callable[[Connection], T]) -> T:
        server = self._server
        try:
            async with self._reader_engine.connect() as connection:
                return await connection.run_sync(work)
        except DRIVER_ERRORS:
            if self._server == server:
                raise
            return await self._read(work)

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
                name = self._name_process("import")
                if not await self._name_session(await _driver_connection(connection), name, "import", _ALONE_TIMEOUT_S):
                    raise StoreError(f"{self.name}: another process moves interaction memories; start again once it has ended")
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
        if _sqlstate(error) in _POOLED_STATES:
            return StoreError(f"{self.name}: {_POOLED}")
        problem = super().problem(error)
        if _is_refused_content(error):
            return ContentRefusedError(str(problem))
        remedy = _LOST_TABLES_REMEDY if _has_lost_tables(error) else _find_remedy(error)
        return problem if remedy is None else StoreError(f"{problem}: {remedy}")

    async def _commit(self, batch: list[Commit[Any]]) -> tuple[Outcomes, StoreError | None]:
        """Commit a batch. Return the result of each write, and the failure if the server accepts no writes at all."""
        server = self._server
        try:
            results = await self._run_transaction(batch)
        except Exception as error:  # noqa: BLE001 - any error goes to the caller of the write
            if self._server != server and isinstance(error, DRIVER_ERRORS):
                return await self._commit(batch)  # its connection was ended, because another server takes writes now
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
            if (_sqlstate(error) or "").startswith(_OTHER_SERVER_STATES):
                self._end_connections()
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

    def _name_process(self, kind: str) -> str:
        """Return the SQL of the name of a session of this process that holds a lock."""
        return f"'spade-coreason {kind} {self._owner} in ' || hashtext(current_schema()::text)"

    async def _name_session(self, driver: Any, name: str, others: str, timeout_s: float, further: str = "") -> bool:
        """Give a session a name (SQL). Return False, and take the name away, if other processes keep one of the kinds `others`.

        Of two processes at once, at least one sees the other.
        """
        deadline = self._loop.time() + timeout_s
        while True:
            await driver.execute(f"SELECT set_config('application_name', {name}, false)")
            if await driver.execute(_OTHERS.format(others, further)) == _NONE:
                return True
            await driver.execute("SET application_name = 'spade-coreason waits'")
            if self._loop.time() > deadline:
                return False
            await asyncio.sleep(random.uniform(0.01, 0.1))

    async def _acquire_lock(self, driver: Any) -> None:
        """Take the lock that a platform holds as long as it is connected. Raise StoreError if another platform holds it.

        It is also the name by which another worker can end the session of this one.
        """
        is_alone = self._terms is None
        await driver.execute(_ADVISORY_LOCK.format("" if is_alone else "_shared"))
        name = self._name_process("alone") if is_alone else name_session(self.worker_id or 0)
        others = "alone|worker" if is_alone else "alone"
        if not await self._name_session(driver, name, others, _LOCK_TIMEOUT_S, _HOLDS_ADVISORY_LOCK):
            names = await self._find_workers(driver)
            which, them = (f" ({', '.join(names)})", "all its workers") if names else ("", "it")
            remedy = f"stop {them}, or name another database in storage.url; workers share one: all need server.mode: external"
            raise StoreError(f"{self.name}: another platform uses this database{which}; {remedy}")

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
    if _is_refused_content(error) or not isinstance(error, DRIVER_ERRORS):
        return False
    state = _sqlstate(error)
    return state is None or _has_lost_tables(error) or state[:2] not in _SINGLE_WRITE_STATES


def _is_refused_content(error: Exception) -> bool:
    """Return True if the server rejects a value, or asyncpg does, because it does not fit a column."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return isinstance(cause, ValueError) or (_sqlstate(error) or "").startswith("22")


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


def _sqlstate(error: BaseException) -> str | None:
    cause = error.orig if isinstance(error, DBAPIError) else error
    return getattr(cause, "sqlstate", None)


async def _write_rows(driver: Any, statement: int, rows: list[Row]) -> None:
    if not rows:
        return
    key = KEY_COLUMNS[statement]
    distinct = {row[key]: row for row in rows}  # a statement must not touch a row twice: the last one counts
    await driver.fetch(postgres_sql()[statement], *map(list, zip(*distinct.values(), strict=True)))
