"""The numbers of stored conversations, notifications, schedules and questions of all agents, for metrics."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import Connection, Select, Table, func, select

from ..contracts import QuestionState
from .backends.database import Database
from .schema import conversations, notifications, parked_requests, questions, schedules

CountsByState: TypeAlias = dict[tuple[str, str], int]
"""Numbers by agent (a bare JID) and state."""


class StoredCounts(NamedTuple):
    """The numbers of stored rows. A pair of agent and state without any is missing."""

    conversations: CountsByState
    notifications: CountsByState
    schedules: CountsByState
    open_questions: dict[str, int]
    parked_requests: dict[str, int]


async def count_stored(database: Database) -> StoredCounts:
    """Count the rows of all agents, in one transaction that no turn waits for. Raise StoreError."""
    return await database.read(_count, is_background=True)


def _count(connection: Connection) -> StoredCounts:
    is_open = questions.c.state == QuestionState.OPEN.value
    return StoredCounts(
        _count_by_state(connection, conversations),
        _count_by_state(connection, notifications),
        _count_by_state(connection, schedules),
        _count_by_agent(connection, select(questions.c.agent, func.count()).where(is_open).group_by(questions.c.agent)),
        _count_by_agent(connection, select(parked_requests.c.agent, func.count()).group_by(parked_requests.c.agent)),
    )


def _count_by_state(connection: Connection, table: Table) -> CountsByState:
    query = select(table.c.agent, table.c.state, func.count()).group_by(table.c.agent, table.c.state)
    return {(agent, state): number for agent, state, number in connection.execute(query)}


def _count_by_agent(connection: Connection, query: Select[Any]) -> dict[str, int]:
    return {row[0]: row[1] for row in connection.execute(query)}
