"""Prepared statements: the SQL that turns use most, as text for the drivers.

A transaction runs the writing statements in the order of their numbers, each for many rows. SQLAlchemy compiles a statement
for one row; this module extends it to the rows of a batch.

SQLite: the rows are the VALUES of one statement. In an `executemany`, Python's sqlite3 releases the interpreter lock at every
row, and has to win it back from the event loop each time.

PostgreSQL: the rows are arrays, one per column. That needs one round trip and one prepared statement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from sqlalchemy import ClauseElement, ColumnElement, Dialect, Table, bindparam, delete, func, literal_column, select, update
from sqlalchemy.dialects import sqlite

from ...domain.preferences import PREFERENCES_SCOPE
from ..records import ACCESS_SCOPE, AGENT_SCOPE, MESSAGE_COUNT_SCOPES, PLATFORM_SCOPE, REFUSED_SCOPE
from ..schema import asked_people, conversations, inbox, interactions, questions, steps, tasks, variables

(
    RECEIVE,
    RECEIVE_ANSWERED,
    SET_CHANNEL,
    SAVE_CONVERSATION,
    ADD_INTERACTION,
    SAVE_VARIABLE,
    SAVE_STEP,
    DELETE_STEPS,
    ANSWER,
    ADD_TASK,
    UPDATE_TASK,
    DELETE_TASK,
    CLOSE,
) = range(13)
STATEMENTS = range(13)
MAX_ROWS = 16
"""The most rows of one statement on SQLite.

