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
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias, TypeVar

from sqlalchemy import URL, Connection, func, inspect, select, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from ..exceptions import DatabaseEmpty, StoreError
from . import full_text, schema
from .dedup import KnownKeys
from .statements import ANSWER, RECEIVE, RECEIVE_ANSWERED, STATEMENTS

log = logging.getLogger(__name__)

Then: TypeAlias = Callable[[Any], None]

"""Called with the result of a write in the moment in which it is durable, before whoever awaits it goes on.

It is not called where the write failed, or whoever waited was cancelled.
"""

Results: TypeAlias = "list[tuple[asyncio.Future[Any] | None, Any, Then | None]]"

"""Who waits for something, what they get, a value or an exception, and what follows from a value."""


def settle(results: Results) -> None:
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

Questions: TypeAlias = Generator[tuple[int, Row], list[Any], T]

"""Asks prepared queries one after the other, each with its parameters; gets their rows, and returns what it made of them."""

Write: TypeAlias = "tuple[Rows, Callable[[Connection], Any] | None, asyncio.Future[Any] | None, Then | None]"

"""What one caller wants written: rows of the prepared statements, or a function; who waits for it, and what follows."""

Intercept: TypeAlias = Callable[[list[Any], Callable[[list[Any]], None]], None]

"""Gets each batch (of `Write`s; on SQLite also of lookups) and the writer, to which it gives it: now, later, or changed."""

_LATER_S = 0.2

_MOST_ROUNDS = 8

"""Of the event loop, for which a batch is gathered after the first."""

_LONE = 2

