"""Health checks of a database: its integrity and its contents."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice

from sqlalchemy import Connection, func, select, text

from .. import audit, schema
from ..schema import ANSWERED, RECEIVED, conversations, inbox, interaction_memory, interactions
from .database import Database

_MAX_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a database: the result of `check_health`.

    `rows` holds the number of rows by table. `received` and `answered` count the requests that are not closed. `problems` has
    one line per problem, at most 20.
    """

    database: str
    schema: str
    rows: dict[str, int]
    received: int
    answered: int
    problems: tuple[str, ...]


async def check_health(database: Database) -> Health:
    """Read the whole database once, beside the writer. A large database takes a while."""
    return await database.read(lambda connection: _check_health(connection, database))


def _check_health(connection: Connection, database: Database) -> Health:
    counts = ((table.name, select(func.count()).select_from(table)) for table in schema.DATA_TABLES)
    rows = {name: connection.execute(count).scalar_one() for name, count in counts}
    states = select(inbox.c.state, func.count().label("number")).group_by(inbox.c.state)
    by_state = {row.state: row.number for row in connection.execute(states)}
    problems = [*_find_damage(connection), *_find_contradictions(connection), *_find_audit_problems(connection)]
    problems += _find_memory_problems(connection)
    received, answered = by_state.get(RECEIVED, 0), by_state.get(ANSWERED, 0)
    return Health(database.name, database.schema.revision, rows, received, answered, tuple(problems[:_MAX_PROBLEMS]))


def _find_damage(connection: Connection) -> list[str]:
    """Return the problems that SQLite finds in its file. A PostgreSQL server checks its own files."""
    if connection.dialect.name != "sqlite":
        return []
    lines = connection.execute(text(f"PRAGMA integrity_check({_MAX_PROBLEMS})")).scalars().all()
    return [" ".join(line.split()) for line in lines if line != "ok"]


def _find_contradictions(connection: Connection) -> list[str]:
    """Return the turns without a conversation, and the conversations whose turns have gaps in their numbers."""
    orphans = (
        select(func.count())
        .select_from(interactions.outerjoin(conversations, conversations.c.id == interactions.c.conversation))
        .where(conversations.c.id.is_(None))
    )
    number = connection.execute(orphans).scalar_one()
    problems = [f"{number} turns belong to no conversation"] if number else []
    stored = (
        select(
            interactions.c.conversation,
            func.max(interactions.c.number).label("newest"),
            func.min(interactions.c.number).label("oldest"),
            func.count().label("turns"),
        )
        .group_by(interactions.c.conversation)
        .subquery()
    )
    inconsistent = (
        select(conversations.c.conversation_id, conversations.c.turns.label("expected"), stored)
        .join(stored, stored.c.conversation == conversations.c.id)
        .where((stored.c.newest != conversations.c.turns) | (stored.c.newest - stored.c.oldest + 1 != stored.c.turns))
        .limit(_MAX_PROBLEMS)
    )
    for row in connection.execute(inconsistent):
        numbers = f"{row.turns} turns are stored, numbered {row.oldest} to {row.newest}"
        problems.append(f"{row.conversation_id}: {numbers}; the newest should have the number {row.expected}")
    return problems


def _find_memory_problems(connection: Connection) -> list[str]:
    """Return the entries of interaction memories that are no JSON of an entry."""
    query = select(interaction_memory).order_by(interaction_memory.c.id).execution_options(yield_per=1000)
    damaged = (row for row in connection.execute(query) if not _is_entry(row.entry))
    return [f"interaction memory of {row.agent}: row {row.id} is no entry" for row in islice(damaged, _MAX_PROBLEMS)]


def _is_entry(text: str) -> bool:
    try:
        entry = json.loads(text)
    except ValueError:
        return False
    return isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in ("content", "timestamp"))


def _find_audit_problems(connection: Connection) -> list[str]:
    """Return the problems of all audit trails."""
    results = ((agent, audit.verify(connection, agent)) for agent in audit.list_audited_agents(connection))
    return [f"audit trail of {agent}: {problem}" for agent, result in results for problem in result.problems]
