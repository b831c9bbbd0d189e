"""Erasure, export, retention, lists and counts of the rows of all tables, by their meaning to people (`schema.KEPT`).

A function with a connection runs inside a transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import reduce
from operator import getitem
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, CompoundSelect, Connection, Table, and_, delete, func, or_, select, true, union, update

from ..contracts.times import format_rfc3339
from ..domain.texts.json_text import read_json
from .backends.database import Database
from .records import from_micros, to_micros
from .schema import KEPT, Json, Kept, Time, inbox

CountsByState: TypeAlias = dict[tuple[str, str], int]
"""Numbers by agent (a bare JID) and state. A pair without any is missing."""


def erase_person(connection: Connection, agent: str, person: str) -> Counter[str]:
    """Erase the rows about a person (a bare JID), but those whose erasure is special. Return the numbers by `Kept.count`."""
    erased = Counter[str]()
    for table, kept in KEPT:
        if kept.people and kept.erasure in ("deletes", "blanks"):
            change = delete(table) if kept.blank is None else update(table).values(**kept.blank)
            erased[kept.count] += connection.execute(
                change.where(_own(table, kept, agent), _about(table, kept, person))
            ).rowcount
    return erased


def erase_conversation(connection: Connection, agent: str, conversation_id: str) -> Counter[str]:
    """Delete the rows of a conversation. Return the numbers by `Kept.count`."""
    erased = Counter[str]()
    for table, kept in KEPT:
        if kept.conversation:
            is_there = table.c[kept.conversation] == conversation_id
            erased[kept.count] += connection.execute(delete(table).where(_own(table, kept, agent), is_there)).rowcount
    return erased


def erase_due(connection: Connection, agent: str, owner: str, thread: str | None) -> Counter[str]:
    """Delete what is due in a conversation, given by its owner and its thread. Return the numbers by `Kept.count`."""
    erased = Counter[str]()
    for table, kept in KEPT:
        if kept.place:
            is_there = [table.c[name] == value for name, value in zip(kept.place.split(), (owner, thread), strict=True)]
            erased[kept.count] += connection.execute(delete(table).where(_own(table, kept, agent), *is_there)).rowcount
    return erased


def purge(connection: Connection, agent: str, now: datetime) -> None:
    """Delete the rows of an agent whose time is over."""
    for table, kept in KEPT:
        if kept.days is not None:
            column, days = kept.days
            is_over = _own(table, kept, agent), table.c[column] < to_micros(now - timedelta(days=days))
            connection.execute(delete(table).where(*is_over, *([table.c.state != kept.waiting] if kept.waiting else [])))


def select_people(agent: str) -> CompoundSelect[Any]:
    """Return the query of everyone about whom an agent stores anything."""
    found = (
        select(table.c[name]).where(_own(table, kept, agent), table.c[name].not_in(["", agent]))
        for table, kept in KEPT
        for name in _listed(kept)
    )
    return union(*found)


def select_agents() -> CompoundSelect[Any]:
    """Return the query of the agents with any stored data besides requests, in alphabetical order. The platform is none."""
    tables = dict.fromkeys(table for table, kept in KEPT if _listed(kept) and table is not inbox)
    return union(*(select(table.c.agent).where(table.c.agent.contains("@")) for table in tables)).order_by("agent")


async def count_stored(database: Database, agents: Sequence[str] | None = None, *names: str) -> dict[str, CountsByState]:
    """Count the rows of agents by name, in one transaction that no turn waits for: by default of all agents, all names.

    Raise StoreError.
    """

    def count(connection: Connection, table: Table, kept: Kept) -> CountsByState:
        columns = table.c.agent, table.c[kept.state]
        is_own = true() if agents is None else table.c.agent.in_(agents)
        rows = connection.execute(select(*columns, func.count()).where(_is_of(table, kept), is_own).group_by(*columns))
        return {(agent, value): number for agent, value, number in rows}

    def work(connection: Connection) -> dict[str, CountsByState]:
        found = ((kept.name or table.name, table, kept) for table, kept in KEPT if kept.state)
        return {name: count(connection, table, kept) for name, table, kept in found if not names or name in names}

    return await database.read(work, is_background=True)


def load_shown(connection: Connection, agent: str, person: str) -> dict[str, list[dict[str, Any]]]:
    """Return the rows about a person (a bare JID) that an export shows, by name, the oldest first."""
    return {kept.name or table.name: list(_show(connection, table, kept, agent, person)) for table, kept in KEPT if kept.shown}


def _show(connection: Connection, table: Table, kept: Kept, agent: str, person: str) -> Iterator[dict[str, Any]]:
    about = _own(table, kept, agent), _about(table, kept, person)
    for row in connection.execute(select(table).where(*about).order_by(*table.primary_key.columns)).mappings():
        shown = {}
        for each in kept.shown.split():
            name, _, source = each.partition("=")
            column, *path = (source or name).split(".")
            if column in kept.people.split():
                shown[f"is_to_{name}"] = row[column] == person
            else:
                shown[name] = reduce(getitem, path, _show_value(table, column, row[column]))
        yield shown


def _show_value(table: Table, name: str, value: Any) -> Any:
    kind = table.c[name].info["kind"]
    if value is None or kind not in (Time, Json):
        return value
    return format_rfc3339(from_micros(value)) if kind is Time else read_json(value)


def _own(table: Table, kept: Kept, agent: str) -> ColumnElement[bool]:
    return and_(table.c.agent == agent, _is_of(table, kept))


def _is_of(table: Table, kept: Kept) -> ColumnElement[bool]:
    if kept.only is None:
        return true()
    column, values = kept.only
    others = [value for of, other in KEPT if of is table and other.only is not None for value in other.only[1].split()]
    return table.c[column].in_(values.split()) if values else table.c[column].not_in(others)


def _about(table: Table, kept: Kept, person: str) -> ColumnElement[bool]:
    return or_(*(table.c[name] == person for name in kept.people.split()))


def _listed(kept: Kept) -> list[str]:
    return (kept.people if kept.listed is None else kept.listed).split()
