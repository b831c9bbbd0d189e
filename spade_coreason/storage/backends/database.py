"""One SQL database with group commit: a single writer commits writes in batches, and reads run beside it.

Turns that end at the same time share one transaction. Callers enqueue writes and await the `Commit` of each; the writer takes
all pending writes in one transaction. A durable turn then costs a tenth of what a transaction per turn would cost.

A batch starts when the writer is idle and a round of the event loop has added no write. A longer wait would leave both idle;
a shorter one would need a second transaction. If only one turn is running, its batch starts as soon as it ends. `sqlite.py`
and `postgres.py` implement the writers.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypeVar

from sqlalchemy import (
    URL,
    ColumnElement,
    CompoundSelect,
    Connection,
    Executable,
    Select,
    and_,
    create_mock_engine,
    func,
    inspect,
    select,
    text,
)
from sqlalchemy.engine.mock import MockConnection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ...concurrency import RateLimiter, Semaphore
from ...exceptions import DatabaseEmptyError, StoreError
from .. import schema
from ..dedup import KeyIndex
from . import full_text
from .sequences import create_sequence, read_next_row_id, take_row_ids
from .statements import ANSWER, RECEIVE, RECEIVE_ANSWERED, STATEMENTS

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

log = logging.getLogger(__name__)

T = TypeVar("T")
Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = Sequence[tuple[int, Row]]
"""Rows to write, each with the number of its prepared statement."""
Durability: TypeAlias = Literal["full", "normal", "off"]
Remains: TypeAlias = Literal["log", "file"]
"""The place where deleted data still are: the log, which another program reads, or a file that is too large for a rewrite."""
QueryGenerator: TypeAlias = Generator[tuple[int, Row], list[Any], T]
"""A generator that yields prepared queries with their parameters, receives the rows of each, and returns a result."""
WriterHook: TypeAlias = Callable[[list[Any], Callable[[list[Any]], None]], None]
"""A function that receives each batch and the writer. It passes the batch on: at once, later, or changed.

