"""Schedules: requests that come to an agent at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import ColumnElement, Connection, delete, func, insert, or_, select, update

from ..domain.messages import REPLY_THREAD
from .backends.database import Commit, Database, Row, Rows
from .backends.statements import DELETE_SCHEDULE, MOVE_SCHEDULE
from .records import from_micros, to_micros
from .schema import schedules

WAITING, SUSPENDED = "waiting", "suspended"
"""The states of a schedule. One that is suspended stays until its person has access again, or an operator decides."""

SaveStep: TypeAlias = Callable[[Connection, object], None]
"""A function that stores a result, a JSON value, as that of a durable step, in a transaction of the writer."""


class StoredSchedule(NamedTuple):
    """A row of the table. Times are in microseconds, `origin` and `payload` are JSON texts."""

    id: int
    agent: str
    schedule_id: str
    kind: str
    owner: str
    root: str
    thread: str | None
    origin: str
    payload: str
    cron: str
    zone: str
    missed: str
    state: str
    reason: str
    created_at: int
    due_at: int
    wake_at: int

    @property
    def due(self) -> datetime:
        """The next due time."""
        return from_micros(self.due_at)

    def moved(
        self, due_at: datetime, wake_at: datetime | None = None, state: str = WAITING, reason: str = ""
    ) -> StoredSchedule:
        """Return it with another due time. `wake_at` is when it is looked at, by default then."""
        wake = due_at if wake_at is None else wake_at
        return self._replace(state=state, reason=reason, due_at=to_micros(due_at), wake_at=to_micros(wake))

    @property
    def update(self) -> tuple[int, Row]:
        """The row that stores its state and its due time."""
        return MOVE_SCHEDULE, (self.id, self.state, self.reason, self.due_at, self.wake_at)

    @property
    def deletion(self) -> tuple[int, Row]:
        """The row that deletes it."""
        return DELETE_SCHEDULE, (self.id,)


class ScheduleRepository:
    """The schedules of one agent (a bare JID). Methods raise StoreError if the database fails."""

    def __init__(self, database: Database, agent: str) -> None:
        self._database = database
        self._agent = agent

    def next_id(self) -> int:
        """Return an unused row id."""
        return self._database.next_id()

    async def create(self, new: StoredSchedule, max_of_owner: int, save_step: SaveStep | None = None) -> bool:
        """Store a schedule, unless there is one with its id. Return False if its owner has `max_of_owner` already.

        Otherwise `save_step` stores its id in the same transaction, as the result of the step that makes it.
        """

        def work(connection: Connection) -> bool:
            own = schedules.c.agent == self._agent
            known = select(schedules.c.id).where(own, schedules.c.schedule_id == new.schedule_id)
            if connection.scalar(known) is None:
                of_owner = select(func.count()).select_from(schedules).where(own, schedules.c.owner == new.owner)
                if (connection.scalar(of_owner) or 0) >= max_of_owner:
                    return False
                connection.execute(insert(schedules).values(new._asdict()))
            if save_step is not None:
                save_step(connection, new.schedule_id)
            return True

        return await self._database.write(work)

    def store(self, rows: Rows) -> Commit[bool]:
        """Store rows of schedules in one transaction: updates of those that were not deleted, and deletions."""
        return self._database.submit(rows)

    def resume(self, may_run: Callable[[StoredSchedule], bool]) -> Commit[int]:
        """Let the suspended schedules for which `may_run` returns True wait for their due times again.

        The result is their number. `may_run` is called in the thread of the writer.
        """
        suspended = select(schedules).where(schedules.c.agent == self._agent, schedules.c.state == SUSPENDED)

        def work(connection: Connection) -> int:
            stored = map(StoredSchedule._make, connection.execute(suspended).all())
            ids = [schedule.id for schedule in stored if may_run(schedule)]
            for row_id in ids:
                waiting = update(schedules).where(schedules.c.id == row_id).values(state=WAITING, reason="")
                connection.execute(waiting)
            return len(ids)

        return self._database.run(work)

    async def find(self, schedule_id: str) -> StoredSchedule | None:
        """Return a schedule, or None."""
        found = await self._load(schedules.c.schedule_id == schedule_id)
        return found[0] if found else None

    async def load_due(self, now: datetime, limit: int) -> list[StoredSchedule]:
        """Return at most `limit` schedules that are due, the first due ones first."""
        is_due = schedules.c.state == WAITING, schedules.c.wake_at <= to_micros(now)
        return await self._load(*is_due, order=schedules.c.wake_at, limit=limit)

    async def find_next_due(self) -> datetime | None:
        """Return when the first schedule is to be looked at; None without one."""
        query = (
            select(schedules.c.wake_at)
            .where(schedules.c.agent == self._agent, schedules.c.state == WAITING)
            .order_by(schedules.c.wake_at)
            .limit(1)
        )
        micros = await self._database.read(lambda connection: connection.scalar(query))
        return None if micros is None else from_micros(micros)

    async def load_all(self, owner: str | None = None, *, limit: int | None = None) -> list[StoredSchedule]:
        """Return the schedules of one owner (a bare JID) or of all, the next due ones first: `limit` of them, or all."""
        of_owner = () if owner is None else (schedules.c.owner == owner,)
        return await self._load(*of_owner, limit=limit)

    async def find_by_prefix(self, prefix: str, limit: int = 2) -> list[StoredSchedule]:
        """Return at most `limit` schedules whose ids begin with a text."""
        return await self._load(schedules.c.schedule_id.startswith(prefix, autoescape=True), limit=limit)

    async def load_of_kind(self, kind: str) -> list[StoredSchedule]:
        """Return the schedules of a kind."""
        return await self._load(schedules.c.kind == kind)

    async def load_about(self, person: str) -> Sequence[StoredSchedule]:
        """Return all schedules of a person (a bare JID), and those that a request of theirs led to, oldest first."""
        return await self._load(_is_about(person), order=schedules.c.id)

    async def delete(self, schedule_id: str, owner: str | None = None, save_step: SaveStep | None = None) -> bool:
        """Delete a schedule, of one owner if given. Return False if there is none.

        `save_step` stores that in the same transaction, as the result of a step.
        """
        conditions = [schedules.c.agent == self._agent, schedules.c.schedule_id == schedule_id]
        if owner is not None:
            conditions.append(schedules.c.owner == owner)
        statement = delete(schedules).where(*conditions)

        def work(connection: Connection) -> bool:
            is_deleted = bool(connection.execute(statement).rowcount)
            if save_step is not None:
                save_step(connection, is_deleted)
            return is_deleted

        return await self._database.erase(work)

    async def _load(
        self, *conditions: ColumnElement[bool], order: Any = schedules.c.due_at, limit: int | None = None
    ) -> list[StoredSchedule]:
        query = (
            select(schedules).where(schedules.c.agent == self._agent, *conditions).order_by(order, schedules.c.id).limit(limit)
        )
        rows = await self._database.fetch(query)
        return [StoredSchedule._make(row) for row in rows]


def delete_schedules_about(connection: Connection, agent: str, person: str) -> int:
    """Delete the schedules of a person, and those that a request of theirs led to, in a transaction of the writer."""
    return connection.execute(delete(schedules).where(schedules.c.agent == agent, _is_about(person))).rowcount


def delete_schedules_in(connection: Connection, agent: str, owner: str, thread: str | None) -> int:
    """Delete the schedules that are due in a conversation, and the jobs that it began, in a transaction of the writer.

    Those of `@every` stay.
    """
    if owner == agent:
        return 0
    of_owner = schedules.c.agent == agent, schedules.c.owner == owner
    count = connection.execute(delete(schedules).where(*of_owner, schedules.c.thread == thread)).rowcount
    for row_id, origin_text in connection.execute(select(schedules.c.id, schedules.c.origin).where(*of_owner)).all():
        origin = json.loads(origin_text)
        if REPLY_THREAD in origin and origin[REPLY_THREAD] == thread:
            count += connection.execute(delete(schedules).where(schedules.c.id == row_id)).rowcount
    return count


def _is_about(person: str) -> ColumnElement[bool]:
    return or_(schedules.c.owner == person, schedules.c.root == person)
