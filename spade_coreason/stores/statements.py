"""The statements of a turn, compiled once to SQL; a transaction runs them in this order."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ClauseElement, Table, bindparam, literal_column, null, update
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
    names = ["id", "agent", "key", "sender", "received_at", "state", "request"]
    statement = _insert(inbox, names)
    new = statement.excluded
    is_old = (inbox.c.state == literal_column("2")) & (
        inbox.c.received_at < new.received_at - literal_column(str(_DUPLICATE_MICROS))
    )
    renewed = {name: new[name] for name in names if name not in ("agent", "key")} | {"answer": null()}
    statement = statement.on_conflict_do_update(index_elements=["agent", "key"], set_=renewed, where=is_old)
    return _compiled(statement, names)


STATEMENTS: dict[int, str] = {
    RECEIVE: _receive(),
    SAVE_CONVERSATION: _upsert(conversations, ["id"]),
    ADD_INTERACTION: _compiled(_insert(interactions, _names(interactions)), _names(interactions)),
    SAVE_VARIABLE: _upsert(variables, ["agent", "scope", "holder", "name"]),
    ANSWER: _compiled(
        update(inbox)
        .values(state=bindparam("new_state"), answer=bindparam("new_answer"), request=null())
        .where(inbox.c.id == bindparam("row")),
        ["new_state", "new_answer", "row"],
    ),
    CLOSE: _compiled(
        update(inbox).values(state=literal_column("2"), answer=null(), request=null()).where(inbox.c.id == bindparam("row")),
        ["row"],
    ),
}