A batch is a list of `Commit`; on SQLite it contains lookups too.
"""


class Commit(Generic[T]):
    """One write, from its submission until it is durable: `await commit` returns its result, or raises its error.

    A write goes on when a task that awaits it is cancelled. The error is `StoreError` if the database accepts no writes.
    """

    __slots__ = ("_on_failed", "_on_stored", "_result", "_waiters", "error", "is_done", "is_stored", "rows", "work")

    def __init__(self, rows: Rows = (), work: Callable[[Connection], T] | None = None) -> None:
        self.rows = rows
        """The rows to write, until they are written."""
        self.work = work
        """The function to run in the transaction; its return value is the result. Without one the result is True."""
        self.is_done = False
        """True once the write is durable, or has failed."""
        self.is_stored = False
        """True once the write is durable."""
        self.error: BaseException | None = None
        """The reason why the write failed."""
        self._on_stored: tuple[Callable[[T], object], ...] = ()
        self._on_failed: tuple[Callable[[BaseException], object], ...] = ()
        self._waiters: tuple[asyncio.Future[None], ...] = ()  # one for each task, because its cancellation cancels the future

    @classmethod
    def completed(cls, result: T) -> Commit[T]:
        """Return the commit of a write that is durable already."""
        commit = cls()
        commit.resolve(result)
        return commit

    @classmethod
    def failed(cls, error: BaseException) -> Commit[T]:
        """Return the commit of a write that has failed already."""
        commit = cls()
        commit.resolve(error)
        return commit

    @classmethod
    def join(cls, commits: Sequence[Commit[Any]]) -> Commit[bool]:
        """Return a commit that is done once all of `commits` are. It fails with the error of the first one that fails."""
        joined: Commit[bool] = Commit()
        waiting_count = len(commits)

        def count_done(_: object) -> None:
            nonlocal waiting_count
            waiting_count -= 1
            if not waiting_count:
                joined.resolve(next((commit.error for commit in commits if commit.error is not None), True))

        for commit in commits:
            commit.on_stored(count_done)
            commit.on_failed(count_done)
        return joined

    def on_stored(self, callback: Callable[[T], object]) -> None:
        """Call `callback` with the result in the moment in which it is durable, before any task that awaits it continues."""
        if self.is_stored:
            callback(self._result)
        elif not self.is_done:
            self._on_stored = (*self._on_stored, callback)

    def on_failed(self, callback: Callable[[BaseException], object]) -> None:
        """Call `callback` with the error in the moment in which the write fails."""
        if self.error is not None:
            callback(self.error)
        elif not self.is_done:
            self._on_failed = (*self._on_failed, callback)

    def __await__(self) -> Generator[Any, None, T]:
        if not self.is_done:
            yield from self._add_waiter()
        if self.error is not None:
            raise self.error
        return self._result

    async def wait(self) -> bool:
        """Wait until the write is durable or has failed. Return True if it is durable."""
        if not self.is_done:
            await self._add_waiter()
        return self.is_stored

    def _add_waiter(self) -> asyncio.Future[None]:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters = (*self._waiters, waiter)
        return waiter

    def resolve(self, outcome: T | BaseException) -> None:
        """Set the result of the write, or its error; call the callbacks, and wake the tasks that wait."""
        self.is_done = True
        self.rows, self.work = (), None  # the finished turn can be freed
        callbacks: tuple[Callable[[Any], object], ...]
        if isinstance(outcome, BaseException):
            self.error, callbacks = outcome, self._on_failed
        else:
            self._result, self.is_stored, callbacks = outcome, True, self._on_stored
        self._on_stored = self._on_failed = ()
        for callback in callbacks:
            try:
                callback(outcome)
            except (Exception, asyncio.CancelledError):  # a fault in a callback must not block the other commits
                log.exception("a caller cannot be notified that its write has ended")
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


INBOX_PAGE_ROWS = 1000
"""The number of rows of the inbox that are read at once. Each page holds the event loop for some milliseconds."""


def select_inbox_rows(*conditions: ColumnElement[bool]) -> Select[Any]:
    """Return the query of the rows that `Database` remembers."""
    inbox = schema.inbox.c
    query = select(inbox.id, inbox.key, inbox.agent, inbox.state, inbox.message_key).where(*conditions).order_by(inbox.id)
    return query.execution_options(yield_per=INBOX_PAGE_ROWS)


def is_of_agent(agent: str) -> ColumnElement[bool]:
    """Return the condition that a row of the inbox is of an agent, as the index of PostgreSQL finds it."""
    inbox = schema.inbox.c
    return and_(func.hashtext(inbox.agent) == func.hashtext(agent), inbox.agent == agent)


def select_rows_with_steps(rows: Sequence[int]) -> Select[Any]:
    """Return the query of those of the rows whose steps `Database` remembers. Those of parked requests wait with them."""
    parked = schema.parked_requests.c.id
    is_parked = select(parked).where(parked == schema.steps.c.request).exists()
    return select(schema.steps.c.request).where(schema.steps.c.request.in_(rows), ~is_parked).distinct()


Outcomes: TypeAlias = list[tuple[Commit[Any], Any]]
"""The commits of a batch, each with its result or its error."""
ROW_ID_BLOCK = 2**14
"""The number of row ids that a process takes at once. A process that is killed loses at most two blocks."""
_DEFERRED_WRITE_S = 0.2
_LONG_WAIT_S = 5.0
# Gathering until no write is added saves 12 per cent of the instructions of a turn with 8 turns in flight, compared to
# two rounds. The bound costs and saves nothing. It is for turns that add a write in every round.
_MAX_GATHER_ROUNDS = 8
"""The most rounds of the event loop, after the first, in which a batch gathers writes."""
# Without this rule, a lone turn takes two per cent more instructions.
_LONE_TURN_WRITES = 2
"""The number of writes of one turn that runs alone: its request and its end."""


@dataclass(frozen=True, slots=True)
class StoreTimings:
    """Delays of a database, in seconds. The defaults are for production; tests shorten them."""

    retry_s: float = 5.0
    """The delay before a write is retried after the database failed."""
    truncate_log_s: float = 0.5
    """The delay between a deletion and the truncation of SQLite's log, which still contains the deleted data."""
    lock_timeout_s: float = 10.0
    """The time that a statement waits for a lock of another program. PostgreSQL only."""
    idle_transaction_timeout_s: float = 60.0
    """The time after which PostgreSQL ends a transaction in which the platform does nothing, because its process hangs."""
    lost_client_timeout_s: float = 60.0
    """The time after which PostgreSQL ends the connections of a platform that does not react, because it lost its network."""
    truncate_log_again_s: float = 10.0
    """The delay before the truncation is retried because another connection was still reading the log."""


