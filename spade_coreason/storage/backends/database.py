"""One SQL database with group commit: a single writer commits writes in batches, and reads run beside it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import CompoundSelect, Connection, Executable, Select

from ...concurrency import RateLimiter, Semaphore
from ..schema import inbox
from .backend import Backend
from .dialect_sql import has_any
from .group_commit import Commit, T
from .sequences import ROW_ID_BLOCK, read_next_row_id, take_row_ids
from .stored_schema import StoredSchema

log = logging.getLogger(__name__)

_LONG_WAIT_S = 5.0


class Database:
    """A database that is open, until `close`. All calls come from one event loop.

    It reads, and runs functions in the writer's transactions. Prepared statements are faster: `writes.submit` takes their rows.
    """

    def __init__(self, backend: Backend, schema: StoredSchema) -> None:
        self.backend = backend
        """The connections: a file of SQLite, or a server."""
        self.schema = schema
        self.name = backend.name
        """The name in error messages: a path, or an address without its password."""
        self.worker_id = backend.worker_id
        """The id of this process among the workers that share the database; None if it does not share it."""
        self.writes = backend.writes
        """The writes that wait, and the failure of the database."""
        self.row_ids = backend.row_ids
        """The row ids for new rows."""
        self.inbox_index = backend.inbox_index
        """The requests of the agents that are open."""
        self._background_slots = Semaphore(backend.reader_connections // 2, parent=backend.reader_slots)
        self._wait_warnings = RateLimiter()

    async def close(self) -> None:
        """Write everything pending and close the database."""
        if not self.writes.is_closed:
            self.writes.close()
            await self.backend.close()

    async def check(self) -> None:
        """Raise StoreError if the database cannot be read now, or accepts no writes."""
        if self.writes.failure is not None:
            raise self.writes.failure
        await self.read(read_next_row_id)

    async def open_agent(self, agent: str) -> None:
        """Prepare for the requests of an agent.

        Its keys, its open rows and its steps are known afterwards. Its next row ids are above those that other processes have
        given to its rows.
        """
        if await self.read(read_next_row_id) != self.row_ids.known_next:
            self.row_ids.begin(await self.write(lambda connection: take_row_ids(connection, ROW_ID_BLOCK)))
        index = self.inbox_index
        if not index.is_open(agent):
            index.open_rows[agent] = set()
            try:
                await self.read(lambda connection: index.load(connection, has_any(connection, inbox.c.agent, [agent])))
            except BaseException:
                index.close_agent(agent)
                raise

    def run(self, work: Callable[[Connection], T]) -> Commit[T]:
        """Run `work` in the writer's transaction. Use it for rare operations: prepared statements are faster."""
        commit = Commit(work=work)
        self.writes.add(commit)
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
        erased.on_stored(lambda _: self.backend.truncate_log_soon())  # also if the caller was cancelled
        return await erased

    async def read(self, work: Callable[[Connection], T], *, is_background: bool = False) -> T:
        """Run `work` in its own transaction beside the writer. It sees one state of the database.

        It waits until a connection is free. With `is_background`, for work that no turn waits for, half of the connections at
        most are used.
        """
        backend = self.backend
        slots = self._background_slots if is_background else backend.reader_slots
        try:
            if not slots.acquire_nowait():
                await self._wait_for_connection(slots)
            try:
                return await backend.read(work)
            finally:
                slots.release()
        except backend.driver_errors as error:
            raise backend.problem(error) from error

    async def fetch(self, query: Select[Any], *, is_background: bool = False) -> Sequence[Any]:
        """Return the rows of a query, as `read` does."""
        return await self.read(lambda connection: connection.execute(query).all(), is_background=is_background)

    async def fetch_scalars(self, query: Select[Any] | CompoundSelect[Any], *, is_background: bool = False) -> list[Any]:
        """Return the first column of the rows of a query, as `read` does."""
        return await self.read(lambda connection: list(connection.scalars(query)), is_background=is_background)

    async def _wait_for_connection(self, slots: Semaphore) -> None:
        """Wait for a free connection. A long wait is logged, at most once a minute."""
        loop = self.writes.loop
        began_at = loop.time()
        await slots.acquire()
        waited_s = loop.time() - began_at
        if waited_s > _LONG_WAIT_S and self._wait_warnings.allow(""):
            log.warning("%s: a read waited %.0f s for a connection; too many reads run at once", self.name, waited_s)
