"""The statements of a turn, as text for the drivers; a transaction runs those that write in this order, for many rows.

SQLAlchemy writes each of them for one row, and it is extended here to the rows of a batch. On SQLite these are the VALUES of
one statement: Python's sqlite3 gives the interpreter lock away at every row of an `executemany`, and has to win it back from
the event loop each time. On PostgreSQL they are arrays, one for each column: one round trip, one prepared statement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from sqlalchemy import ClauseElement, Dialect, Table, bindparam, literal_column, select, update
from sqlalchemy.dialects import sqlite

from .schema import conversations, inbox, interactions, variables

RECEIVE, RECEIVE_ANSWERED, SAVE_CONVERSATION, ADD_INTERACTION, SAVE_VARIABLE, ANSWER, CLOSE = range(7)
STATEMENTS = range(7)
MAX_ROWS = 16
"""Of one statement on SQLite. Each number of rows is a statement of its own: with 64 of them they took more than they saved."""

# What the rows of an update are called in it.
_ROWS = "batch"
_UPDATES = {
    ANSWER: ({"state": f"{_ROWS}.state", "answer": f"{_ROWS}.answer", "request": "NULL"}, ["id", "state", "answer"]),
    CLOSE: ({"state": "2", "answer": "NULL", "request": "NULL"}, ["id"]),
}


def _compile(statement: ClauseElement, parameters: Sequence[str], dialect: Dialect) -> str:
    """The SQL of `statement`, which takes tuples in the order of `parameters`."""
    compiled = statement.compile(dialect=dialect)
    order = list(getattr(compiled, "positiontup", None) or ())
    if order != list(parameters):
        raise AssertionError(f"{compiled} takes {order}, not {list(parameters)}")
    return str(compiled)


def _column_names(table: Table) -> list[str]:
    return [column.name for column in table.columns]


InsertFunction = Callable[[Table], Any]
"""`insert` of a dialect."""


def _insert(insert: InsertFunction, table: Table, names: Sequence[str]) -> Any:
    return insert(table).values({name: bindparam(name, type_=table.c[name].type) for name in names})


def _upsert(insert: InsertFunction, table: Table, key: Sequence[str], fixed: Sequence[str] = ()) -> Any:
    """`fixed` are the columns that stay what they were: naming them would write their indexes again, with what is in them."""
    names = _column_names(table)
    statement = _insert(insert, table, names)
    changed = {name: statement.excluded[name] for name in names if name not in (*key, *fixed)}
    return statement.on_conflict_do_update(index_elements=list(key), set_=changed)


_FIXED_CONVERSATION_COLUMNS = ["agent", "conversation_id", "owner", "session_id", "created_at"]
_RECEIVED_COLUMNS = ["id", "agent", "key", "sender", "received_at", "state", "request"]
_ANSWERED_COLUMNS = [*_RECEIVED_COLUMNS[:-1], "answer"]


KEY_COLUMNS: dict[int, slice] = {
    RECEIVE: slice(0, 1),
    RECEIVE_ANSWERED: slice(0, 1),
    SAVE_CONVERSATION: slice(0, 1),
    ADD_INTERACTION: slice(0, 1),
    SAVE_VARIABLE: slice(0, 4),
    ANSWER: slice(0, 1),
    CLOSE: slice(0, 1),
}
"""Which values of a row say what it is about."""


def _build_inserts(insert: InsertFunction, dialect: Dialect) -> dict[int, str]:
    return {
        RECEIVE: _compile(_insert(insert, inbox, _RECEIVED_COLUMNS), _RECEIVED_COLUMNS, dialect),
        RECEIVE_ANSWERED: _compile(_insert(insert, inbox, _ANSWERED_COLUMNS), _ANSWERED_COLUMNS, dialect),
        SAVE_CONVERSATION: _compile(
            _upsert(insert, conversations, ["id"], _FIXED_CONVERSATION_COLUMNS), _column_names(conversations), dialect
        ),
        ADD_INTERACTION: _compile(
            _insert(insert, interactions, _column_names(interactions)), _column_names(interactions), dialect
        ),
        SAVE_VARIABLE: _compile(
            _upsert(insert, variables, ["agent", "scope", "holder", "name"]), _column_names(variables), dialect
        ),
    }


def _build_update(assignments: dict[str, str], dialect: Dialect) -> tuple[str, str]:
    """An update of the inbox from rows of (id, …), in two halves: FROM comes between them."""
    statement = update(inbox).values({name: literal_column(value) for name, value in assignments.items()})
    statement = statement.where(inbox.c.id == literal_column(f"{_ROWS}.id"))
    changes, _, condition = str(statement.compile(dialect=dialect)).partition(" WHERE ")
    return changes, condition


# SQLite


def _build_sqlite_parts() -> dict[int, tuple[str, str, str]]:
    """What stands before the rows, the marks of one row, and what stands behind."""
    dialect = sqlite.dialect()
    statements = {}
    for number, text in _build_inserts(sqlite.insert, dialect).items():
        before, _, rest = text.partition("VALUES (")
        marks, _, after = rest.partition(")")
        statements[number] = f"{before}VALUES ", f"({marks})", after
    for number, (assignments, names) in _UPDATES.items():
        changes, condition = _build_update(assignments, dialect)
        if len(names) == 1:
            statements[number] = f"{changes} WHERE {names[0]} IN (", "?", ")"  # a list takes half as long as a table of one row
        else:
            marks = ", ".join("?" for _ in names)
            table = f"WITH {_ROWS} ({', '.join(names)}) AS (VALUES "
            statements[number] = table, f"({marks})", f") {changes} FROM {_ROWS} WHERE {condition}"
    return statements


_SQLITE_PARTS = _build_sqlite_parts()


@cache
def sqlite_sql(statement: int, rows: int) -> str:
    """The SQL of a statement on SQLite for so many rows, whose values it takes one after the other."""
    before, marks, after = _SQLITE_PARTS[statement]
    return before + ", ".join([marks] * rows) + after


# PostgreSQL


@cache
def postgres_sql() -> dict[int, str]:
    """The statements on PostgreSQL: for any number of rows with different `KEY_COLUMNS`, whose columns they take as arrays."""
    from sqlalchemy.dialects import postgresql  # slow to import, for those who need it

    dialect = _postgres_dialect()
    statements = {}
    for number, text in _build_inserts(postgresql.insert, dialect).items():
        before, _, rest = text.partition("VALUES (")
        marks, _, after = rest.partition(")")
        statements[number] = f"{before}SELECT * FROM unnest({_to_arrays(marks)}){after}"
    for number, (assignments, names) in _UPDATES.items():
        changes, condition = _build_update(assignments, dialect)
        marks = ", ".join(
            f"${place}::{inbox.c[name].type.compile(dialect=dialect)}" for place, name in enumerate(names, start=1)
        )
        statements[number] = f"{changes} FROM unnest({_to_arrays(marks)}) AS {_ROWS} ({', '.join(names)}) WHERE {condition}"
    return statements


def _postgres_dialect() -> Dialect:
    from sqlalchemy.dialects.postgresql import asyncpg

    dialect: Dialect = asyncpg.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy has no types for it
    return dialect


def _to_arrays(marks: str) -> str:
    return re.sub(r"(::\w+)", r"\1[]", marks)


# What loading a conversation asks.

FIND_CONVERSATIONS, LOAD_HISTORY, LOAD_VARIABLES = range(3)
MAX_CANDIDATE_IDS = 3


def _build_queries(dialect: Dialect) -> dict[int, str]:
    ids = [f"id_{number}" for number in range(MAX_CANDIDATE_IDS)]
    holder = ["agent", "scope", "holder"]
    find = select(conversations).where(
        conversations.c.agent == bindparam("agent"), conversations.c.conversation_id.in_([bindparam(name) for name in ids])
    )
    history = (
        select(interactions.c.body)
        .where(interactions.c.conversation == bindparam("conversation"))
        .order_by(interactions.c.number.desc())
        .limit(bindparam("turns"))
        .offset(literal_column("0"))
    )
    kept = select(variables.c.name, variables.c.value).where(*(variables.c[name] == bindparam(name) for name in holder))
    return {
        FIND_CONVERSATIONS: _compile(find, ["agent", *ids], dialect),
        LOAD_HISTORY: _compile(history, ["conversation", "turns"], dialect),
        LOAD_VARIABLES: _compile(kept, holder, dialect),
    }


SQLITE_QUERIES = _build_queries(sqlite.dialect())


@cache
def postgres_queries() -> dict[int, str]:
    """The same on PostgreSQL."""
    return _build_queries(_postgres_dialect())
