"""The leases of several workers on one PostgreSQL database: who is alive, and who serves which agent.

A worker has one lease, its row in `workers`, and renews it on the clock of the database. Each of its transactions reads that
row with a lock (`make_fence`), for which a deletion waits, but no renewal. So once another worker has deleted the row, nothing
of this one is stored any more, and the other may serve its agents.

A function with a `connection` runs in a transaction. Those that change who serves what hold a lock that only one of them has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, delete, insert, select, text, update

from ...contracts.times import utc_now
from ..backends.database import Database
from ..backends.dialect_sql import insert_or_skip
from ..backends.sequences import take_row_ids
from ..crashes import RunningRequests, count_crash, record_lost_worker, store_kept
from ..schema import leases, workers
from .mailbox import EVERYBODY, LEASES_CHANGED

RINGS = "rings"
"""The key in the `info` of a connection of what is to be rung."""
NOW = text("(extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
"""The time of the database in microseconds. That of a transaction would be older, if it has waited for a lock."""
_CHANGED = "a command changes it"
_CHANGE_LOCK = text("SELECT 1 FROM compatibility FOR UPDATE")
"""Lock the one row that is locked by nothing else. Its owner is the transaction, with which the lock ends."""
_TRY_CHANGE_LOCK = text("SELECT 1 FROM compatibility FOR UPDATE SKIP LOCKED")
_END_SESSION = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE application_name = {} AND datname = current_database() AND usename = current_user"
)

RENEW_SQL = f"""
    UPDATE workers SET expires_at = now_micros + $2, snapshot = coalesce($3, snapshot),
        reaches_server = $4, reach_began_at = now_micros - $5, reach_ended_at = now_micros - $6
    FROM (SELECT {NOW.text} AS now_micros) AS clock
    WHERE id = $1 RETURNING id
"""
"""Renew the lease of worker $1 for $2 microseconds. No row comes back if the lease is lost.

