"""From an older schema to the one of today, by Alembic; the scripts are in `versions`."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from ...exceptions import StoreError


def upgrade(connection: Connection, name: str, stored: str | None) -> None:
    """Brings the database on `connection` up to date. StoreError where `stored` is a revision that this program lacks."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if stored and stored not in known:
        raise StoreError(f"{name}: was written by a newer version (schema {stored}); update spade-coreason")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
