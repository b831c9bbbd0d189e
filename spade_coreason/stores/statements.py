"""The statements of a turn, as text for the driver; a transaction runs those that write in this order, for many rows at once.

Python's sqlite3 gives the interpreter lock away at every row of an `executemany`, and has to win it back from the event loop
each time. So the rows of a batch are the VALUES of one statement; SQLAlchemy writes it for one row, and it is repeated here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from sqlalchemy import ClauseElement, Table, bindparam, literal_column, select, update
from sqlalchemy.dialects import sqlite

from .schema import conversations, inbox, interactions, variables

DUPLICATE_DAYS = 7
_DUPLICATE_MICROS = DUPLICATE_DAYS * 24 * 3600 * 1_000_000

RECEIVE, SAVE_CONVERSATION, ADD_INTERACTION, SAVE_VARIABLE, ANSWER, CLOSE = range(6)


def _compiled(statement: ClauseElement, parameters: Sequence[str]) -> str:
    """The SQL of `statement`, which takes tuples in the order of `parameters`."""
    compiled = statement.compile(dialect=sqlite.dialect())
    order = list(getattr(compiled, "positiontup", None) or ())
    if order != list(parameters):
        raise AssertionError(f"{compiled} takes {order}, not {list(parameters)}")
    return str(compiled)


def _names(table: Table) -> list[str]:
    return [column.name for column in table.columns]


def _insert(table: Table, names: Sequence[str]) -> sqlite.Insert:
    return sqlite.insert(table).values({name: bindparam(name) for name in names})


def _upsert(table: Table, key: Sequence[str]) -> str:
    names = _names(table)
    statement = _insert(table, names)
    changed = {name: statement.excluded[name] for name in names if name not in key}
    return _compiled(statement.on_conflict_do_update(index_elements=list(key), set_=changed), names)


def _receive() -> str:
    """A row whose key is there already is a duplicate and changes nothing; after seven days it is a new message."""
    names = ["id", "agent", "key", "sender", "received_at", "state", "request", "answer"]
    statement = _insert(inbox, names)
    new = statement.excluded
    is_old = (inbox.c.state == literal_column("2")) & (
        inbox.c.received_at < new.received_at - literal_column(str(_DUPLICATE_MICROS))
    )
    renewed = {name: new[name] for name in names if name not in ("agent", "key")}
    statement = statement.on_conflict_do_update(index_elements=["agent", "key"], set_=renewed, where=is_old)
    return _compiled(statement, names)


# What the VALUES of an update are called in it.
_ROWS = "batch"


def _update(assignments: dict[str, str], names: Sequence[str]) -> str:
    """An update of the inbox from rows of (id, …)."""
    statement = update(inbox).values({name: literal_column(value) for name, value in assignments.items()})
    statement = statement.where(inbox.c.id == literal_column(f"{_ROWS}.id"))
    changes, _, condition = str(statement.compile(dialect=sqlite.dialect())).partition(" WHERE ")
    marks = ", ".join("?" for _ in names)
    return f"WITH {_ROWS} ({', '.join(names)}) AS (VALUES ({marks})) {changes} FROM {_ROWS} WHERE {condition}"


_ONE_ROW: dict[int, str] = {
    RECEIVE: _receive(),
    SAVE_CONVERSATION: _upsert(conversations, ["id"]),
    ADD_INTERACTION: _compiled(_insert(interactions, _names(interactions)), _names(interactions)),
    SAVE_VARIABLE: _upsert(variables, ["agent", "scope", "holder", "name"]),
    ANSWER: _update({"state": f"{_ROWS}.state", "answer": f"{_ROWS}.answer", "request": "NULL"}, ["id", "state", "answer"]),
    CLOSE: _update({"state": "2", "answer": "NULL", "request": "NULL"}, ["id"]),
}
STATEMENTS = range(len(_ONE_ROW))
MAX_ROWS = 64
"""Of one statement; SQLite takes 32,766 parameters."""


@cache
def sql(statement: int, rows: int) -> str:
    """The SQL of a statement for so many rows, whose values it takes one after the other."""
    before, values, rest = _ONE_ROW[statement].partition("VALUES (")
    marks, closing, after = rest.partition(")")
    return before + values + marks + closing + f", ({marks})" * (rows - 1) + after


# What loading a conversation asks.

POSSIBLE_IDS = 3
FIND = _compiled(
    select(conversations).where(
        conversations.c.agent == bindparam("agent"),
        conversations.c.conversation_id.in_([bindparam(f"id_{number}") for number in range(POSSIBLE_IDS)]),
    ),
    ["agent", *(f"id_{number}" for number in range(POSSIBLE_IDS))],
)
HISTORY = _compiled(
    select(interactions.c.body)
    .where(interactions.c.conversation == bindparam("conversation"))
    .order_by(interactions.c.number.desc())
    .limit(bindparam("turns"))
    .offset(literal_column("0")),
    ["conversation", "turns"],
)
VARIABLES = _compiled(
    select(variables.c.name, variables.c.value).where(
        *(variables.c[name] == bindparam(name) for name in ("agent", "scope", "holder"))
    ),
    ["agent", "scope", "holder"],
)
