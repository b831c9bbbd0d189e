"""One SQL database: writes in groups, reads beside them.

Many turns that end together share one commit: callers enqueue what they write and await a future, and the writer takes
everything that waits, in one transaction. That makes a durable turn cost a tenth of what a transaction a turn costs. What
waits is handed over when the writer has nothing to do and the event loop has nothing new: to wait longer would leave both
idle, to wait less would make a second transaction. A request that is alone is handed over as soon as it ends. How that is done
on SQLite and on PostgreSQL is in `sqlite.py` and `postgres.py`.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from sqlalchemy import URL, Connection, func, inspect, select, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from ..exceptions import DatabaseEmptyError, StoreError
from . import full_text, schema
from .dedup import KeyIndex
from .statements import ANSWER, RECEIVE, RECEIVE_ANSWERED, STATEMENTS

log = logging.getLogger(__name__)

OnCommit: TypeAlias = Callable[[Any], None]

"""Called with the result of a write in the moment in which it is durable, before whoever awaits it goes on.

It is not called where the write failed, or whoever waited was cancelled.
"""

WriteResults: TypeAlias = "list[tuple[asyncio.Future[Any] | None, Any, OnCommit | None]]"

"""Who waits for something, what they get, a value or an exception, and what follows from a value."""


def resolve_futures(results: WriteResults) -> None:
    """Tells everybody who waits what they wait for. Of that nothing is left in `results`, which the writer may still hold."""
    for future, result, then in results:
        if future is None or future.done():  # nobody waits, or its waiter was cancelled
            continue
        if isinstance(result, BaseException):
            future.set_exception(result)
            continue
        future.set_result(result)
        if then is not None:
            try:
                then(result)
            except (Exception, asyncio.CancelledError):  # a fault of ours, which must not hold up whoever else waits
                log.exception("what is stored cannot be told")
    results.clear()


T = TypeVar("T")

Row: TypeAlias = tuple[Any, ...]

Rows: TypeAlias = Sequence[tuple[int, Row]]

Durability: TypeAlias = Literal["full", "normal", "off"]

QueryGenerator: TypeAlias = Generator[tuple[int, Row], list[Any], T]

"""Asks prepared queries one after the other, each with its parameters; gets their rows, and returns what it made of them."""

PendingWrite: TypeAlias = "tuple[Rows, Callable[[Connection], Any] | None, asyncio.Future[Any] | None, OnCommit | None]"

"""What one caller wants written: rows of the prepared statements, or a function; who waits for it, and what follows."""

Intercept: TypeAlias = Callable[[list[Any], Callable[[list[Any]], None]], None]

"""Gets each batch (of `PendingWrite`s; on SQLite also of lookups) and the writer, to which it gives it: now, later, or changed."""

_DEFERRED_WRITE_S = 0.2

_MAX_GATHER_ROUNDS = 8

"""Of the event loop, for which a batch is gathered after the first."""

_LONE_TURN_WRITES = 2

"""So many writes has a turn that is alone: its request, and its end."""


@dataclass(frozen=True, slots=True)
class StoreTimings:
    """When a database is tried again, in seconds; the defaults are right in production, and tests shorten them."""

    retry_s: float = 5.0
    """After nothing could be written."""
    empty_log_s: float = 0.5
    """Between a deletion and the end of what was deleted in SQLite's log."""
    empty_log_again_s: float = 10.0
    """Likewise, where somebody still read the log."""


