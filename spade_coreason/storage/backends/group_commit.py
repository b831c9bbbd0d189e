"""Group commit: a single writer commits writes in batches.

Turns that end at the same time share one transaction. Callers add writes and await the `Commit` of each; the writer takes all
pending writes in one transaction. A durable turn then costs a tenth of what a transaction per turn would cost.

A batch starts when the writer is idle and a round of the event loop has added no write. A longer wait would leave both idle;
a shorter one would need a second transaction. If only one turn is running, its batch starts as soon as it ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from sqlalchemy import Connection, text

from ...exceptions import StoreError
from .statements import ANSWER, RECEIVE, RECEIVE_ANSWERED, STATEMENTS

log = logging.getLogger(__name__)

T = TypeVar("T")
Row: TypeAlias = tuple[Any, ...]
Durability: TypeAlias = Literal["full", "normal", "off"]
Rows: TypeAlias = Sequence[tuple[int, Row]]
"""Rows to write, each with the number of its prepared statement."""
WriteBatch: TypeAlias = Callable[[list[Any]], None]
"""A function that passes a batch to the writer."""
WriterHook: TypeAlias = Callable[[list[Any], WriteBatch], None]
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


QueryGenerator: TypeAlias = Generator[tuple[int, Row], list[Any], T]
"""A generator that yields prepared queries with their parameters, receives the rows of each, and returns a result."""


@dataclass(slots=True, eq=False)
class Lookup:
    """Prepared queries of one caller, which SQLite's writer runs."""

    queries: QueryGenerator[Any]
    future: asyncio.Future[Any]


Outcomes: TypeAlias = list[tuple[Commit[Any], Any]]
"""The commits of a batch, each with its result or its error."""
BatchOutcome: TypeAlias = tuple[Outcomes, StoreError | None]
"""The outcomes of a batch, and the reason why the database accepts no writes at all, if it is so."""
_DEFERRED_WRITE_S = 0.2
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


