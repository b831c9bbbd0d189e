"""Migrations from older schemas to the current one, with Alembic. The scripts are in `versions`."""

from __future__ import annotations

import logging
from itertools import count
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, delete, insert, inspect, text
from sqlalchemy.exc import DBAPIError

from ...exceptions import StoreError
from ..schema import OLDEST_REVISIONS, REVISION, compatibility, metadata

log = logging.getLogger(__name__)

_LOCK_MS = 500
"""The longest time in which a migration waits for locks while others wait for it: less than PostgreSQL's `deadlock_timeout`."""
_PAUSE_S = 0.2
_MANY_ATTEMPTS = 10
_LIFTING_COMMIT = "a36bbe40"
"""The commit that has all revisions up to the first one of today, which are one now."""
_CANCELED = "57014"
"""The SQLSTATE of a statement that took too long."""


def upgrade(connection: Connection, name: str, stored: str) -> None:
    """Migrate the database on `connection` to the newest revision. Raise StoreError if `stored` is an unknown revision.

    On PostgreSQL workers may run beside it. Their transactions wait for its end.
    """
    require_known(name, stored)
    if connection.dialect.name == "postgresql":
        _lock_tables(connection, name)
        require_known(name, connection.scalar(text("SELECT version_num FROM alembic_version")) or "none")  # it may be newer now
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    connection.execute(delete(compatibility))
    connection.execute(insert(compatibility).values(oldest_revision=OLDEST_REVISIONS[connection.dialect.name]))
    log.info("%s: migrated from schema %s to %s", name, stored, REVISION)


def _lock_tables(connection: Connection, name: str) -> None:
    """Lock all tables in a new transaction: all of them soon, or none. One that has some and waits for others could deadlock.

    Each transaction of a worker begins with the table `workers`, so that those which write are at their end once it is locked.
    """
    tables = sorted(
        metadata.tables.keys() & inspect(connection).get_table_names(), key=lambda table: (table != "workers", table)
    )
    for attempt in count() if tables else ():
        connection.commit()  # a lock must come before the first look, which decides what the transaction sees
        try:
            connection.exec_driver_sql(f"SET LOCAL statement_timeout = {_LOCK_MS}")
            connection.exec_driver_sql(f"LOCK TABLE {', '.join(tables)}")
            connection.exec_driver_sql("SET LOCAL statement_timeout TO DEFAULT")
            return
        except DBAPIError as error:
            connection.rollback()
            if getattr(error.orig, "sqlstate", None) != _CANCELED:
                raise
        if attempt == _MANY_ATTEMPTS:
            log.warning("%s: the migration waits until other transactions have ended; pg_stat_activity names them", name)
        connection.exec_driver_sql(f"SELECT pg_sleep({_PAUSE_S})")


def require_known(name: str, stored: str) -> None:
    """Raise StoreError if the revision of the database `name` is unknown here. "none" is older than all revisions."""
    known = [script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()]
    if stored not in ("none", *known):
        if stored < min(known):
            remedy = (
                f"migrate it with `spade-coreason storage migrate` of commit {_LIFTING_COMMIT}, and start this version then"
            )
            raise StoreError(f"{name}: has a schema from before the first release ({stored}); {remedy}")
        raise StoreError(f"{name}: was written by a newer version (schema {stored}); update spade-coreason")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    return config
