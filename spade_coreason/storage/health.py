"""How a database is: whether it is whole, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, select, text

from . import audit, schema
from .database import Database
from .schema import conversations, inbox, interactions

_MAX_PROBLEMS = 20


@dataclass(frozen=True, slots=True)
class Health:
    """`problems` are one line each, at most 20; `rows` by table; `received` and `answered` are requests that are not closed."""

    database: str
    schema: str
    rows: dict[str, int]
    received: int
    answered: int
    problems: tuple[str, ...]


async def check_health(database: Database) -> Health:
    """Reads everything once, beside whoever writes; of a large database that takes a while."""
    return await database.read(lambda connection: _check_health(connection, database.name))


def _check_health(connection: Connection, name: str) -> Health:
    tables = schema.metadata.sorted_tables
    rows = {table.name: connection.execute(select(func.count()).select_from(table)).scalar_one() for table in tables}
    states = select(inbox.c.state, func.count().label("number")).group_by(inbox.c.state)
    waiting = {row.state: row.number for row in connection.execute(states)}
    problems = [*_find_damage(connection), *_find_contradictions(connection), *_find_audit_problems(connection)]
    return Health(name, schema.REVISION, rows, waiting.get(0, 0), waiting.get(1, 0), tuple(problems[:_MAX_PROBLEMS]))


def _find_damage(connection: Connection) -> list[str]:
    """What SQLite says of its file; a PostgreSQL server looks after its own."""
    if connection.dialect.name != "sqlite":
        return []
    found = connection.execute(text(f"PRAGMA integrity_check({_MAX_PROBLEMS})")).scalars().all()
    return [" ".join(line.split()) for line in found if line != "ok"]


def _find_contradictions(connection: Connection) -> list[str]:
    """Turns without a conversation, and conversations whose turns are not as they are numbered."""
    lost = (
        select(func.count())
        .select_from(interactions.outerjoin(conversations, conversations.c.id == interactions.c.conversation))
        .where(conversations.c.id.is_(None))
    )
    number = connection.execute(lost).scalar_one()
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
    wrong = (
        select(conversations.c.conversation_id, conversations.c.turns.label("said"), stored)
        .join(stored, stored.c.conversation == conversations.c.id)
        .where((stored.c.newest != conversations.c.turns) | (stored.c.newest - stored.c.oldest + 1 != stored.c.turns))
        .limit(_MAX_PROBLEMS)
    )
    for row in connection.execute(wrong):
        numbered = f"{row.turns} turns are stored, numbered {row.oldest} to {row.newest}"
        problems.append(f"{row.conversation_id}: {numbered}, and the newest should be {row.said}")
    return problems


def _find_audit_problems(connection: Connection) -> list[str]:
    """What is wrong with the audit trails."""
    verdicts = ((agent, audit.verify(connection, agent)) for agent in audit.list_audited_agents(connection))
    return [f"audit trail of {agent}: {problem}" for agent, verdict in verdicts for problem in verdict.problems]
