"""The operations that SQLite and PostgreSQL do each in its own way: connect, read, and write a batch."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from sqlalchemy import URL, Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ...concurrency import Semaphore
from ...exceptions import StoreError
from ..workers.mailbox import WorkerBell
from .group_commit import BatchOutcome, Commit, GroupCommit, QueryGenerator, StoreTimings, T, WriterHook
from .inbox_index import InboxIndex
from .sequences import RowIds
from .stored_schema import StoredSchema, require_current

if TYPE_CHECKING:
    from .postgres_connections import PostgresConnections

Remains: TypeAlias = Literal["log", "file"]
"""The place where deleted data still are: the log, which another program reads, or a file that is too large for a rewrite."""


class Backend(ABC):
    """The connections and the writer of a database, from `open` to `close`.

    Reads raise the errors of the driver (`driver_errors`), which `problem` explains.
    """

    reader_connections: int
    """The number of connections for reads."""
    queries: Mapping[int, str]
    """The prepared queries by their numbers in `statements`."""
    driver_errors: tuple[type[Exception], ...] = (SQLAlchemyError, OSError)
    """The errors of a connection."""
    has_memories = False
    """True if interaction memories are rows of this database. They are files otherwise."""
    connections: PostgresConnections
    """The connections to the server. Only PostgreSQL has one."""
    worker_id: int | None = None
    """The id of this process among the workers that share the database; None if it does not share it."""
    bell: WorkerBell
    """The bell of this worker. Only a process among workers has one."""

    def __init__(self, url: URL, timings: StoreTimings, writer_hook: WriterHook | None) -> None:
        self.name = display_name(url)
        """The name in error messages: a path, or an address without its password."""
        self.writes = GroupCommit(self.name, timings.retry_s, self.write_batch, writer_hook)
        self.row_ids = RowIds(self.writes)
        self.inbox_index = InboxIndex()
        # Not the queue of the pool: whoever waits there for long gets an error.
        self.reader_slots = Semaphore(self.reader_connections)

    @abstractmethod
    async def open(self) -> StoredSchema:
        """Create or migrate the tables, and start the writer."""

    async def open_to_read(self) -> StoredSchema:
        """Check that the schema is of this version. Raise StoreError if not; start no writer."""
        return await self.read(lambda connection: require_current(connection, self.name))

    @abstractmethod
    async def close(self) -> None:
        """End the writer after its batches, and close all connections."""

    @abstractmethod
    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on a connection for reads. One is free, because the caller has one of `reader_slots`."""

    @abstractmethod
    def run_queries(self, queries: QueryGenerator[T]) -> asyncio.Future[T]:
        """Run a few short prepared queries. This is the fastest way to read."""

    @abstractmethod
    def write_batch(self, batch: list[Any]) -> None:
        """Pass a batch to the writer, which arranges a call of `writes.resolve` when the batch is written."""

    @abstractmethod
    def is_failure(self, error: Exception) -> bool:
        """Return True if the database accepts no writes at all, because of the error of a batch."""

    def judge(self, batch: Sequence[Commit[Any]], error: Exception) -> BatchOutcome | None:
        """Return the outcome of a batch that failed.

        None if its writes are to be repeated one by one, so that only the faulty one fails.
        """
        problem = self.problem(error) if isinstance(error, self.driver_errors) else error
        failure = problem if isinstance(problem, StoreError) and self.is_failure(error) else None
        if failure is None and len(batch) > 1:
            return None
        return [(write, problem) for write in batch], failure

    def problem(self, error: Exception) -> StoreError:
        """Build the StoreError of an error of the driver, with the name of the database."""
        cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
        text = " ".join(str(cause).split()) or (
            "no answer in time" if isinstance(cause, TimeoutError) else type(cause).__name__
        )
        return StoreError(f"{self.name}: {text}")

    @abstractmethod
    def truncate_log_soon(self) -> None:
        """Remove deleted data from the log of the database soon, if the platform manages that log."""

    async def wait_until_erased(self, timeout_s: float) -> Remains | None:
        """Wait until what was deleted is no longer on the disk. Return where it still is after that time.

        A server manages its files itself, and is not waited for.
        """
        return None

    async def review(self) -> str | None:
        """Raise StoreError if the platform cannot use the server. Return what to change there for safety; None if nothing."""
        return None

    def alone(self) -> AbstractAsyncContextManager[None]:
        """Wait until no other process with the same database is in such a block. StoreError if that takes too long.

        Without other processes there is nothing to wait for.
        """
        return nullcontext()

    def read_blocking(self, work: Callable[[Connection], T]) -> T:
        """Run `work` as `read` does, for code on the event loop that cannot wait there. It blocks the event loop.

        Only a database that has interaction memories offers this. Errors are StoreError.
        """
        raise NotImplementedError


def display_name(url: URL) -> str:
    """Return the name of a database in error messages: a path, or an address without its password."""
    if url.get_backend_name() == "sqlite":
        return url.database or ""
    host = url.host or url.query.get("host") or "localhost"
    address = f"{host}{f':{url.port}' if url.port else ''}/{url.database or ''}"
    # SQLAlchemy ends a password at its first "@": the rest of one that is not encoded is in the host or in the database.
    return f"postgresql://{address.rpartition('@')[2]}"
