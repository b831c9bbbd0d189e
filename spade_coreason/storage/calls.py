"""The calls between workers of one PostgreSQL database: rows of `worker_calls`, and a NOTIFY that wakes the other side.

The caller adds a row, the worker writes its answer, and the caller deletes the row. If one of the two is removed from the
workers, the row goes too, so that the other side notices.

All functions run in a transaction.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection, delete, func, insert, or_, select, update

from .leases import NOW
from .schema import leases, worker_calls, workers

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


def add_call(
    connection: Connection, call: int, caller: int, agent: str, method: str, arguments: str, *, only: int | None = None
) -> int | None:
    """Ask the worker that serves an agent. Return its id; None if the agent is free.

    Return `OTHER_WORKER` if it is not the one that `only` names, and ask nobody.
    """
    worker = connection.scalar(select(leases.c.worker).where(leases.c.agent == agent))
    if only not in (None, worker):
        return OTHER_WORKER
    if worker is not None:
        _add(connection, call, caller, worker, agent, method, arguments)
    return worker


def add_worker_call(connection: Connection, call: int, caller: int, worker: int, method: str, arguments: str) -> int | None:
    """Ask a worker itself. Return its id; None if it has ended."""
    found = connection.scalar(select(workers.c.id).where(workers.c.id == worker))
    if found is not None:
        _add(connection, call, caller, worker, "", method, arguments)
    return found


def _add(connection: Connection, call: int, caller: int, worker: int, agent: str, method: str, arguments: str) -> None:
    values = {"id": call, "caller": caller, "worker": worker, "agent": agent, "method": method, "arguments": arguments}
    connection.execute(insert(worker_calls).values(values))
    _wake(connection, worker)


def read_calls(connection: Connection, worker: int) -> list[StoredCall]:
    """Return the calls of a worker: those that it is asked and has not answered, and those that it has made."""
    is_expired = (workers.c.expires_at < NOW).label("is_expired")
    columns = _calls.id, _calls.caller, _calls.worker, _calls.agent, _calls.method, _calls.arguments, _calls.is_stopped
    query = select(*columns, _calls.answer, is_expired).join(workers, workers.c.id == _calls.worker)
    own = or_(_calls.caller == worker, (_calls.worker == worker) & _calls.answer.is_(None))
    return [StoredCall(*row) for row in connection.execute(query.where(own).order_by(_calls.id))]


def find_workers(connection: Connection, ids: Collection[int]) -> set[int]:
    """Return those of the workers that have not ended."""
    return set(connection.scalars(select(workers.c.id).where(workers.c.id.in_(ids)))) if ids else set()


def answer_call(connection: Connection, call: StoredCall, answer: str) -> None:
    """Store the answer to a call, unless its caller has ended, and wake the caller."""
    connection.execute(update(worker_calls).where(_calls.id == call.id).values(answer=answer))
    _wake(connection, call.caller)


def stop_call(connection: Connection, call: int, worker: int) -> None:
    """Ask for an early end of a call."""
    connection.execute(update(worker_calls).where(_calls.id == call).values(is_stopped=True))
    _wake(connection, worker)


def delete_call(connection: Connection, call: int, worker: int) -> None:
    """Delete a call. One that is under way is cancelled."""
    deleted = delete(worker_calls).where(_calls.id == call).returning(_calls.answer)
    if None in connection.scalars(deleted).all():
        _wake(connection, worker)


def wake_doors(connection: Connection) -> None:
    """Let all workers load the keys and webhooks again, once the transaction is committed."""
    connection.execute(select(func.pg_notify(CALLS_CHANNEL, ALL_DOORS)))


def _wake(connection: Connection, worker: int) -> None:
    connection.execute(select(func.pg_notify(CALLS_CHANNEL, str(worker))))
