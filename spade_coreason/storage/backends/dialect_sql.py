"""The SQL in which the databases differ, for statements that are built when they run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, func, or_
from sqlalchemy.dialects.postgresql import Insert, insert


def insert_or_skip(table: Table) -> Insert:
    """Return an insert that skips the rows whose keys are there. SQLite has PostgreSQL's form of it."""
    return insert(table).on_conflict_do_nothing()


def has_any(connection: Connection, column: ColumnElement[Any], values: Collection[str]) -> ColumnElement[bool]:
    """Return the condition that a column has one of some values. On PostgreSQL the column has an index of its hashes."""
    if connection.dialect.name != "postgresql":
        return column.in_(values)
    return or_(*(and_(func.hashtext(column) == func.hashtext(value), column == value) for value in values))
