"""What a shell can complete: the agents and conversations that a data directory knows, read without opening its stores."""

from __future__ import annotations

import json
from contextlib import closing, suppress
from pathlib import Path

import click

from ..runfile import read_run_file

MOST = 100
_GUEST = "guest"  # the account for people on a local server; no agent
_NEWEST = (
    "SELECT conversation_id FROM conversations WHERE substr(conversation_id, 1, ?) = ?"
    " GROUP BY conversation_id ORDER BY max(last_interaction) DESC LIMIT ?"
)


def local_accounts(data_dir: Path) -> list[str]:
    """The agents that a platform with a local server ever had on this data directory (`run`, `demo`)."""
    try:
        accounts = json.loads((data_dir / "accounts.json").read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return []
    return [jid for jid in accounts if not jid.startswith(f"{_GUEST}@")]


def agents(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Agents whose JIDs begin so: those of the platform that runs, and those that had an account there."""
    directory, found = _data_dir(ctx), dict[str, None]()
    with suppress(OSError):
        running = read_run_file(directory)
        found |= dict.fromkeys(agent["jid"] for agent in (running.agents if running else ()))
        found |= dict.fromkeys(local_accounts(directory))
    return [jid for jid in found if jid.startswith(incomplete)]


def conversations(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Ids of conversations that begin so, the newest first."""
    import sqlite3

    database = (_data_dir(ctx) / "platform.db").absolute()
    # Where no log is, nobody writes; SQLite would make one even to read, and leave it behind.
    mode = "mode=ro" if database.with_name(f"{database.name}-wal").exists() else "mode=ro&immutable=1"
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{database.as_uri()}?{mode}", uri=True, timeout=0.5)) as reader:
        return [name for (name,) in reader.execute(_NEWEST, (len(incomplete), incomplete, MOST))]
    return []


def _data_dir(ctx: click.Context) -> Path:
    # While a shell completes, no command runs that would have made `Options` of it.
    project: Path = ctx.find_root().params.get("project") or Path.cwd()
    return project / (ctx.params.get("data") or "data")
