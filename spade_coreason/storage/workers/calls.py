"""The calls between workers of one PostgreSQL database: rows of `worker_calls`, and a ring of the other side's bell.

The caller adds a row, the worker writes its answer, and the caller deletes the row. If one of the two is removed from the
workers, the row goes too, so that the other side notices.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import ColumnElement, Connection, delete, insert, or_, select, update

from ..backends.database import Database
from ..schema import WorkerCall, leases, worker_calls, workers
from .leases import NOW, ring
from .mailbox import ALL_DOORS, EVERYBODY

OTHER_WORKER = -1
"""No id of a worker."""
_calls = worker_calls.c


class CallRepository:
    """The calls that one worker makes and answers (`database.worker_id`)."""

    def __init__(self, database: Database) -> None:
        if database.worker_id is None:
            raise ValueError("this process is not among the workers of the database")
        self.worker = database.worker_id
        """The id of this worker."""
        self.row_ids = database.row_ids
        self._database = database

    async def ask_agent(self, call: int, agent: str, method: str, arguments: str, *, only: int | None = None) -> int | None:
        """Ask the worker that serves an agent (a bare JID). Return its id; None if the agent is free.

        Return `OTHER_WORKER` if it is not the one that `only` names; then none is asked.
        """

        def work(connection: Connection) -> int | None:
            worker = _find_alive(connection, leases.c.worker == workers.c.id, leases.c.agent == agent)
            if only not in (None, worker):
                return OTHER_WORKER
            return self._add(connection, call, worker, agent, method, arguments)

        return await self._database.write(work)

    async def ask_worker(self, call: int, worker: int, method: str, arguments: str) -> int | None:
        """Ask a worker itself. Return its id; None if it has ended."""

        def work(connection: Connection) -> int | None:
            return self._add(connection, call, _find_alive(connection, workers.c.id == worker), "", method, arguments)

        return await self._database.write(work)

    def _add(
        self, connection: Connection, call: int, worker: int | None, agent: str, method: str, arguments: str
    ) -> int | None:
        if worker is not None:
            values = {"worker": worker, "agent": agent, "method": method, "arguments": arguments}
            connection.execute(insert(worker_calls).values(id=call, caller=self.worker, **values))
            ring(connection, str(worker), str(worker))
        return worker

    async def read(self, callers: Collection[int]) -> tuple[list[tuple[WorkerCall, bool]], set[int]]:
        """Return the calls that this worker is asked and has not answered, with those that it has made.

        Each has True if the lease of the worker that is asked has ended. Return also those of the workers `callers` that have
        not ended.
        """
        own = or_(_calls.caller == self.worker, (_calls.worker == self.worker) & _calls.answer.is_(None))
        query = (
            select(worker_calls, workers.c.expires_at < NOW)
            .join(workers, workers.c.id == _calls.worker)
            .where(own)
            .order_by(_calls.id)
        )
        alive = select(workers.c.id).where(workers.c.id.in_(callers))

        def work(connection: Connection) -> tuple[list[tuple[WorkerCall, bool]], set[int]]:
            found = [(WorkerCall(*call), is_expired) for *call, is_expired in connection.execute(query)]
            return found, set(connection.scalars(alive)) if callers else set()

        return await self._database.read(work)

    async def answer(self, call: WorkerCall, answer: str) -> None:
        """Store the answer to a call, unless its caller has ended."""

        def work(connection: Connection) -> None:
            connection.execute(update(worker_calls).where(_calls.id == call.id).values(answer=answer))
            ring(connection, str(call.caller), str(call.caller))

        await self._database.write(work)

    async def stop(self, call: int, worker: int) -> None:
        """Ask the worker for an early end of a call."""

        def work(connection: Connection) -> None:
            connection.execute(update(worker_calls).where(_calls.id == call).values(is_stopped=True))
            ring(connection, str(worker), str(worker))

        await self._database.write(work)

    def delete(self, call: int) -> None:
        """Delete a call, soon. One that is under way is cancelled. Raise StoreError on a closed database."""

        def work(connection: Connection) -> None:
            deleted = delete(worker_calls).where(_calls.id == call).returning(_calls.worker, _calls.answer)
            for worker, answer in connection.execute(deleted).all():
                if answer is None:
                    ring(connection, str(worker), str(worker))

        self._database.run(work)

    def wake_doors(self) -> None:
        """Let all workers load the keys and webhooks again, soon, and after all that was written before."""
        self._database.run(lambda connection: ring(connection, EVERYBODY, ALL_DOORS))


def _find_alive(connection: Connection, *conditions: ColumnElement[bool]) -> int | None:
    """Return the id of a worker, which stays until the transaction ends. None if another transaction removes it."""
    query = select(workers.c.id).where(*conditions).with_for_update(read=True, key_share=True, of=workers)
    return connection.scalar(query)