class GroupCommit:
    """The writes that wait for the one writer of a database, and its batches.

    The writer is `write_batch`. It gets a batch only when it is idle, and arranges a call of `resolve` once that is written.
    After a failure of the database, a probe is written every `retry_s` seconds until one succeeds.
    """

    def __init__(self, name: str, retry_s: float, write_batch: WriteBatch, hook: WriterHook | None) -> None:
        self.name = name
        """The name of the database in error messages."""
        self.retry_s = retry_s
        self.loop = asyncio.get_running_loop()
        self.is_closed = False
        self.failure: StoreError | None = None
        """The reason why the database accepts no writes; None while it does."""
        self.transaction_count = 0
        """The number of transactions of the writer since the start, with those that failed."""
        self.stored_count = 0
        """The number of writes since the start that are durable."""
        self.failed_count = 0
        """The number of writes since the start that have failed."""
        self._write_batch = write_batch if hook is None else lambda batch: hook(batch, write_batch)
        self._pending: list[Any] = []
        self._deferred_rows: list[tuple[int, Row]] = []
        self._deferred_timer: asyncio.TimerHandle | None = None
        self._row_sources: list[Callable[[], Rows]] = []
        self._gather_handle: asyncio.Handle | None = None
        self._retry_timer: asyncio.TimerHandle | None = None
        self._is_writing = False
        self._has_lookups = False
        self._only_looked_up = False
        """True if the last batch had lookups only."""
        self._was_batch_small = True
        """True if the last batch had no more writes than a single turn."""

    @property
    def has_writes(self) -> bool:
        """True while writes are on their way. Those that are deferred do not count."""
        return self._is_writing or bool(self._pending)

    @property
    def pending_count(self) -> int:
        """The number of writes that wait for the next transaction."""
        return len(self._pending)

    @property
    def is_failing(self) -> bool:
        """True while the database accepts no writes."""
        return self.failure is not None

    def close(self) -> None:
        """Pass everything pending to the writer, and accept no more."""
        self.is_closed = True
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        self._start_batch()

    def add(self, item: object) -> None:
        """Add a `Commit` to the next batch."""
        if self.is_closed:
            raise StoreError(f"{self.name}: the database is closed")
        self._pending.append(item)
        if self._gather_handle is None and not self._is_writing:
            self._start_gathering()

    def look_up(self, queries: QueryGenerator[T]) -> asyncio.Future[T]:
        """Run prepared queries between two transactions. Only the writer of SQLite can do this."""
        future: asyncio.Future[T] = self.loop.create_future()
        self.add(Lookup(queries, future))
        self._has_lookups = True
        return future

    def submit(self, rows: Rows, *, is_turn_end: bool = False) -> Commit[bool]:
        """Write rows of the prepared statements in one transaction. The result is True.

        `is_turn_end` says that the rows are the end of a request. If no other request is running, the batch starts at once.
        """
        commit: Commit[bool] = Commit(rows)
        self.add(commit)
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
            self._deferred_timer = self.loop.call_later(_DEFERRED_WRITE_S, self._add_deferred)

    def submit_with_next(self, make_rows: Callable[[], Rows]) -> None:
        """Write rows in the next transaction. `make_rows` is called when that begins, so that it gives the latest values.

        The rows are lost if the database does not accept them.
        """
        self._row_sources.append(make_rows)

    def _add_deferred(self) -> None:
        self._deferred_timer = None
        if not self.is_closed:
            self.add(Commit())  # its batch takes the deferred rows along

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
        self._gather_handle = self.loop.call_soon(self._gather, -1, _MAX_GATHER_ROUNDS)

    def _gather(self, gathered: int, rounds: int) -> None:
        """Start the batch when a round of the event loop has added no write, at the latest after `rounds` rounds.

        Writes are counted from the second round on; `gathered` is -1 in the first.
        """
        pending = len(self._pending) if gathered >= 0 else 0
        if pending > gathered and rounds:
            self._gather_handle = self.loop.call_soon(self._gather, pending, rounds - 1)
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
            else:
                self._only_looked_up = False
            self._is_writing = True
            self._write_batch(batch)

    def _choose_batch(self, batch: list[Any]) -> list[Any]:
        """Return the part of a batch with lookups that is to run first. The rest is pending again."""
        # A turn that waits for a lookup and for nothing else ends soon after it. Then its request, its conversation and its
        # reply share one transaction. Of two batches one writes, however many lookups there are.
        self._has_lookups = False
        writes = [item for item in batch if not isinstance(item, Lookup)]
        # A transaction runs functions last. A deletion must not come behind what is written because of the lookup.
        self._only_looked_up = not (self._only_looked_up or self.is_closed or any(write.work is not None for write in writes))
        if not self._only_looked_up:
            return batch
        self._pending = writes
        return [item for item in batch if isinstance(item, Lookup)]

    def on_idle(self) -> None:
        """Gather the next batch, because the writer is idle."""
        self._is_writing = False
        if self._pending and self._gather_handle is None:
            self._start_gathering()

    def resolve(self, outcomes: Outcomes, failure: StoreError | None) -> None:
        """Resolve the commits of a batch. `failure` is the reason why the database accepts no writes at all, if it is so."""
        if failure is not None and not self.is_failing:
            log.error("%s; retrying every %g s", failure, self.retry_s)
        elif failure is None and self.is_failing:
            log.warning("%s: writing works again", self.name)
        self.failure = failure
        if self.is_failing and self._retry_timer is None and not self.is_closed:
            self._retry_timer = self.loop.call_later(self.retry_s, self.retry)
        self.on_idle()
        self.transaction_count += 1
        failed_count = 0
        for commit, outcome in outcomes:
            commit.resolve(outcome)
            if commit.error is not None:
                failed_count += 1
        self.failed_count += failed_count
        self.stored_count += len(outcomes) - failed_count
        outcomes.clear()  # the writer may still refer to the list

    def retry(self) -> None:
        """Find out now if the database accepts writes again, if it has failed."""
        self._retry_timer = None
        if self.is_failing and not self.is_closed:
            self.add(Commit(work=_probe_write))


def join_outcomes(parts: Sequence[BatchOutcome]) -> BatchOutcome:
    """Join the outcomes of parts of a batch, one after the other."""
    return [outcome for outcomes, _ in parts for outcome in outcomes], parts[-1][1]


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
