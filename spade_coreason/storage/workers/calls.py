"""The calls between workers of one PostgreSQL database: rows of `worker_calls`, and a NOTIFY that wakes the other side.

The caller adds a row, the worker writes its answer, and the caller deletes the row. If one of the two is removed from the
workers, the row goes too, so that the other side notices.

`CallTable` has those of one worker. The functions run in a transaction.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, delete, func, insert, or_, select, update

from ..backends.database import Database
from ..schema import leases, worker_calls, workers
from .leases import NOW

CALLS_CHANNEL = "spade_coreason_calls"
"""The channel (NOTIFY) of calls. Its payload is the id of the worker that has to look, or `ALL_DOORS`."""
ALL_DOORS = "doors"
"""The payload that lets all workers load the keys and webhooks again."""
OTHER_WORKER = -1
"""No id of a worker."""
_calls = worker_calls.c


class StoredCall(NamedTuple):
    """A call. `arguments` and `answer` are JSON; without an answer it is under way. `agent` is "" for the worker itself."""

    id: int
    caller: int
    worker: int
    agent: str
    method: str
    arguments: str
    is_stopped: bool
    answer: str | None
    is_expired: bool
    """True if the lease of the worker that is asked has ended."""


def _add_call(
    connection: Connection, call: int, caller: int, agent: str, method: str, arguments: str, *, only: int | None = None
) -> int | None:
    """Ask the worker that serves an agent. Return its id; None if the agent is free.

    Return `OTHER_WORKER` if it is not the one that `only` names; then none is asked.
    """
    worker = _find_alive(connection, leases.c.worker == workers.c.id, leases.c.agent == agent)
    if only not in (None, worker):
        return OTHER_WORKER
    if worker is not None:
        _add(connection, call, caller, worker, agent, method, arguments)
    return worker


def _add_worker_call(connection: Connection, call: int, caller: int, worker: int, method: str, arguments: str) -> int | None:
    """Ask a worker itself. Return its id; None if it has ended."""
    found = _find_alive(connection, workers.c.id == worker)
    if found is not None:
        _add(connection, call, caller, worker, "", method, arguments)
    return found


def _find_alive(connection: Connection, *conditions: ColumnElement[bool]) -> int | None:
    """Return the id of a worker, which stays until the transaction ends. None if another transaction removes it."""
    query = select(workers.c.id).where(*conditions).with_for_update(read=True, key_share=True, of=workers)
    return connection.scalar(query)


def _add(connection: Connection, call: int, caller: int, worker: int, agent: str, method: str, arguments: str) -> None:
    values = {"id": call, "caller": caller, "worker": worker, "agent": agent, "method": method, "arguments": arguments}
    connection.execute(insert(worker_calls).values(values))
    _wake(connection, worker)


def _read_calls(connection: Connection, worker: int) -> list[StoredCall]:
    """Return the calls of a worker: those that it is asked and has not answered, and those that it has made."""
    is_expired = (workers.c.expires_at < NOW).label("is_expired")
    columns = _calls.id, _calls.caller, _calls.worker, _calls.agent, _calls.method, _calls.arguments, _calls.is_stopped
    query = select(*columns, _calls.answer, is_expired).join(workers, workers.c.id == _calls.worker)
    own = or_(_calls.caller == worker, (_calls.worker == worker) & _calls.answer.is_(None))
    return [StoredCall(*row) for row in connection.execute(query.where(own).order_by(_calls.id))]


def _find_workers(connection: Connection, ids: Collection[int]) -> set[int]:
    """Return those of the workers that have not ended."""
    return set(connection.scalars(select(workers.c.id).where(workers.c.id.in_(ids)))) if ids else set()


def _answer_call(connection: Connection, call: StoredCall, answer: str) -> None:
    """Store the answer to a call, unless its caller has ended, and wake the caller."""
    connection.execute(update(worker_calls).where(_calls.id == call.id).values(answer=answer))
    _wake(connection, call.caller)


def _stop_call(connection: Connection, call: int, worker: int) -> None:
    """Ask for an early end of a call."""
    connection.execute(update(worker_calls).where(_calls.id == call).values(is_stopped=True))
    _wake(connection, worker)


def _delete_call(connection: Connection, call: int) -> None:
    """Delete a call, if it is stored. One that is under way is cancelled."""
    deleted = delete(worker_calls).where(_calls.id == call).returning(_calls.worker, _calls.answer)
    for worker, answer in connection.execute(deleted).all():
        if answer is None:
            _wake(connection, worker)


def _wake_doors(connection: Connection) -> None:
    """Let all workers load the keys and webhooks again, once the transaction is committed."""
    connection.execute(select(func.pg_notify(CALLS_CHANNEL, ALL_DOORS)))


def _wake(connection: Connection, worker: int) -> None:
    connection.execute(select(func.pg_notify(CALLS_CHANNEL, str(worker))))


class CallTable:
    """The calls that one worker makes and answers (`database.worker_id`)."""

    def __init__(self, database: Database) -> None:
        if database.worker_id is None:
            raise ValueError("this process is not among the workers of the database")
        self.worker = database.worker_id
        """The id of this worker."""
        self._database = database

    def next_id(self) -> int:
        """Return the id of a new call."""
        return self._database.next_id()

    async def ask_agent(self, call: int, agent: str, method: str, arguments: str, *, only: int | None = None) -> int | None:
        """Ask the worker that serves an agent (a bare JID). Return its id; None if the agent is free.

        Return `OTHER_WORKER` if it is not the one that `only` names; then none is asked.
        """
        return await self._database.write(
            lambda connection: _add_call(connection, call, self.worker, agent, method, arguments, only=only)
        )

    async def ask_worker(self, call: int, worker: int, method: str, arguments: str) -> int | None:
        """Ask a worker itself. Return its id; None if it has ended."""
        return await self._database.write(
            lambda connection: _add_worker_call(connection, call, self.worker, worker, method, arguments)
        )

    async def read(self, callers: Collection[int]) -> tuple[list[StoredCall], set[int]]:
        """Return the calls that this worker is asked and has not answered, with those that it has made.

        Return also those of the workers `callers` that have not ended.
        """
        return await self._database.read(
            lambda connection: (_read_calls(connection, self.worker), _find_workers(connection, callers))
        )

    async def answer(self, call: StoredCall, answer: str) -> None:
        """Store the answer to a call, unless its caller has ended."""
        await self._database.write(lambda connection: _answer_call(connection, call, answer))

    async def stop(self, call: int, worker: int) -> None:
        """Ask the worker for an early end of a call."""
        await self._database.write(lambda connection: _stop_call(connection, call, worker))

    def delete(self, call: int) -> None:
        """Delete a call, soon. One that is under way is cancelled. Raise StoreError on a closed database."""
        self._database.run(lambda connection: _delete_call(connection, call))

    def wake_doors(self) -> None:
        """Let all workers load the keys and webhooks again, soon, and after all that was written before."""
        self._database.run(_wake_doors)