Each number of rows is a separate prepared statement. With up to 64 rows these cost more time than they saved.
"""

_DELETIONS = {
    DELETE_STEPS: f"{delete(steps)} WHERE {steps.c.request}",
    DELETE_TASK: f"{delete(tasks)} WHERE {tasks.c.id}",
}

# The name of the rows inside an update.
_ROWS = "batch"


_TASK_COLUMNS = ["state", "reason", "attempts", "data", "changed_at", "due_at", "wake_at"]
_UPDATES: dict[int, tuple[Table, dict[str, str], list[str]]] = {
    ANSWER: (
        inbox,
        {
            "state": f"{_ROWS}.state",
            "answer": f"{_ROWS}.answer",
            "interaction": f"{_ROWS}.interaction",
            "request": "NULL",
        },
        ["id", "state", "answer", "interaction"],
    ),
    CLOSE: (inbox, {"state": "2", "answer": "NULL", "request": "NULL"}, ["id"]),
    SET_CHANNEL: (inbox, {"channel": f"{_ROWS}.channel"}, ["id", "channel"]),
    # Updates only: a row that was erased meanwhile does not come back. Without data it keeps its own.
    UPDATE_TASK: (
        tasks,
        {**{name: f"{_ROWS}.{name}" for name in _TASK_COLUMNS}, "data": f"coalesce({_ROWS}.data, tasks.data)"},
        ["id", *_TASK_COLUMNS],
    ),
}


def _compile(statement: ClauseElement, parameters: Sequence[str], dialect: Dialect) -> str:
    """Return the SQL of `statement`. Check that it takes its parameters in the order of `parameters`."""
    compiled = statement.compile(dialect=dialect)
    order = list(getattr(compiled, "positiontup", None) or ())
    if order != list(parameters):
        raise AssertionError(f"{compiled} takes {order}, not {list(parameters)}")
    return str(compiled)


def _column_names(table: Table) -> list[str]:
    return [column.name for column in table.columns]


InsertFunction = Callable[[Table], Any]
"""The function `insert` of a dialect."""


def _insert(insert: InsertFunction, table: Table, names: Sequence[str]) -> Any:
    return insert(table).values({name: bindparam(name, type_=table.c[name].type) for name in names})


def _upsert(insert: InsertFunction, table: Table, key: Sequence[str], fixed: Sequence[str] = ()) -> Any:
    """Build an upsert that leaves the columns `fixed` unchanged: naming them would write their indexes again."""
    names = _column_names(table)
    statement = _insert(insert, table, names)
    changed = {name: statement.excluded[name] for name in names if name not in (*key, *fixed)}
    return statement.on_conflict_do_update(index_elements=list(key), set_=changed)


_FIXED_CONVERSATION_COLUMNS = ["agent", "conversation_id", "owner", "session_id", "created_at"]
RECEIVED_COLUMNS = ["id", "agent", "key", "sender", "received_at", "state", "request", "digest", "evidence"]
_ANSWERED_COLUMNS = [*RECEIVED_COLUMNS[:-3], "answer", "digest", "interaction", "evidence"]


KEY_COLUMNS = {**dict.fromkeys(STATEMENTS, slice(0, 1)), SAVE_VARIABLE: slice(0, 4), SAVE_STEP: slice(0, 3)}
"""The values of a row that identify it, by statement."""
TEXT_INDEXES = {
    RECEIVE: RECEIVED_COLUMNS.index("request"),
    RECEIVE_ANSWERED: _ANSWERED_COLUMNS.index("answer"),
    ADD_INTERACTION: _column_names(interactions).index("body"),
    SAVE_VARIABLE: _column_names(variables).index("value"),
    SAVE_STEP: _column_names(steps).index("result"),
    ANSWER: _UPDATES[ANSWER][2].index("answer"),
    ADD_TASK: _column_names(tasks).index("data"),
    UPDATE_TASK: _UPDATES[UPDATE_TASK][2].index("data"),
}
"""The place of the text in a row, by statement. It may be None."""


def _build_inserts(insert: InsertFunction, dialect: Dialect) -> dict[int, str]:
    whole = {ADD_INTERACTION: interactions, ADD_TASK: tasks}
    keys: dict[int, tuple[Table, list[str], list[str]]] = {
        SAVE_CONVERSATION: (conversations, ["id"], _FIXED_CONVERSATION_COLUMNS),
        SAVE_VARIABLE: (variables, ["agent", "scope", "holder", "name"], []),
        SAVE_STEP: (steps, ["request", "name", "number"], []),
    }
    return {
        RECEIVE: _compile(_insert(insert, inbox, RECEIVED_COLUMNS), RECEIVED_COLUMNS, dialect),
        RECEIVE_ANSWERED: _compile(_insert(insert, inbox, _ANSWERED_COLUMNS), _ANSWERED_COLUMNS, dialect),
        **{
            number: _compile(_insert(insert, table, _column_names(table)), _column_names(table), dialect)
            for number, table in whole.items()
        },
        **{
            number: _compile(_upsert(insert, table, key, fixed), _column_names(table), dialect)
            for number, (table, key, fixed) in keys.items()
        },
    }


def _build_update(table: Table, assignments: dict[str, str], dialect: Dialect) -> tuple[str, str]:
    """Build an update of a table from rows of (id, …). Return the parts before and after its FROM."""
    statement = update(table).values({name: literal_column(value) for name, value in assignments.items()})
    statement = statement.where(table.c.id == literal_column(f"{_ROWS}.id"))
    changes, _, condition = str(statement.compile(dialect=dialect)).partition(" WHERE ")
    return changes, condition


# SQLite


def _build_sqlite_parts() -> dict[int, tuple[str, str, str]]:
    """Build the parts of each statement: the text before the rows, the placeholders of one row, and the text after them."""
    dialect = sqlite.dialect()
    statements = {}
    for number, text in _build_inserts(sqlite.insert, dialect).items():
        before, _, rest = text.partition("VALUES (")
        placeholders, _, after = rest.partition(")")
        statements[number] = f"{before}VALUES ", f"({placeholders})", after
    for number, text in _DELETIONS.items():
        statements[number] = f"{text} IN (", "?", ")"
    for number, (table, assignments, names) in _UPDATES.items():
        changes, condition = _build_update(table, assignments, dialect)
        if len(names) == 1:
            # A list takes half the time of a table.
            statements[number] = f"{changes} WHERE {names[0]} IN (", "?", ")"
        else:
            placeholders = ", ".join("?" for _ in names)
            rows = f"WITH {_ROWS} ({', '.join(names)}) AS (VALUES "
            statements[number] = rows, f"({placeholders})", f") {changes} FROM {_ROWS} WHERE {condition}"
    return statements


_SQLITE_PARTS = _build_sqlite_parts()


@cache
def sqlite_sql(statement: int, rows: int) -> str:
    """Return the SQL of a statement on SQLite for a number of rows. It takes the values of all rows in one sequence."""
    before, placeholders, after = _SQLITE_PARTS[statement]
    return before + ", ".join([placeholders] * rows) + after


# PostgreSQL


@cache
def postgres_sql() -> dict[int, str]:
    """Return the statements on PostgreSQL. They take one array per column; rows must differ in their `KEY_COLUMNS`."""
    from sqlalchemy.dialects import postgresql  # slow to import, and only needed here

    dialect = _postgres_dialect()
    statements = {number: f"{text} = ANY($1::BIGINT[])" for number, text in _DELETIONS.items()}
    for number, text in _build_inserts(postgresql.insert, dialect).items():
        before, _, rest = text.partition("VALUES (")
        placeholders, _, after = rest.partition(")")
        statements[number] = f"{before}SELECT * FROM unnest({_to_arrays(placeholders)}){after}"
    for number, (table, assignments, names) in _UPDATES.items():
        changes, condition = _build_update(table, assignments, dialect)
        placeholders = ", ".join(
            f"${place}::{table.c[name].type.compile(dialect=dialect)}" for place, name in enumerate(names, start=1)
        )
        statements[number] = (
            f"{changes} FROM unnest({_to_arrays(placeholders)}) AS {_ROWS} ({', '.join(names)}) WHERE {condition}"
        )
    return statements


def _postgres_dialect() -> Dialect:
    from sqlalchemy.dialects.postgresql import asyncpg

    dialect: Dialect = asyncpg.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy has no types for it
    return dialect


def _to_arrays(placeholders: str) -> str:
    return re.sub(r"(::\w+)", r"\1[]", placeholders)


# The queries that load a conversation, and those of an agent that opens.

FIND_CONVERSATIONS, LOAD_HISTORY, LOAD_VARIABLES, LOAD_SCOPES, LIST_ACTIVE, FIND_DUE = range(6)
MAX_CANDIDATE_IDS = 3
OPENING_SCOPES = (
    AGENT_SCOPE,
    PLATFORM_SCOPE,
    ACCESS_SCOPE,
    PREFERENCES_SCOPE,
    REFUSED_SCOPE,
    *MESSAGE_COUNT_SCOPES.values(),
)
"""The scopes of the variables that an agent loads when it opens."""


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
    values = select(variables.c.name, variables.c.value).where(*(variables.c[name] == bindparam(name) for name in holder))
    is_own = variables.c.agent == bindparam("agent")
    scopes = (
        select(variables.c.scope, variables.c.holder, variables.c.name, variables.c.value)
        .where(is_own, variables.c.scope.in_([bindparam(f"scope_{number}") for number in range(len(OPENING_SCOPES))]))
        .order_by(variables.c.updated_at)
    )
    active = (
        select(conversations.c.conversation_id, conversations.c.last_interaction)
        .where(conversations.c.agent == bindparam("agent"), conversations.c.state == bindparam("state"))
        .order_by(conversations.c.last_interaction)
    )
    names = ["agent", "of_own", "owner", "of_questions", "of_people"]
    own = tasks.c.agent, tasks.c.agent, tasks.c.owner, questions.c.agent, asked_people.c.agent
    is_of = [column == bindparam(name) for column, name in zip(own, names, strict=True)]
    waiting: ColumnElement[str] = literal_column("'waiting'")
    is_open: ColumnElement[str] = literal_column("'open'")
    due = select(
        select(func.min(tasks.c.wake_at)).where(is_of[0], tasks.c.state == waiting).scalar_subquery(),
        select(tasks.c.id).where(is_of[1], is_of[2]).exists(),
        select(questions.c.id).where(is_of[3], questions.c.state == is_open).exists(),
        select(asked_people.c.question).where(is_of[4], asked_people.c.waits.is_not(None)).exists(),
    )
    return {
        FIND_DUE: _compile(due, names, dialect),
        FIND_CONVERSATIONS: _compile(find, ["agent", *ids], dialect),
        LOAD_HISTORY: _compile(history, ["conversation", "turns"], dialect),
        LOAD_VARIABLES: _compile(values, holder, dialect),
        LOAD_SCOPES: _compile(scopes, ["agent", *(f"scope_{number}" for number in range(len(OPENING_SCOPES)))], dialect),
        LIST_ACTIVE: _compile(active, ["agent", "state"], dialect),
    }


SQLITE_QUERIES = _build_queries(sqlite.dialect())


@cache
def postgres_queries() -> dict[int, str]:
    """Return the queries of `SQLITE_QUERIES` on PostgreSQL."""
    return _build_queries(_postgres_dialect())
