"""Prepared statements: the SQL that turns use most, as text for the drivers.

A transaction runs the writing statements in the order of their numbers, each for many rows.

SQLite: the rows are the VALUES of one statement. In an `executemany`, Python's sqlite3 releases the interpreter lock at every
row, and has to win it back from the event loop each time.

PostgreSQL: the rows are arrays, one per column. That needs one round trip and one prepared statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from sqlalchemy import ClauseElement, ColumnElement, Dialect, Table, bindparam, func, literal_column, select
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

_BY_ID = {
    DELETE_STEPS: "DELETE FROM steps WHERE request",
    DELETE_TASK: "DELETE FROM tasks WHERE id",
    CLOSE: "UPDATE inbox SET state = 2, answer = NULL, request = NULL WHERE id",
}
"""The statements that take ids only."""
RECEIVED_COLUMNS = ["id", "agent", "key", "sender", "received_at", "state", "request", "digest", "evidence"]
_ANSWERED_COLUMNS = [*RECEIVED_COLUMNS[:-3], "answer", "digest", "interaction", "evidence"]
_FIXED_CONVERSATION_COLUMNS = ["agent", "conversation_id", "owner", "session_id", "created_at"]
_INSERTS: dict[int, tuple[Table, list[str], list[str], list[str]]] = {
    RECEIVE: (inbox, RECEIVED_COLUMNS, [], []),
    RECEIVE_ANSWERED: (inbox, _ANSWERED_COLUMNS, [], []),
    SAVE_CONVERSATION: (conversations, conversations.c.keys(), ["id"], _FIXED_CONVERSATION_COLUMNS),
    ADD_INTERACTION: (interactions, interactions.c.keys(), [], []),
    SAVE_VARIABLE: (variables, variables.c.keys(), ["agent", "scope", "holder", "name"], []),
    SAVE_STEP: (steps, steps.c.keys(), ["request", "name", "number"], []),
    ADD_TASK: (tasks, tasks.c.keys(), [], []),
}
"""The tables and columns of rows that are added. With a key they replace earlier ones, but for the columns of the last list.

To name these would write their indexes again.
"""
_ROWS = "batch"
"""The name of the rows inside an update."""
_TASK_COLUMNS = ["state", "reason", "attempts", "data", "changed_at", "due_at", "wake_at"]
_UPDATES: dict[int, tuple[Table, list[str], dict[str, str]]] = {
    ANSWER: (inbox, ["id", "state", "answer", "interaction"], {"request": "NULL"}),
    SET_CHANNEL: (inbox, ["id", "channel"], {}),
    # Updates only: a row that was erased meanwhile does not come back. Without data it keeps its own.
    UPDATE_TASK: (tasks, ["id", *_TASK_COLUMNS], {"data": f"coalesce({_ROWS}.data, tasks.data)"}),
}
"""The tables and columns of rows that are changed, and the values of columns that are not in the row as it is written."""
KEY_COLUMNS = {**dict.fromkeys(STATEMENTS, slice(0, 1)), SAVE_VARIABLE: slice(0, 4), SAVE_STEP: slice(0, 3)}
"""The values of a row that identify it, by statement."""
TEXT_INDEXES = {
    RECEIVE: RECEIVED_COLUMNS.index("request"),
    RECEIVE_ANSWERED: _ANSWERED_COLUMNS.index("answer"),
    ADD_INTERACTION: interactions.c.keys().index("body"),
    SAVE_VARIABLE: variables.c.keys().index("value"),
    SAVE_STEP: steps.c.keys().index("result"),
    ANSWER: _UPDATES[ANSWER][1].index("answer"),
    ADD_TASK: tasks.c.keys().index("data"),
    UPDATE_TASK: _UPDATES[UPDATE_TASK][1].index("data"),
}
"""The place of the text in a row, by statement. It may be None."""


def _compile(statement: ClauseElement, parameters: Sequence[str], dialect: Dialect) -> str:
    """Return the SQL of `statement`. Check that it takes its parameters in the order of `parameters`."""
    compiled = statement.compile(dialect=dialect)
    order = list(getattr(compiled, "positiontup", None) or ())
    if order != list(parameters):
        raise AssertionError(f"{compiled} takes {order}, not {list(parameters)}")
    return str(compiled)


def _build_insert(table: Table, names: list[str], key: list[str], fixed: list[str]) -> tuple[str, str]:
    """Build an insert. Return the parts before and after its rows."""
    changes = ", ".join(f"{name} = excluded.{name}" for name in names if name not in (*key, *fixed))
    conflict = f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}" if key else ""
    return f"INSERT INTO {table.name} ({', '.join(names)}) ", conflict


def _build_update(table: Table, names: list[str], values: dict[str, str]) -> tuple[str, str]:
    """Build an update of a table from rows of (id, …). Return the parts before and after its FROM."""
    changes = {name: f"{_ROWS}.{name}" for name in names[1:]} | values
    assignments = ", ".join(f"{name} = {value}" for name, value in changes.items())
    return f"UPDATE {table.name} SET {assignments}", f"{table.name}.id = {_ROWS}.id"


# SQLite


def _build_sqlite_parts() -> dict[int, tuple[str, str, str]]:
    """Build the parts of each statement: the text before the rows, the placeholders of one row, and the text after them."""
    statements = {number: (f"{text} IN (", "?", ")") for number, text in _BY_ID.items()}  # half the time of a table

    def add(number: int, before: str, names: list[str], after: str) -> None:
        statements[number] = f"{before}VALUES ", f"({', '.join('?' for _ in names)})", after

    for number, insert in _INSERTS.items():
        before, after = _build_insert(*insert)
        add(number, before, insert[1], after)
    for number, change in _UPDATES.items():
        changes, condition = _build_update(*change)
        columns = ", ".join(change[1])
        add(number, f"WITH {_ROWS} ({columns}) AS (", change[1], f") {changes} FROM {_ROWS} WHERE {condition}")
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
    dialect = _postgres_dialect()

    def unnest(table: Table, names: list[str]) -> str:
        types = (table.c[name].type.compile(dialect=dialect) for name in names)
        return f"unnest({', '.join(f'${place}::{kind}[]' for place, kind in enumerate(types, start=1))})"

    statements = {number: f"{text} = ANY($1::BIGINT[])" for number, text in _BY_ID.items()}
    for number, (table, names, key, fixed) in _INSERTS.items():
        statements[number] = f"SELECT * FROM {unnest(table, names)}".join(_build_insert(table, names, key, fixed))
    for number, (table, names, values) in _UPDATES.items():
        rows = f" FROM {unnest(table, names)} AS {_ROWS} ({', '.join(names)}) WHERE "
        statements[number] = rows.join(_build_update(table, names, values))
    return statements


def _postgres_dialect() -> Dialect:
    from sqlalchemy.dialects.postgresql import asyncpg  # slow to import, and only needed here

    dialect: Dialect = asyncpg.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy has no types for it
    return dialect


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
