"""Migrations from older schemas to the current one, with Alembic. The scripts are in `versions`."""

from __future__ import annotations

import logging
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, delete, insert

from ...exceptions import StoreError
from ..schema import OLDEST_REVISIONS, REVISION, compatibility

log = logging.getLogger(__name__)


def upgrade(connection: Connection, name: str, stored: str) -> None:
    """Migrate the database on `connection` to the newest revision. Raise StoreError if `stored` is an unknown revision."""
    require_known(name, stored)
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    connection.execute(delete(compatibility))
    connection.execute(insert(compatibility).values(oldest_revision=OLDEST_REVISIONS[connection.dialect.name]))
    log.info("%s: migrated from schema %s to %s", name, stored, REVISION)


def require_known(name: str, stored: str) -> None:
    """Raise StoreError if the revision of the database `name` is unknown here. "none" is older than all revisions."""
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if stored not in ("none", *known):
        raise StoreError(f"{name}: was written by a newer version (schema {stored}); update spade-coreason")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    return config