$3 is its snapshot, or NULL if that has not changed.
$4 is True if it reaches the XMPP server, False if it does not, and None if it has not looked. The microseconds since then are
$5 and $6 (see `Reach`).
"""


def make_fence(worker: int) -> str:
    """Return the statements that begin a transaction of a worker. Their last status is `SELECT 0` if its lease is lost."""
    return f"BEGIN; SELECT 1 FROM workers WHERE id = {worker} FOR KEY SHARE"


def name_session(worker: int) -> str:
    """Return the SQL of the `application_name` of the session in which a worker has its transactions.

    Other schemas have workers with the same ids. PostgreSQL cuts a name after 63 bytes, so that of the schema is hashed.
    """
    return f"'spade-coreason worker {worker:d} in ' || hashtext(current_schema()::text)"


class WorkerTerms(NamedTuple):
    """The name of a worker for people, and the time in seconds for which each renewal of its lease holds.

    One that does not `serve` takes no agents: it is a command of an operator.
    """

    name: str
    lease_s: float
    serves: bool = True

    @property
    def lease_micros(self) -> int:
        """The time in microseconds."""
        return round(self.lease_s * 1_000_000)


class Reach(NamedTuple):
    """The result of a worker's look for the XMPP server. Times are of one clock, in any unit.

    If it reaches the server, it has done so from the first time to the second. If not, its last attempt took that time.
    """

    is_reached: bool
    began_at: float
    ended_at: float


class Worker(NamedTuple):
    """A worker as the database knows it. Times are microseconds of its clock; `snapshot` is what the worker told last.

    Its lease ends in `left_micros`. `is_away` is True while it does not reach the XMPP server, but another one does.
    """

    id: int
    name: str
    started_at: int
    is_expired: bool
    is_leaving: bool
    snapshot: Mapping[str, Any]
    left_micros: int = 0
    is_away: bool = False
    reach: Reach | None = None


class Lease(NamedTuple):
    """The worker of an agent (a bare JID), by its id; None if it is free. `reason` is that of the last change.

    `lost_worker` is the name of the worker from which it was last taken over, at `lost_at`.
    """

    agent: str
    worker: int | None
    changed_at: int
    reason: str
    was_handed_over: bool
    lost_worker: str | None
    lost_at: int | None
    lost_reason: str | None
    manifest_version: int
    """The number of changes of the manifest that doors show."""

    @property
    def is_lost(self) -> bool:
        """True if it is free, and its next worker takes it over."""
        return self.worker is None and self.lost_at is not None and self.reason == self.lost_reason


_SELECT_LEASES = select(*(leases.c[name] for name in Lease._fields))
_SELECT_WORKERS = select(workers, (workers.c.expires_at - NOW).label("left_micros"))


class LeaseState(NamedTuple):
    """All workers and leases at one moment."""

    workers: Sequence[Worker]
    leases: Mapping[str, Lease]

    @property
    def active(self) -> list[Worker]:
        """The workers that take agents."""
        return [worker for worker in self.workers if not (worker.is_expired or worker.is_leaving)]

    def is_away(self, worker: int) -> bool:
        """Return True while a worker does not reach the XMPP server, but another one does."""
        return any(known.is_away for known in self.workers if known.id == worker)

    def get_reach(self, worker: int) -> Reach | None:
        """Return what a worker found when it looked for the XMPP server; None if it has not looked."""
        return next((known.reach for known in self.workers if known.id == worker), None)


class Reaped(NamedTuple):
    """A worker that was taken for dead, with its agents. It served these, but for those that it had claimed for a change."""

    name: str
    agents: tuple[str, ...]
    served: tuple[str, ...]


def add_worker(connection: Connection, terms: WorkerTerms) -> int:
    """Add a worker with a lease, and return its id."""
    worker = take_row_ids(connection, 1)[0]
    expires_at = text(f"{NOW.text} + {terms.lease_micros:d}")
    values = {"id": worker, "name": terms.name, "is_leaving": not terms.serves}
    connection.execute(insert(workers).values(values | {"started_at": NOW, "expires_at": expires_at}))
    return worker


def read_leases(connection: Connection) -> LeaseState:
    """Return all workers and leases."""
    found = [_read_worker(row) for row in connection.execute(_SELECT_WORKERS.order_by(workers.c.id))]
    return LeaseState(found, {row.agent: Lease(*row) for row in connection.execute(_SELECT_LEASES.order_by(leases.c.agent))})


def find_owner(connection: Connection, agent: str) -> tuple[Lease | None, Worker | None]:
    """Return the lease of an agent, if there is one, and the worker that serves it."""
    row = connection.execute(_SELECT_LEASES.where(leases.c.agent == agent)).one_or_none()
    if row is None:
        return None, None
    found = connection.execute(_SELECT_WORKERS.where(workers.c.id == row.worker)).one_or_none()
    return Lease(*row), None if found is None else _read_worker(found)


def _read_worker(row: Any) -> Worker:
    return Worker(
        row.id,
        row.name,
        row.started_at,
        row.left_micros < 0,
        row.is_leaving,
        json.loads(row.snapshot or "{}"),
        row.left_micros,
        row.is_away,
        None if row.reaches_server is None else Reach(row.reaches_server, row.reach_began_at, row.reach_ended_at),
    )


class Takeover(NamedTuple):
    """The last time that agents were taken over: the name of the worker that had them, why, and when (microseconds)."""

    worker: str
    reason: str
    at: int
    agents: Sequence[str]
    """The agents that no other takeover has concerned since."""


def find_last_takeover(state: LeaseState) -> Takeover | None:
    """Return the last takeover of which the leases know; None without one."""
    found = [lease for lease in state.leases.values() if lease.lost_at is not None]
    if not found:
        return None
    last = max(found, key=lambda lease: lease.lost_at or 0)
    same = [lease for lease in found if (lease.lost_worker, lease.lost_reason) == (last.lost_worker, last.lost_reason)]
    return Takeover(last.lost_worker or "", last.lost_reason or "", last.lost_at or 0, [lease.agent for lease in same])


def lock_changes(connection: Connection) -> None:
    """Be the only one that changes who serves what, until the transaction ends."""
    connection.execute(_CHANGE_LOCK)


def add_agents(connection: Connection, agents: Sequence[str]) -> None:
    """Add agents that no worker has served yet. They are free."""
    values = [{"agent": agent, "reason": "new", "was_handed_over": False} for agent in agents]
    connection.execute(insert_or_skip(leases).values(changed_at=NOW), values)


def claim(connection: Connection, worker: int, agents: Collection[str], reason: str) -> list[str]:
    """Let a worker serve agents, those of them that are free. Return these."""
    values = {"worker": worker, "changed_at": NOW, "reason": reason}
    free = update(leases).where(leases.c.agent.in_(agents), leases.c.worker.is_(None))
    return list(connection.scalars(free.values(values).returning(leases.c.agent)))


def release(connection: Connection, worker: int, agent: str, reason: str, *, is_lost: bool = False) -> None:
    """Free an agent that a worker serves, and wake the others. With `is_lost` the next one takes it over."""
    own = update(leases).where(leases.c.agent == agent, leases.c.worker == worker)
    values = {"worker": None, "changed_at": NOW, "reason": reason, "was_handed_over": True}
    connection.execute(own.values(values | (_make_lost(reason) if is_lost else {})))
    wake_others(connection)


def wake_others(connection: Connection) -> None:
    """Let all workers look at the leases, once the transaction is committed."""
    ring(connection, EVERYBODY, LEASES_CHANGED)


def ring(connection: Connection, address: str, message: str) -> None:
    """Ring the bell of a worker, or those of `EVERYBODY`, once the transaction is committed.

    A NOTIFY in the transaction would wait for those of others, and fail with them.
    """
    connection.info.setdefault(RINGS, set()).add((address, message))


def remove_worker(connection: Connection, worker: int, reason: str) -> None:
    """Remove a worker that has ended. Its agents are free."""
    _free_agents(connection, worker, reason)
    connection.execute(delete(workers).where(workers.c.id == worker))
    wake_others(connection)


def reap(connection: Connection) -> list[Reaped]:
    """Remove the workers whose leases have expired, and free their agents.

    One in the middle of a transaction is left for the next time, and its session is ended: a worker that hangs between two
    messages to PostgreSQL would hold its row for ever.
    """
    is_expired = workers.c.expires_at < NOW
    expired = select(workers.c.id, workers.c.name).where(is_expired).with_for_update(skip_locked=True)
    reaped = []
    found = connection.execute(expired).all()
    _end_sessions(connection, is_expired, workers.c.id.not_in([worker.id for worker in found]))
    for worker in found:
        claimed = select(leases.c.agent).where(leases.c.worker == worker.id, leases.c.reason == _CHANGED)
        not_served = set(connection.scalars(claimed))
        agents = _free_agents(connection, worker.id, f"{worker.name} did not renew its lease")
        connection.execute(delete(workers).where(workers.c.id == worker.id))
        reaped.append(Reaped(worker.name, tuple(agents), tuple(set(agents) - not_served)))
    if reaped:
        wake_others(connection)
    return reaped


def _end_sessions(connection: Connection, *conditions: ColumnElement[bool]) -> None:
    for worker in connection.scalars(select(workers.c.id).where(*conditions)).all():
        connection.execute(text(_END_SESSION.format(name_session(worker))))


def replace_lost_workers(connection: Connection) -> list[Reaped]:
    """Free the agents of workers that are dead, in a transaction that may then claim agents. Return these workers."""
    if not connection.scalar(_TRY_CHANGE_LOCK):
        _end_sessions(connection, workers.c.expires_at < NOW)  # one of them may hang while it holds the lock
        lock_changes(connection)
    reaped = reap(connection)
    for worker in reaped:
        if worker.served:
            record_lost_worker(connection, worker.served, utc_now())
    return reaped


def _make_lost(reason: str) -> dict[str, Any]:
    name = select(workers.c.name).where(workers.c.id == leases.c.worker).scalar_subquery()
    return {"lost_worker": name, "lost_at": NOW, "lost_reason": reason}


def _free_agents(connection: Connection, worker: int, reason: str) -> list[str]:
    values = {"worker": None, "changed_at": NOW, "reason": reason, "was_handed_over": False}
    freed = update(leases).where(leases.c.worker == worker).values(values | _make_lost(reason))
    return list(connection.scalars(freed.returning(leases.c.agent)))


class Leases:
    """The leases as one worker of a database changes them (`database.worker_id`)."""

    def __init__(self, database: Database) -> None:
        if database.worker_id is None:
            raise ValueError("this process is not among the workers of the database")
        self.worker = database.worker_id
        """The id of this worker."""
        self._database = database

    async def read(self) -> LeaseState:
        """Return all workers and leases."""
        return await self._database.read(read_leases)

    async def is_oldest(self) -> bool:
        """Return True if this worker has started before all others that take agents."""
        return [worker.id for worker in (await self.read()).active][:1] == [self.worker]

    async def add_agents(self, agents: Sequence[str]) -> None:
        """Add agents that no worker has served yet."""
        await self._database.write(lambda connection: add_agents(connection, agents))

    async def change(
        self, choose: Callable[[LeaseState], Sequence[str]], *, replaces: bool = True
    ) -> tuple[list[str], list[Reaped]]:
        """Replace the workers that are dead, and take the free agents that `choose` then chooses, in one transaction.

        Return the agents that were taken, and the dead workers. The requests that may have killed these are counted. Without
        `replaces` no worker is replaced.
        """

        def work(connection: Connection) -> tuple[list[str], list[Reaped]]:
            if replaces:
                reaped = replace_lost_workers(connection)
            else:
                lock_changes(connection)
                reaped = []
            chosen = choose(read_leases(connection))
            return claim(connection, self.worker, chosen, "its share") if chosen else [], reaped

        return await self._database.write(work)

    async def find_start(self) -> int:
        """Return when this worker has started (microseconds). A worker of another database with its id has another time."""
        query = select(workers.c.started_at).where(workers.c.id == self.worker)
        return await self._database.read(lambda connection: int(connection.execute(query).scalar_one()))

    async def replace(self, predecessor: Sequence[int], running: RunningRequests, blocking_row: int, *, is_stop: bool) -> None:
        """Replace a worker that has died, unless another one has done so already and has counted its requests.

        Otherwise store what it has kept in `running`, and count a crash or a stop for what ran, as `record_crash` does.
        `predecessor` is its id, and when it has started: a restored database gives the same ids again.
        """
        kept, rows = running.kept, running.rows
        worker, *started_at = predecessor
        query = select(workers.c.id).where(workers.c.id == worker, *(workers.c.started_at == start for start in started_at))

        def work(connection: Connection) -> None:
            lock_changes(connection)
            if connection.scalar(query) is not None:
                store_kept(connection, kept)
                count_crash(connection, rows, utc_now(), blocking_row, is_stop=is_stop)
                remove_worker(connection, worker, "its worker has started again")

        await self._database.write(work)

    async def release(self, agent: str, reason: str, *, is_lost: bool = False, cut_off: Collection[int] = ()) -> None:
        """Free an agent that this worker serves. With `is_lost` the next one takes it over.

        Count a stop for the requests whose turns were cut off, by their rows in the inbox.
        """

        def work(connection: Connection) -> None:
            if cut_off:
                count_crash(connection, cut_off, utc_now(), is_stop=True)
            release(connection, self.worker, agent, reason, is_lost=is_lost)

        await self._database.write(work)

    async def find_owner(self, agent: str) -> tuple[Lease | None, Worker | None]:
        """Return the lease of an agent, if there is one, and the worker that serves it."""
        return await self._database.read(lambda connection: find_owner(connection, agent))

    async def claim_for_change(self, agent: str, *, replaces: bool) -> Worker | None:
        """Let no worker take an agent that is free, until `release_claimed`. Return the worker that has it: this one then.

        With `replaces` the workers that are dead are replaced before.
        """

        def work(connection: Connection) -> Worker | None:
            if replaces:
                replace_lost_workers(connection)
            else:
                lock_changes(connection)
            add_agents(connection, [agent])
            claim(connection, self.worker, [agent], _CHANGED)
            return find_owner(connection, agent)[1]

        return await self._database.write(work)

    async def release_claimed(self) -> None:
        """Free the agents that this worker has claimed for a change, and remove it from the workers."""

        def work(connection: Connection) -> None:
            own = update(leases).where(leases.c.worker == self.worker)
            connection.execute(own.values(worker=None, changed_at=NOW, reason=_CHANGED))
            remove_worker(connection, self.worker, _CHANGED)

        await self._database.write(work)

    async def save_cards(self, cards: Mapping[str, str]) -> None:
        """Store what other workers have to know of agents that this one serves, as JSON."""
        await self._save({agent: {"card": card, "card_at": NOW} for agent, card in cards.items()})

    async def read_cards(self, since: int) -> tuple[list[tuple[str, str, int]], dict[str, int]]:
        """Return the agents whose cards have changed since a time in microseconds, with the cards and the times.

        Return also the worker of each agent that has one.
        """

        def work(connection: Connection) -> tuple[list[tuple[str, str, int]], dict[str, int]]:
            changed = select(leases.c.agent, leases.c.card, leases.c.card_at).where(leases.c.card_at > since)
            owners = select(leases.c.agent, leases.c.worker).where(leases.c.worker.is_not(None))
            return list(map(tuple, connection.execute(changed))), dict(map(tuple, connection.execute(owners)))

        return await self._database.read(work, is_background=True)

    async def save_manifests(self, manifests: Mapping[str, str]) -> None:
        """Store the manifests of agents that this worker serves, as JSON, for the doors of other workers."""
        version = leases.c.manifest_version + 1
        await self._save({agent: {"manifest": text, "manifest_version": version} for agent, text in manifests.items()})

    async def _save(self, values: Mapping[str, Mapping[str, object]]) -> None:
        """Store values of agents, of those that this worker still serves, and wake the others."""

        def work(connection: Connection) -> None:
            for agent, columns in values.items():
                own = update(leases).where(leases.c.agent == agent, leases.c.worker == self.worker)
                connection.execute(own.values(columns))
            wake_others(connection)

        await self._database.write(work)

    async def load_manifests(self, agents: Collection[str]) -> dict[str, tuple[int, str]]:
        """Return the manifests of agents with their versions, of those that have one."""
        columns = leases.c.agent, leases.c.manifest_version, leases.c.manifest
        query = select(*columns).where(leases.c.agent.in_(agents), leases.c.manifest.is_not(None))
        rows = await self._database.fetch(query)
        return {row.agent: (row.manifest_version, row.manifest) for row in rows}

    async def set(self, **values: bool) -> None:
        """Store states of this worker, and wake the others.

        `is_away`: it does not reach the XMPP server, but another one does. `is_leaving`: it takes no part in the shares.
        """

        def work(connection: Connection) -> None:
            connection.execute(update(workers).where(workers.c.id == self.worker).values(values))
            wake_others(connection)

        await self._database.write(work)

    async def remove(self, worker: int, reason: str) -> None:
        """Remove a worker that has ended: this one, or one that has died. Its agents are free."""
        await self._database.write(lambda connection: remove_worker(connection, worker, reason))

    async def list_handed_over(self, agents: Collection[str]) -> list[str]:
        """Return those of the agents whose last worker gave them back."""
        query = select(leases.c.agent).where(leases.c.agent.in_(agents), leases.c.was_handed_over)
        return await self._database.fetch_scalars(query)
