"""From an older schema to the one of today, by Alembic; the scripts are in `version_count`."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from ...exceptions import StoreError


def upgrade(connection: Connection, name: str, stored: str) -> None:
    """Brings the database on `connection` up to date. StoreError where `stored` is a revision that this program lacks."""
    require_known(name, stored)
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def require_known(name: str, stored: str) -> None:
    """StoreError where the database called `name` is of a revision that this program lacks; "none" is older than all."""
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if stored not in ("none", *known):
        raise StoreError(f"{name}: was written by a newer version (schema {stored}); update spade-coreason")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    return config