class Bell(Protocol):
    """The bell of a worker (`WorkerBell`)."""

    @property
    def is_open(self) -> bool:
        """True while it rings."""

    def answer(self, on_message: Callable[[str], object]) -> None:
        """Call a function with each message from now on."""

    def ring(self, address: str, message: str) -> None:
        """Ring the bell of a worker, or all bells."""


class Database(ABC):
    """A database between `open` and `close`. All calls come from one event loop."""

    revision = schema.REVISION
    """The revision of the schema. It may be newer than this version."""
    reader_connections: int
    """The number of connections for reads."""
    driver_errors: tuple[type[Exception], ...] = (SQLAlchemyError, OSError)
    """The errors of a connection."""
    has_memories = False
    """True if interaction memories are rows of this database. They are files otherwise."""

    def __init__(self, url: URL, durability: Durability, timings: StoreTimings, writer_hook: WriterHook | None) -> None:
        self.url = url
        self._durability = durability
        self._timings = timings
        self._writer_hook = writer_hook
        self._pending: list[Any] = []
        self._loop = asyncio.get_running_loop()
        # Not the queue of the pool: whoever waits there for long gets an error.
        self._reader_slots = Semaphore(self.reader_connections)
        self._background_slots = Semaphore(self.reader_connections // 2, parent=self._reader_slots)
        self._wait_warnings = RateLimiter()
        self.row_ids: Iterator[int] = chain.from_iterable(self._iterate_blocks())
        """The unused row ids; `next_id` takes one."""
        self._blocks: deque[range] = deque()
        """The blocks of row ids that follow the current one."""
        self._known_next_id = 0
        """The end of the current block, or of the newest one if no other process has taken one between.

        The sequence is further only if another process has taken one since.
        """
        self._deferred_rows: list[tuple[int, Row]] = []
        self._deferred_timer: asyncio.TimerHandle | None = None
        self._row_sources: list[Callable[[], Rows]] = []
        self._gather_handle: asyncio.Handle | None = None
        self._is_writing = False
        self._has_lookups = False
        self._was_batch_small = True
        """True if the last batch had no more writes than a single turn."""
        self._is_closed = False
        self.name = display_name(url)
        """The name in error messages: a path, or an address without its password."""
        self.is_new = False
        """True if this process has created the tables: nothing was stored before."""
        self.worker_id: int | None = None
        """The id of this process among the workers that share the database; None if it does not share it."""
        self.bell: Bell
        """The bell of this worker. Only a process among workers has one."""
        self.previous_revision: str | None = None
        """The revision of the schema before the database was opened; None if it was empty."""
        self.inbox_keys = KeyIndex()
        """The index of the inbox keys of all agents that are open. So the table needs no index of them."""
        self.open_inbox_rows: dict[str, set[int]] = {}
        """The row ids of requests that may not be closed, by open agent. The table needs no index of them either."""
        self.inbox_rows_with_steps: set[int] = set()
        """The row ids of requests that may have durable steps. All others cost no statement about steps."""
        self.failure: StoreError | None = None
        """The reason why the database accepts no writes; None while it does. The database retries every few seconds."""
        self._retry_timer: asyncio.TimerHandle | None = None
        self.transaction_count = 0
        """The number of transactions of the writer since the start, with those that failed."""
        self.stored_count = 0
        """The number of writes since the start that are durable."""
        self.failed_count = 0
        """The number of writes since the start that have failed."""

    @property
    def is_failing(self) -> bool:
        """True while the database accepts no writes."""
        return self.failure is not None

    @property
    def has_writes(self) -> bool:
        """True while writes are on their way. Those that are deferred do not count."""
        return self._is_writing or bool(self._pending)

    @property
    def pending_count(self) -> int:
        """The number of writes that wait for the next transaction."""
        return len(self._pending)

    async def close(self) -> None:
        """Write everything pending and close the database."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        self._start_batch()
        await self._stop_writer()
        await self.dispose()

    async def check(self) -> None:
        """Raise StoreError if the database cannot be read now, or accepts no writes."""
        if self.failure is not None:
            raise self.failure
        await self.read(read_next_row_id)

    def next_id(self) -> int:
        """Return an unused row id. It needs no query.

        Row ids ascend, and are unique in the whole database. Raise StoreError if none is left: the database has accepted no
        writes for long.
        """
        return next(self.row_ids)

    def _iterate_blocks(self) -> Iterator[Iterable[int]]:
        while True:
            yield iter(self._require_block, None)  # an iterator survives errors, a generator does not
            block = self._blocks.popleft()
            self._known_next_id = max(self._known_next_id, block.stop)
            half = len(block) // 2
            yield block[:half]
            self._fetch_block()
            yield block[half:]

    def _require_block(self) -> None:
        if not self._blocks:
            raise StoreError(f"{self.name}: no row ids are left, because the database accepts no writes")

    def _fetch_block(self) -> None:
        """Take the next block of row ids, long before it is needed. Retry while the database accepts no writes."""
        if not self._is_closed:
            block = self.run(lambda connection: take_row_ids(connection, ROW_ID_BLOCK))
            block.on_stored(self._add_block)
            block.on_failed(lambda _: self._loop.call_later(self._timings.retry_s, self._fetch_block))

    def _add_block(self, block: range) -> None:
        self._blocks.append(block)
        if block.start == self._known_next_id:
            self._known_next_id = block.stop

    def _begin_block(self, block: range) -> None:
        """Go on with a new block. The rest of the earlier ones is not used."""
        self._blocks.clear()
        self._known_next_id = block.start
        self._add_block(block)
        self.row_ids = chain.from_iterable(self._iterate_blocks())

    async def open_agent(self, agent: str) -> None:
        """Prepare for the requests of an agent.

        Its keys, its open rows and its steps are known afterwards. Its next row ids are above those that other processes have
        given to its rows.
        """
        if await self.read(read_next_row_id) != self._known_next_id:
            self._begin_block(await self.write(lambda connection: take_row_ids(connection, ROW_ID_BLOCK)))
        if agent not in self.open_inbox_rows:
            await self._load_agent(agent)

    def close_agent(self, agent: str) -> None:
        """Forget an agent that another worker is to serve. Its keys stay in the index, which costs a query at worst."""
        self.open_inbox_rows.pop(agent, None)

    def add_open_row(self, agent: str, key: bytes, row: int) -> None:
        """Note that a request was put into the inbox again. If its agent is not open, it is found when that opens."""
        is_open = agent in self.open_inbox_rows or isinstance(self.open_inbox_rows, defaultdict)
        if is_open and row not in self.open_inbox_rows[agent]:
            self.inbox_keys.add(key, row)
            self.open_inbox_rows[agent].add(row)

    @abstractmethod
    async def _load_agent(self, agent: str) -> None:
        """Load the keys, the open rows and the steps of an agent."""

    def submit(self, rows: Rows, *, is_turn_end: bool = False) -> Commit[bool]:
        """Write rows of the prepared statements in one transaction. The result is True.

        `is_turn_end` says that the rows are the end of a request. If no other request is running, the batch starts at once.
        """
        commit: Commit[bool] = Commit(rows)
        self._enqueue(commit)
        is_lone = self._was_batch_small and len(self._pending) <= _LONE_TURN_WRITES
        if is_turn_end and is_lone and not self._is_writing:
            self._start_batch()
        return commit

    def submit_deferred(self, rows: Rows) -> None:
        """Write rows with the next transaction, or after a short delay. No task waits for them.

        While the database accepts no writes, the rows stay deferred and go with a later transaction.
        """
        self._deferred_rows += rows
        if self._deferred_timer is None:
            self._deferred_timer = self._loop.call_later(_DEFERRED_WRITE_S, self._enqueue_deferred)

    def submit_with_next(self, make_rows: Callable[[], Rows]) -> None:
        """Write rows in the next transaction. `make_rows` is called when that begins, so that it gives the latest values.

        The rows are lost if the database does not accept them.
        """
        self._row_sources.append(make_rows)

    def run(self, work: Callable[[Connection], T]) -> Commit[T]:
        """Run `work` in the writer's transaction. Use it for rare operations: prepared statements are faster."""
        commit = Commit(work=work)
        self._enqueue(commit)
        return commit

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in the writer's transaction and wait for its result."""
        return await self.run(work)

    def execute(self, statement: Executable) -> Commit[int]:
        """Run one statement in the writer's transaction. The result is the number of rows that it changed."""
        return self.run(lambda connection: connection.execute(statement).rowcount)

    async def erase(self, work: Callable[[Connection], T]) -> T:
        """Run `work`, which deletes rows, in the writer's transaction. Remove the deleted data from the log soon after."""
        erased = self.run(work)
        erased.on_stored(lambda _: self._schedule_log_truncation())  # also if the caller was cancelled
        return await erased

    async def wait_until_erased(self, timeout_s: float) -> Remains | None:
        """Wait until what was deleted is no longer on the disk. Return where it still is after that time.

        A database that manages its files itself is not waited for.
        """
        return None

    async def read(self, work: Callable[[Connection], T], *, is_background: bool = False) -> T:
        """Run `work` in its own transaction beside the writer. It sees one state of the database.

        It waits until a connection is free. With `is_background`, for work that no turn waits for, half of the connections at
        most are used.
        """
        slots = self._background_slots if is_background else self._reader_slots
        try:
            if not slots.acquire_nowait():
                await self._wait_for_connection(slots)
            try:
                return await self._read(work)
            finally:
                slots.release()
        except self.driver_errors as error:
            raise self.problem(error) from error

    async def fetch(self, query: Select[Any], *, is_background: bool = False) -> Sequence[Any]:
        """Return the rows of a query, as `read` does."""
        return await self.read(lambda connection: connection.execute(query).all(), is_background=is_background)

    async def fetch_scalars(self, query: Select[Any] | CompoundSelect[Any], *, is_background: bool = False) -> list[Any]:
        """Return the first column of the rows of a query, as `read` does."""
        return await self.read(lambda connection: list(connection.scalars(query)), is_background=is_background)

    def read_blocking(self, work: Callable[[Connection], T]) -> T:
        """Run `work` as `read` does, for code on the event loop that cannot wait there. It blocks the event loop.

        Only a database that has interaction memories offers this.
        """
        raise NotImplementedError

    def make_engine(self, *arguments: Any, **options: Any) -> AsyncEngine:
        """Make an engine whose connections are like those of turns. Only a database that workers share offers this."""
        raise NotImplementedError

    def alone(self) -> AbstractAsyncContextManager[None]:
        """Wait until no other process with the same database is in such a block. StoreError if that takes too long.

        Without other processes there is nothing to wait for.
        """
        return nullcontext()

    @abstractmethod
    async def _read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on a connection for reads. One is free."""

    async def _wait_for_connection(self, slots: Semaphore) -> None:
        """Wait for a free connection. A long wait is logged, at most once a minute."""
        began_at = self._loop.time()
        await slots.acquire()
        waited_s = self._loop.time() - began_at
        if waited_s > _LONG_WAIT_S and self._wait_warnings.allow(""):
            log.warning("%s: a read waited %.0f s for a connection; too many reads run at once", self.name, waited_s)

    @property
    @abstractmethod
    def queries(self) -> Mapping[int, str]:
        """The texts of the prepared queries."""

    @abstractmethod
    def run_queries(self, queries: QueryGenerator[T]) -> asyncio.Future[T]:
        """Run a few short prepared queries. This is the fastest way to read."""

    def _enqueue(self, item: object) -> None:
        if self._is_closed:
            raise StoreError(f"{self.name}: the database is closed")
        self._pending.append(item)
        if self._gather_handle is None and not self._is_writing:
            self._start_gathering()

    def _enqueue_deferred(self) -> None:
        self._deferred_timer = None
        if not self._is_closed:
            self._enqueue(Commit())  # its batch takes the deferred rows along

    def _commit_deferred(self) -> Commit[bool]:
        rows, self._deferred_rows = self._deferred_rows, []
        commit: Commit[bool] = Commit(rows)
        commit.on_failed(lambda _: self._defer_again(rows))
        return commit

    def _defer_again(self, rows: list[tuple[int, Row]]) -> None:
        """Defer the rows of a failed batch, before later rows. Rows that failed alone are faulty: they would fail again."""
        if self.is_failing:
            self._deferred_rows[:0] = rows

    def _start_gathering(self) -> None:
        # A turn that waits for nothing ends within two rounds of the event loop. Its request and its reply then share one
        # transaction.
        self._gather_handle = self._loop.call_soon(self._gather, -1, _MAX_GATHER_ROUNDS)

    def _gather(self, gathered: int, rounds: int) -> None:
        """Start the batch when a round of the event loop has added no write, at the latest after `rounds` rounds.

        Writes are counted from the second round on; `gathered` is -1 in the first.
        """
        pending = len(self._pending) if gathered >= 0 else 0
        if pending > gathered and rounds:
            self._gather_handle = self._loop.call_soon(self._gather, pending, rounds - 1)
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
        if self._row_sources:
            sources, self._row_sources = self._row_sources, []
            self._pending += [Commit(make_rows()) for make_rows in sources]
        if self._deferred_rows:
            self._pending.append(self._commit_deferred())
        if self._pending:
            batch, self._pending = self._pending, []
            if self._has_lookups:
                batch = self._choose_batch(batch)
            self._is_writing = True
            if self._writer_hook is None:
                self._write_batch(batch)
            else:
                self._writer_hook(batch, self._write_batch)

    def _choose_batch(self, batch: list[Any]) -> list[Any]:
        """Return the part of a batch with lookups that is to run first. The rest is pending again."""
        return batch

    def _on_writer_idle(self) -> None:
        """Gather the next batch, because the writer is idle."""
        self._is_writing = False
        if self._pending and self._gather_handle is None:
            self._start_gathering()

    def _resolve(self, outcomes: Outcomes, failure: StoreError | None) -> None:
        """Resolve the commits of a batch. `failure` is the reason why the database accepts no writes at all, if it is so."""
        if failure is not None and not self.is_failing:
            log.error("%s; retrying every %g s", failure, self._timings.retry_s)
        elif failure is None and self.is_failing:
            log.warning("%s: writing works again", self.name)
        self.failure = failure
        if self.is_failing and self._retry_timer is None and not self._is_closed:
            self._retry_timer = self._loop.call_later(self._timings.retry_s, self._retry_write)
        self._on_writer_idle()
        self.transaction_count += 1
        failed_count = 0
        for commit, outcome in outcomes:
            commit.resolve(outcome)
            if commit.error is not None:
                failed_count += 1
        self.failed_count += failed_count
        self.stored_count += len(outcomes) - failed_count
        outcomes.clear()  # the writer may still refer to the list

    def _retry_write(self) -> None:
        self._retry_timer = None
        if self.is_failing:
            self._enqueue(Commit(work=_probe_write))

    @abstractmethod
    def _write_batch(self, batch: list[Any]) -> None:
        """Pass a batch to the writer, which arranges a call of `_resolve` when the batch is written."""

    @abstractmethod
    async def open(self) -> None:
        """Create or migrate the database and start the writer."""

    async def review(self) -> str | None:
        """Raise StoreError if the platform cannot use the server. Return what to change there for safety; None if nothing."""
        return None

    async def open_to_read(self) -> None:
        """Check that the schema is of this version. Raise StoreError if not; start no writer."""
        await self.read(self._require_current_revision)

    @abstractmethod
    def _schedule_log_truncation(self) -> None:
        """Remove deleted data from the log of the database soon, if the platform manages that log."""

    @abstractmethod
    async def _stop_writer(self) -> None:
        """Stop the writer after it has written its batches."""

    @abstractmethod
    async def dispose(self) -> None:
        """Close all connections."""

    # Opening

    def _create_or_migrate(self, connection: Connection) -> None:
        """Create or migrate the tables."""
        self.is_new = not inspect(connection).get_table_names()
        if self.is_new:
            create_tables(connection)
        else:
            self.previous_revision = self._read_revision(connection)
            if not self._may_use(connection, self.previous_revision):
                from ..migrations import upgrade  # Alembic is slow to import

                upgrade(connection, self.name, self.previous_revision)
        connection.commit()

    def _renew_row_ids(self, connection: Connection) -> bool:
        """Begin a new block of row ids if another process has taken one since. Return True in that case."""
        is_behind = read_next_row_id(connection) != self._known_next_id
        if is_behind:
            self._begin_block(take_row_ids(connection, ROW_ID_BLOCK))
        connection.commit()
        return is_behind

    def _add_inbox_rows(self, rows: Sequence[Any]) -> None:
        """Remember stored rows of the inbox, which come in the order of their ids."""
        for row in rows:
            if row.message_key is not None:
                self.inbox_keys.add_further(row.message_key, row.id)
            else:
                self.inbox_keys.add(row.key, row.id)
            if row.state < schema.CLOSED:
                self.open_inbox_rows[row.agent].add(row.id)

    def _read_revision(self, connection: Connection) -> str:
        tables = inspect(connection).get_table_names()
        if not tables:
            raise DatabaseEmptyError(self.name)
        if "alembic_version" not in tables:
            raise StoreError(f"{self.name}: is the database of another program; name another one in storage.url")
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar() or "none"

    def _may_use(self, connection: Connection, stored: str) -> bool:
        """Return True for the schema of this version, and for a newer one on which it may run too."""
        names = inspect(connection).get_table_names()
        if schema.REVISION < stored != "none" and schema.compatibility.name in names:
            oldest = connection.scalar(select(schema.compatibility.c.oldest_revision))
            if oldest is not None and oldest <= schema.REVISION:
                log.info("%s: has the schema %s of a newer version, which this version can use", self.name, stored)
                self.revision = stored
        return stored == self.revision

    def _require_current_revision(self, connection: Connection) -> None:
        stored = self._read_revision(connection)
        if not self._may_use(connection, stored):
            from ..migrations import require_known

            require_known(self.name, stored)
            raise StoreError(
                f"{self.name}: has an older schema ({stored}); start the platform to migrate it, or run:"
                " spade-coreason storage migrate"
            )

    def problem(self, error: Exception) -> StoreError:
        """Build the StoreError of an error of the driver, with the name of the database."""
        cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
        text = " ".join(str(cause).split()) or (
            "no answer in time" if isinstance(cause, TimeoutError) else type(cause).__name__
        )
        return StoreError(f"{self.name}: {text}")


@cache
def _schema_statements(dialect: str) -> list[str]:
    """Return the statements that create the tables. Compiling them takes longer than running them."""
    statements: list[str] = []

    def compile_statement(statement: Any, *_: object) -> None:
        statements.append(str(statement.compile(dialect=engine.dialect)))

    engine: MockConnection = create_mock_engine(f"{dialect}://", compile_statement)
    schema.metadata.create_all(engine, checkfirst=False)  # it would ask for each table
    return statements


def create_tables(connection: Connection) -> None:
    """Create the current schema in an empty database."""
    for statement in _schema_statements(f"{connection.dialect.name}+{connection.dialect.driver}"):
        connection.exec_driver_sql(statement)
    full_text.create(connection)
    create_sequence(connection)
    oldest = schema.OLDEST_REVISIONS[connection.dialect.name]
    connection.exec_driver_sql(f"INSERT INTO {schema.compatibility.name} (oldest_revision) VALUES ('{oldest}')")
    connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
    connection.exec_driver_sql(f"INSERT INTO alembic_version VALUES ('{schema.REVISION}')")


def display_name(url: URL) -> str:
    """Return the name of a database in error messages: a path, or an address without its password."""
    if url.get_backend_name() == "sqlite":
        return url.database or ""
    host = url.host or url.query.get("host") or "localhost"
    address = f"{host}{f':{url.port}' if url.port else ''}/{url.database or ''}"
    # SQLAlchemy ends a password at its first "@": the rest of one that is not encoded is in the host or in the database.
    return f"postgresql://{address.rpartition('@')[2]}"


def group_rows(batch: Sequence[Commit[Any]]) -> list[list[Row]]:
    """Return the rows of a batch by statement, in the order in which the statements run.

    A request that is answered in the same batch is written once, as answered. The functions of the other requests build
    their JSON now.
    """
    groups: list[list[Row]] = [[] for _ in STATEMENTS]
    for write in batch:
        for statement, row in write.rows:
            groups[statement].append(row)
    if groups[RECEIVE]:
        received, groups[RECEIVE_ANSWERED], groups[ANSWER] = _merge_answered(groups[RECEIVE], groups[ANSWER])
        groups[RECEIVE] = [
            (*row, request if isinstance(request, str) else request(), digest, evidence)
            for *row, request, digest, evidence in received
        ]
    return groups


def _merge_answered(received: list[Row], answers: list[Row]) -> tuple[list[Row], list[Row], list[Row]]:
    """Merge requests with replies of the same transaction, so that no row is written twice.

    Return the other requests, the merged rows and the other replies.
    """
    unanswered = {row[0]: row for row in received}
    answered, rest = [], []
    for answer in answers:
        row = unanswered.pop(answer[0], None)
        if row is None:
            rest.append(answer)
        else:
            *start, _, _, digest, evidence = row
            _, state, reply, interaction = answer
            answered.append((*start, state, reply, digest, interaction, evidence))
    return list(unanswered.values()), answered, rest


def _probe_write(connection: Connection) -> None:
    """Write a row without changing it, to find out if the database accepts writes."""
    connection.execute(text("UPDATE alembic_version SET version_num = version_num"))