class Database(ABC):
    """Opened by `Database.open`, closed by `close`. One event loop uses it."""

    revision = schema.REVISION
    _reader_engine: AsyncEngine

    def __init__(self, url: URL, durability: Durability, timings: StoreTimings, intercept: Intercept | None) -> None:
        self._durability = durability
        self._timings = timings
        self._intercept = intercept
        self._pending: list[Any] = []
        self._loop = asyncio.get_running_loop()
        self._next_ids: dict[str, int] = {}
        self._deferred_rows: list[tuple[int, Row]] = []
        self._deferred_timer: asyncio.TimerHandle | None = None
        self._gather_handle: asyncio.Handle | None = None
        self._is_writing = False
        self._was_batch_small = True
        """Whether the last batch was of no more than a turn writes."""
        self._is_closed = False
        self.name = display_name(url)
        """What errors call it: a path, or an address without its password."""
        self.previous_revision: str | None = None
        """The schema that it had before it was opened; None where it was empty."""
        self.inbox_keys = KeyIndex()
        """Where the keys of the inbox are, of all agents: no other process writes, so the table needs no index of them."""
        self.open_inbox_rows: defaultdict[str, set[int]] = defaultdict(set)
        """By agent, in which rows of the inbox a request may be that is not closed; likewise."""
        self.failure: StoreError | None = None
        """Why nothing can be written at the moment; None while it can. It is tried again every few seconds."""
        self._retry_timer: asyncio.TimerHandle | None = None

    @property
    def is_failing(self) -> bool:
        """Whether nothing can be written at the moment."""
        return self.failure is not None

    async def close(self) -> None:
        """Writes what waits, and closes."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        self._start_batch()
        await self._stop_writer()
        await self.dispose()

    def next_id(self, table: str) -> int:
        """A row id that nobody has; made here, since one process owns the database."""
        self._next_ids[table] += 1
        return self._next_ids[table]

    def submit(self, rows: Rows, on_commit: OnCommit | None = None, *, is_turn_end: bool = False) -> asyncio.Future[bool]:
        """Writes rows of the prepared statements in one transaction; the future is done (True) when they are durable.

        `on_commit` is what follows. They may be the end of a request (`is_turn_end`): if there is no other, nothing is gathered any more.
        """
        durable: asyncio.Future[bool] = self._loop.create_future()
        self._enqueue((rows, None, durable, on_commit))
        if is_turn_end and self._was_batch_small and not self._is_writing and len(self._pending) <= _LONE_TURN_WRITES:
            self._start_batch()
        return durable

    def submit_deferred(self, rows: Rows) -> None:
        """Writes rows for which nobody waits: with the next transaction, or alone after a while."""
        self._deferred_rows += rows
        if self._deferred_timer is None:
            self._deferred_timer = self._loop.call_later(_DEFERRED_WRITE_S, self._enqueue_deferred)

    def run(self, work: Callable[[Connection], T], on_commit: OnCommit | None = None) -> asyncio.Future[T]:
        """Runs `work` in the writer's transaction; the future is its result, when that is durable. For what is rare.

        `on_commit` is what follows.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        self._enqueue(((), work, future, on_commit))
        return future

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Runs `work` likewise, and waits for its result."""
        return await self.run(work)

    async def erase(self, work: Callable[[Connection], T]) -> T:
        """Runs `work`, which deletes, likewise; what it deleted soon stands nowhere else in the files of the database."""
        erased = self.run(work)
        erased.add_done_callback(lambda _: self._schedule_log_truncation())  # also where nobody waits any more
        return await erased

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Runs `work` in a transaction of its own, beside the writer; it sees one state of the database."""
        try:
            async with self._reader_engine.connect() as connection:
                return await connection.run_sync(work)
        except (SQLAlchemyError, OSError) as error:
            raise self.problem(error) from error

    @abstractmethod
    def run_queries(self, queries: QueryGenerator[T]) -> asyncio.Future[T]:
        """Answers a few short questions, prepared queries; no way is shorter."""

    def _enqueue(self, item: object) -> None:
        if self._is_closed:
            raise StoreError(f"{self.name}: the database is closed")
        self._pending.append(item)
        if self._gather_handle is None and not self._is_writing:
            self._start_gathering()

    def _enqueue_deferred(self) -> None:
        self._deferred_timer = None
        if not self._is_closed:
            self._enqueue((self._drain_deferred(), None, None, None))

    def _drain_deferred(self) -> list[tuple[int, Row]]:
        rows, self._deferred_rows = self._deferred_rows, []
        return rows

    def _start_gathering(self) -> None:
        # After two rounds of the event loop a turn that waits for nothing has ended, so that its request and its answer become
        # one transaction.
        self._gather_handle = self._loop.call_soon(self._gather, -1, _MAX_GATHER_ROUNDS)

    def _gather(self, gathered: int, rounds: int) -> None:
        """Hands over what waits when a round of the event loop has added nothing to it, at the latest after `rounds`.

        It counts from the second on; `gathered` is -1 in the first.
        """
        waiting = len(self._pending) if gathered >= 0 else 0
        if waiting > gathered and rounds:
            self._gather_handle = self._loop.call_soon(self._gather, waiting, rounds - 1)
        else:
            self._start_batch()

    def _start_batch(self) -> None:
        if self._gather_handle is not None:
            self._gather_handle.cancel()
            self._gather_handle = None
        self._was_batch_small = len(self._pending) <= _LONE_TURN_WRITES
        if self._deferred_timer is not None:
            self._deferred_timer.cancel()
            self._deferred_timer = None
        if self._deferred_rows:
            self._pending.append((self._drain_deferred(), None, None, None))
        if self._pending:
            fresh, self._pending = self._pending, []
            self._is_writing = True
            if self._intercept is None:
                self._write_batch(fresh)
            else:
                self._intercept(fresh, self._write_batch)

    def _on_writer_idle(self) -> None:
        """The writer has nothing to do."""
        self._is_writing = False
        if self._pending and self._gather_handle is None:
            self._start_gathering()

    def _resolve(self, results: WriteResults, failure: StoreError | None) -> None:
        """Tells everybody who waits what became of a batch; `failure` is why nothing at all can be written."""
        if failure is not None and not self.is_failing:
            log.error("%s; it is tried again every %g s", failure, self._timings.retry_s)
        elif failure is None and self.is_failing:
            log.warning("%s: can be written again", self.name)
        self.failure = failure
        if self.is_failing and self._retry_timer is None and not self._is_closed:
            self._retry_timer = self._loop.call_later(self._timings.retry_s, self._retry_write)
        self._on_writer_idle()
        resolve_futures(results)

    def _retry_write(self) -> None:
        self._retry_timer = None
        if self.is_failing:
            self._enqueue(((), _probe_write, None, None))

    @abstractmethod
    def _write_batch(self, batch: list[Any]) -> None:
        """Gives a batch to the writer, which has `_resolve` called when it is written."""

    @abstractmethod
    async def open(self) -> None:
        """Makes or migrates the database, and starts the writer."""

    async def open_to_read(self) -> None:
        await self.read(self._require_current_revision)

    @abstractmethod
    def _schedule_log_truncation(self) -> None:
        """Leaves nothing of what was deleted in the log, where that is ours."""

    @abstractmethod
    async def _stop_writer(self) -> None:
        """Ends the writer, when it has written what it was given."""

    @abstractmethod
    async def dispose(self) -> None:
        """Closes all connections."""

    # Opening

    def _create_or_migrate(self, connection: Connection) -> None:
        """Makes or migrates the tables."""
        if not inspect(connection).get_table_names():
            create_tables(connection)
        else:
            self.previous_revision = self._read_revision(connection)
            if self.previous_revision != self.revision:
                from .migrations import upgrade  # Alembic is slow to import

                upgrade(connection, self.name, self.previous_revision)
        connection.commit()

    def _load_ids_and_keys(self, connection: Connection) -> None:
        """Learns which row ids and keys are there; again with a new connection, before which others may have written."""
        is_first = not self._next_ids
        for table in schema.NUMBERED:
            stored = connection.execute(select(func.max(table.c.id))).scalar() or 0
            self._next_ids[table.name] = max(stored, self._next_ids.get(table.name, 0))
        inbox = schema.inbox.c
        for row, key, agent, state in connection.execute(select(inbox.id, inbox.key, inbox.agent, inbox.state)):
            if is_first or row not in self.inbox_keys.find_rows(key):
                self.inbox_keys.add(key, row)
                if state < schema.CLOSED:
                    self.open_inbox_rows[agent].add(row)

    def _read_revision(self, connection: Connection) -> str:
        tables = inspect(connection).get_table_names()
        if not tables:
            raise DatabaseEmptyError(self.name)
        if "alembic_version" not in tables:
            raise StoreError(f"{self.name}: is a database of another program; name another one in storage.url")
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar() or "none"

    def _require_current_revision(self, connection: Connection) -> None:
        stored = self._read_revision(connection)
        if stored != schema.REVISION:
            from .migrations import require_known

            require_known(self.name, stored)
            raise StoreError(
                f"{self.name}: is of an older version ({stored}); the next start of the platform migrates it, or now:"
                " spade-coreason storage migrate"
            )

    def problem(self, error: Exception) -> StoreError:
        cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
        return StoreError(f"{self.name}: {' '.join(str(cause).split())}")