"""So many writes has a turn that is alone: its request, and its end."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(moment: datetime) -> int:
    """A time as the tables hold it."""
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds  # to divide timedeltas takes longer


def moment(micros: int) -> datetime:
    """A time as everybody else holds it."""
    return _EPOCH + timedelta(microseconds=micros)


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
    _readers: AsyncEngine

    def __init__(self, url: URL, durability: Durability, timings: StoreTimings, intercept: Intercept | None) -> None:
        self._durability = durability
        self._timings = timings
        self._intercept = intercept
        self._fresh: list[Any] = []
        self._loop = asyncio.get_running_loop()
        self._next_ids: dict[str, int] = {}
        self._later: list[tuple[int, Row]] = []
        self._later_timer: asyncio.TimerHandle | None = None
        self._gathering: asyncio.Handle | None = None
        self._is_writing = False
        self._is_quiet = True
        """Whether the last batch was of no more than a turn writes."""
        self._is_closed = False
        self.name = name_of(url)
        """What errors call it: a path, or an address without its password."""
        self.was_revision: str | None = None
        """The schema that it had before it was opened; None where it was empty."""
        self.known = KnownKeys()
        """Where the keys of the inbox are, of all agents: no other process writes, so the table needs no index of them."""
        self.open_rows: defaultdict[str, set[int]] = defaultdict(set)
        """By agent, in which rows of the inbox a request may be that is not closed; likewise."""
        self.failure: StoreError | None = None
        """Why nothing can be written at the moment; None while it can. It is tried again every few seconds."""
        self._trial: asyncio.TimerHandle | None = None

    @property
    def is_failing(self) -> bool:
        """Whether nothing can be written at the moment."""
        return self.failure is not None

    async def close(self) -> None:
        """Writes what waits, and closes."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._trial is not None:
            self._trial.cancel()
        self._hand_over()
        await self._finish()
        await self.dispose()

    def next_id(self, table: str) -> int:
        """A row id that nobody has; made here, since one process owns the database."""
        self._next_ids[table] += 1
        return self._next_ids[table]

    def submit(self, rows: Rows, then: Then | None = None, *, is_end: bool = False) -> asyncio.Future[bool]:
        """Writes rows of the prepared statements in one transaction; the future is done (True) when they are durable.

        `then` is what follows. They may be the end of a request (`is_end`): if there is no other, nothing is gathered any more.
        """
        durable: asyncio.Future[bool] = self._loop.create_future()
        self._enqueue((rows, None, durable, then))
        if is_end and self._is_quiet and not self._is_writing and len(self._fresh) <= _LONE:
            self._hand_over()
        return durable

    def submit_later(self, rows: Rows) -> None:
        """Writes rows for which nobody waits: with the next transaction, or alone after a while."""
        self._later += rows
        if self._later_timer is None:
            self._later_timer = self._loop.call_later(_LATER_S, self._enqueue_later)

    def run(self, work: Callable[[Connection], T], then: Then | None = None) -> asyncio.Future[T]:
        """Runs `work` in the writer's transaction; the future is its result, when that is durable. For what is rare.

        `then` is what follows.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        self._enqueue(((), work, future, then))
        return future

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Runs `work` likewise, and waits for its result."""
        return await self.run(work)

    async def erase(self, work: Callable[[Connection], T]) -> T:
        """Runs `work`, which deletes, likewise; what it deleted soon stands nowhere else in the files of the database."""
        erased = self.run(work)
        erased.add_done_callback(lambda _: self._empty_log_soon())  # also where nobody waits any more
        return await erased

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Runs `work` in a transaction of its own, beside the writer; it sees one state of the database."""
        try:
            async with self._readers.connect() as connection:
                return await connection.run_sync(work)
        except (SQLAlchemyError, OSError) as error:
            raise self.problem(error) from error

    @abstractmethod
    def look_up(self, questions: Questions[T]) -> asyncio.Future[T]:
        """Answers a few short questions, prepared queries; no way is shorter."""

    def _enqueue(self, item: object) -> None:
        if self._is_closed:
            raise StoreError(f"{self.name}: the database is closed")
        self._fresh.append(item)
        if self._gathering is None and not self._is_writing:
            self._begin_to_gather()

    def _enqueue_later(self) -> None:
        self._later_timer = None
        if not self._is_closed:
            self._enqueue((self._take_later(), None, None, None))

    def _take_later(self) -> list[tuple[int, Row]]:
        rows, self._later = self._later, []
        return rows

    def _begin_to_gather(self) -> None:
        # After two rounds of the event loop a turn that waits for nothing has ended, so that its request and its answer become
        # one transaction.
        self._gathering = self._loop.call_soon(self._gather, -1, _MOST_ROUNDS)

    def _gather(self, gathered: int, rounds: int) -> None:
        """Hands over what waits when a round of the event loop has added nothing to it, at the latest after `rounds`.

        It counts from the second on; `gathered` is -1 in the first.
        """
        waiting = len(self._fresh) if gathered >= 0 else 0
        if waiting > gathered and rounds:
            self._gathering = self._loop.call_soon(self._gather, waiting, rounds - 1)
        else:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        self._is_quiet = len(self._fresh) <= _LONE
        if self._later_timer is not None:
            self._later_timer.cancel()
            self._later_timer = None
        if self._later:
            self._fresh.append((self._take_later(), None, None, None))
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            self._is_writing = True
            if self._intercept is None:
                self._take(fresh)
            else:
                self._intercept(fresh, self._take)

    def _rest(self) -> None:
        """The writer has nothing to do."""
        self._is_writing = False
        if self._fresh and self._gathering is None:
            self._begin_to_gather()

    def _resolve(self, results: Results, failure: StoreError | None) -> None:
        """Tells everybody who waits what became of a batch; `failure` is why nothing at all can be written."""
        if failure is not None and not self.is_failing:
            log.error("%s; it is tried again every %g s", failure, self._timings.retry_s)
        elif failure is None and self.is_failing:
            log.warning("%s: can be written again", self.name)
        self.failure = failure
        if self.is_failing and self._trial is None and not self._is_closed:
            self._trial = self._loop.call_later(self._timings.retry_s, self._try)
        self._rest()
        settle(results)

    def _try(self) -> None:
        self._trial = None
        if self.is_failing:
            self._enqueue(((), _touch, None, None))

    @abstractmethod
    def _take(self, batch: list[Any]) -> None:
        """Gives a batch to the writer, which has `_resolve` called when it is written."""

    @abstractmethod
    async def open(self) -> None:
        """Makes or migrates the database, and starts the writer."""

    async def open_to_read(self) -> None:
        await self.read(self._check)

    @abstractmethod
    def _empty_log_soon(self) -> None:
        """Leaves nothing of what was deleted in the log, where that is ours."""

    @abstractmethod
    async def _finish(self) -> None:
        """Ends the writer, when it has written what it was given."""

    @abstractmethod
    async def dispose(self) -> None:
        """Closes all connections."""

    # Opening

    def _set_up(self, connection: Connection) -> None:
        """Makes or migrates the tables."""
        if not inspect(connection).get_table_names():
            make_tables(connection)
        else:
            self.was_revision = self._revision(connection)
            if self.was_revision != self.revision:
                from .migrations import upgrade  # Alembic is slow to import

                upgrade(connection, self.name, self.was_revision)
        connection.commit()

    def _take_stock(self, connection: Connection) -> None:
        """Learns which row ids and keys are there; again with a new connection, before which others may have written."""
        is_first = not self._next_ids
        for table in schema.NUMBERED:
            stored = connection.execute(select(func.max(table.c.id))).scalar() or 0
            self._next_ids[table.name] = max(stored, self._next_ids.get(table.name, 0))
        inbox = schema.inbox.c
        for row, key, agent, state in connection.execute(select(inbox.id, inbox.key, inbox.agent, inbox.state)):
            if is_first or row not in self.known.rows(key):
                self.known.add(key, row)
                if state < schema.CLOSED:
                    self.open_rows[agent].add(row)

    def _revision(self, connection: Connection) -> str:
        tables = inspect(connection).get_table_names()
        if not tables:
            raise DatabaseEmpty(self.name)
        if "alembic_version" not in tables:
            raise StoreError(f"{self.name}: is a database of another program; name another one in storage.url")
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar() or "none"

    def _check(self, connection: Connection) -> None:
        stored = self._revision(connection)
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


def make_tables(connection: Connection) -> None:
    """The schema of today in an empty database."""
    schema.metadata.create_all(connection)
    full_text.create(connection)
    connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)"))
    connection.execute(text("INSERT INTO alembic_version VALUES (:revision)"), {"revision": schema.REVISION})


def name_of(url: URL) -> str:
    """What errors call a database: a path, or an address without its password."""
    if url.get_backend_name() == "sqlite":
        return url.database or ""
    host = url.host or url.query.get("host") or "localhost"
    return f"postgresql://{host}{f':{url.port}' if url.port else ''}/{url.database or ''}"


def grouped(batch: Sequence[Write]) -> list[list[Row]]:
    """The rows of a batch by their statements, in the order in which these run.

    A request that is answered in the same batch is not written; of the others a function makes the JSON now.
    """
    groups: list[list[Row]] = [[] for _ in STATEMENTS]
    for rows, *_ in batch:
        for statement, row in rows:
            groups[statement].append(row)
    if groups[RECEIVE]:
        received, groups[RECEIVE_ANSWERED], groups[ANSWER] = _answered(groups[RECEIVE], groups[ANSWER])
        groups[RECEIVE] = [(*row, request if isinstance(request, str) else request()) for *row, request in received]
    return groups


def _answered(received: list[Row], answers: list[Row]) -> tuple[list[Row], list[Row], list[Row]]:
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


def _touch(connection: Connection) -> None:
    """Writes something, and changes nothing."""
    connection.execute(text("UPDATE alembic_version SET version_num = version_num"))
