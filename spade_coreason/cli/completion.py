"""Shell completion for the agents, and for the ids in a data directory or a database server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..config import read_run_file
from ..domain.texts.terminal_text import escape_label
from ..exceptions import CoReasonError
from .settings import find_data_directories, load_storage_settings_quietly, sqlite_file

if TYPE_CHECKING:
    from ..config import Settings

_GUEST_USER = "guest"  # the account for people on a local server, not an agent
_LITERAL = re.compile(r"[\w@%+=:,./][\w@%+=:,./-]*")
_CHOSEN = "substr({0}, 1, :length) = :begun"
QUERIES = {
    key: f"SELECT {column} FROM {table} WHERE {f'{where} AND ' if where else ''}{_CHOSEN.format(column)} {order} LIMIT 100"
    for key, column, table, where, order in (
        (
            ("conversations", "conversation"),
            "conversation_id",
            "conversations",
            "",
            "GROUP BY conversation_id ORDER BY max(last_interaction) DESC",
        ),
        (("incidents", "id"), "incident", "incidents", "", "ORDER BY id DESC"),
        (("notifications", "id"), "key", "tasks", "kind = 'notification'", "ORDER BY id DESC"),
        (("schedules", "id"), "key", "tasks", "kind = 'schedule'", "ORDER BY due_at"),
        (("approvals", "id"), "question_id", "questions", "kind = 'approval' AND state = 'open'", "ORDER BY id DESC"),
        (("keys", "name"), "name", "api_keys", "revoked_at IS NULL", "ORDER BY name"),
        (("webhooks", "name"), "name", "webhooks", "revoked_at IS NULL", "ORDER BY name"),
    )
}
"""The queries of names by their subject and argument, for both databases. `begun` is the text that is completed."""


def read_local_accounts(data_dir: Path) -> list[str]:
    """List all agents that a platform with a local server ever had on this data directory (`run`, `demo`)."""
    try:
        accounts = json.loads((data_dir / "accounts.json").read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return []
    return [jid for jid in accounts if not jid.startswith(f"{_GUEST_USER}@")]


def complete_agents(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the JIDs of agents: those of the running platform, and those that had an account there."""
    found: dict[str, None] = {}
    with suppress(OSError, CoReasonError):
        for directory in find_data_directories(_project(ctx), ctx.params.get("file"), ctx.params.get("data")):
            running = read_run_file(directory)
            found |= dict.fromkeys(agent["jid"] for agent in (running.agents if running else ()))
            found |= dict.fromkeys(read_local_accounts(directory))
    return [jid for jid in found if jid.startswith(incomplete) and _is_literal(jid)]


def complete_field(subject: str, name: str) -> Callable[..., list[str]] | None:
    """Return the function that completes an argument of an operation from the database; None if it has no such values.

    It returns [] if the configuration or the server has a fault.
    """
    if (query := QUERIES.get((subject, name))) is None:
        return None

    def complete(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        values = {"length": len(incomplete), "begun": incomplete}
        with suppress(CoReasonError):
            settings = load_storage_settings_quietly(_project(ctx), ctx.params.get("file"), ctx.params.get("data"))
            if (file := sqlite_file(settings)) is not None:
                found = _find_in_file(file, query, values)
            else:
                import asyncio

                found = asyncio.run(_find_on_server(settings, query, values))
            return [name for name in found if _is_literal(name)]
        return []

    return complete


def _is_literal(name: str) -> bool:
    """Return True if a shell shows a name as it is and takes it literally: others choose it, and a command contains it."""
    return escape_label(name) == name and _LITERAL.fullmatch(name) is not None


def _find_in_file(database: Path, query: str, values: dict[str, Any]) -> list[str]:
    import sqlite3

    # The file is read without the repositories. If it has no log (WAL), there is no writer. SQLite would create a log even to
    # read, and leave it behind.
    mode = "mode=ro" if database.with_name(f"{database.name}-wal").exists() else "mode=ro&immutable=1"
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{database.as_uri()}?{mode}", uri=True, timeout=0.5)) as reader:
        return [name for (name,) in reader.execute(query, values)]
    return []


async def _find_on_server(settings: Settings, query: str, values: dict[str, Any]) -> list[str]:
    from ..storage import open_database

    database = await open_database(settings.storage.url, is_read_only=True)
    try:
        numbered = query.replace(":length", "$1").replace(":begun", "$2")
        read = database.read(lambda connection: connection.exec_driver_sql(numbered, tuple(values.values())).scalars().all())
        return list(await read)
    finally:
        await database.close()


def _project(ctx: click.Context) -> Path:
    # During completion no command runs, so there are no `GlobalOptions`.
    project: Path = ctx.find_root().params.get("project") or Path.cwd()
    return project