def create_tables(connection: Connection) -> None:
    """The schema of today in an empty database."""
    schema.metadata.create_all(connection)
    full_text.create(connection)
    connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)"))
    connection.execute(text("INSERT INTO alembic_version VALUES (:revision)"), {"revision": schema.REVISION})


def display_name(url: URL) -> str:
    """What errors call a database: a path, or an address without its password."""
    if url.get_backend_name() == "sqlite":
        return url.database or ""
    host = url.host or url.query.get("host") or "localhost"
    return f"postgresql://{host}{f':{url.port}' if url.port else ''}/{url.database or ''}"


def group_rows(batch: Sequence[PendingWrite]) -> list[list[Row]]:
    """The rows of a batch by their statements, in the order in which these run.

    A request that is answered in the same batch is not written; of the others a function makes the JSON now.
    """
    groups: list[list[Row]] = [[] for _ in STATEMENTS]
    for rows, *_ in batch:
        for statement, row in rows:
            groups[statement].append(row)
    if groups[RECEIVE]:
        received, groups[RECEIVE_ANSWERED], groups[ANSWER] = _merge_answered(groups[RECEIVE], groups[ANSWER])
        groups[RECEIVE] = [(*row, request if isinstance(request, str) else request()) for *row, request in received]
    return groups


def _merge_answered(received: list[Row], answers: list[Row]) -> tuple[list[Row], list[Row], list[Row]]:
    """Requests that are answered in the same transaction go in as answered, instead of being written twice."""
    waiting = {row[0]: row for row in received}
    answered, rest = [], []
    for answer in answers:
        row = waiting.pop(answer[0], None)
        if row is None:
            rest.append(answer)
        else:
            answered.append((*row[:-2], *answer[1:]))
    return list(waiting.values()), answered, rest


def _probe_write(connection: Connection) -> None:
    """Writes something, and changes nothing."""
    connection.execute(text("UPDATE alembic_version SET version_num = version_num"))
