"""The schema of a database: it is created, read, and migrated if it is older than that of this version."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, create_mock_engine, inspect, select, text
from sqlalchemy.engine.mock import MockConnection

from ...exceptions import DatabaseEmptyError, StoreError
from .. import schema
from . import full_text
from .sequences import create_sequence

log = logging.getLogger(__name__)


class StoredSchema(NamedTuple):
    """The schema of a database that is open."""

    revision: str = schema.REVISION
    """The revision. It may be newer than this version."""
    previous_revision: str | None = None
    """The revision before the database was opened; None if it was empty."""
    is_new: bool = False
    """True if this process has created the tables: nothing was stored before."""


def create_or_migrate(connection: Connection, name: str) -> StoredSchema:
    """Create or migrate the tables of the database `name`, and commit."""
    if not inspect(connection).get_table_names():
        create_tables(connection)
        stored = StoredSchema(is_new=True)
    else:
        previous = _read_revision(connection, name)
        stored = StoredSchema(previous, previous)
        if not _may_use(connection, name, previous):
            from ..migrations import upgrade  # Alembic is slow to import

            upgrade(connection, name, previous)
            stored = StoredSchema(previous_revision=previous)
    connection.commit()
    return stored


def require_current(connection: Connection, name: str) -> StoredSchema:
    """Return the schema of the database `name`. Raise StoreError if this version cannot use it as it is."""
    stored = _read_revision(connection, name)
    if not _may_use(connection, name, stored):
        from ..migrations import require_known

        require_known(name, stored)
        raise StoreError(
            f"{name}: has an older schema ({stored}); start the platform to migrate it, or run: spade-coreason storage migrate"
        )
    return StoredSchema(stored)


def _read_revision(connection: Connection, name: str) -> str:
    tables = inspect(connection).get_table_names()
    if not tables:
        raise DatabaseEmptyError(name)
    if "alembic_version" not in tables:
        raise StoreError(f"{name}: is the database of another program; name another one in storage.url")
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar() or "none"


def _may_use(connection: Connection, name: str, stored: str) -> bool:
    """Return True for the schema of this version, and for a newer one on which it may run too."""
    if schema.REVISION < stored != "none" and schema.compatibility.name in inspect(connection).get_table_names():
        oldest = connection.scalar(select(schema.compatibility.c.oldest_revision))
        if oldest is not None and oldest <= schema.REVISION:
            log.info("%s: has the schema %s of a newer version, which this version can use", name, stored)
            return True
    return stored == schema.REVISION


@cache
def _schema_statements(dialect: str) -> list[str]:
    """Return the statements that create the tables. Compiling them takes longer than running them."""
    statements: list[str] = []

    def compile_statement(statement: Any, *_: object) -> None:
        statements.append(str(statement.compile(dialect=engine.dialect)))

    engine: MockConnection = create_mock_engine(f"{dialect}://", compile_statement)
    schema.metadata.create_all(engine, checkfirst=False)  # it would ask for each table
    return statements


def create_tables(connection: Connection) -> None:
    """Create the current schema in an empty database."""
    for statement in _schema_statements(f"{connection.dialect.name}+{connection.dialect.driver}"):
        connection.exec_driver_sql(statement)
    full_text.create(connection)
    create_sequence(connection)
    oldest = schema.OLDEST_REVISIONS[connection.dialect.name]
    connection.exec_driver_sql(f"INSERT INTO {schema.compatibility.name} (oldest_revision) VALUES ('{oldest}')")
    connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
    connection.exec_driver_sql(f"INSERT INTO alembic_version VALUES ('{schema.REVISION}')")
