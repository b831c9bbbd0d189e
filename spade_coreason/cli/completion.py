"""Shell completion for the agents, and for the ids in a data directory or a database server."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..config import read_run_file
from ..domain.jid import bare_jid
from ..domain.texts.terminal_text import escape_label
from ..exceptions import CoReasonError
from .settings import find_data_directories, load_storage_settings_quietly, sqlite_file

if TYPE_CHECKING:
    from ..config import Settings
    from ..storage import AgentRepository

Found = TypeVar("Found")

MAX_COMPLETIONS = 100
_GUEST_USER = "guest"  # the account for people on a local server, not an agent
_NEWEST_QUERY = (
    "SELECT conversation_id FROM conversations WHERE substr(conversation_id, 1, ?) = ?"
    " GROUP BY conversation_id ORDER BY max(last_interaction) DESC LIMIT ?"
)

_LITERAL = re.compile(r"[\w@%+=:,./][\w@%+=:,./-]*")
_NEWEST_INCIDENTS_QUERY = "SELECT incident FROM incidents WHERE substr(incident, 1, ?) = ? ORDER BY id DESC LIMIT ?"

_NOTIFICATIONS_QUERY = (
    "SELECT notification_id FROM notifications WHERE substr(notification_id, 1, ?) = ? ORDER BY id DESC LIMIT ?"
)
_SCHEDULES_QUERY = "SELECT schedule_id FROM schedules WHERE substr(schedule_id, 1, ?) = ? ORDER BY due_at LIMIT ?"

_APPROVALS_QUERY = (
    "SELECT question_id FROM questions WHERE kind = 'approval' AND state = 'open' AND substr(question_id, 1, ?) = ?"
    " ORDER BY id DESC LIMIT ?"
)


_KEYS_QUERY = "SELECT name FROM api_keys WHERE revoked_at IS NULL AND substr(name, 1, ?) = ? ORDER BY name LIMIT ?"
_WEBHOOKS_QUERY = _KEYS_QUERY.replace("api_keys", "webhooks")


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


def complete_conversations(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete ids of conversations, the newest first. Return [] if the configuration or the server has a fault."""
    return _complete(ctx, incomplete, _NEWEST_QUERY, _find_conversations_on_server)


def complete_incidents(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the numbers of incidents, the newest first. Return [] if the configuration or the server has a fault."""
    return _complete(ctx, incomplete, _NEWEST_INCIDENTS_QUERY, _find_incidents_on_server)


def complete_notifications(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete ids of notifications, the newest first. Return [] if the configuration or the server has a fault."""
    return _complete(ctx, incomplete, _NOTIFICATIONS_QUERY, _find_notifications_on_server)


def complete_schedules(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete ids of schedules, the next due ones first. Return [] if the configuration or the server has a fault."""
    return _complete(ctx, incomplete, _SCHEDULES_QUERY, _find_schedules_on_server)


def complete_approvals(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete ids of open approvals, the newest first. Return [] if the configuration or the server has a fault."""
    return _complete(ctx, incomplete, _APPROVALS_QUERY, _find_approvals_on_server)


def complete_keys(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the names of keys that are not revoked. Return [] if the configuration or the server has a fault."""
    return _complete(ctx, incomplete, _KEYS_QUERY, _find_keys_on_server)


def complete_webhooks(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the names of webhooks that are not revoked. Return [] if the configuration or the server has a fault."""
    return _complete(ctx, incomplete, _WEBHOOKS_QUERY, _find_webhooks_on_server)


def _complete(
    ctx: click.Context,
    incomplete: str,
    sqlite_query: str,
    find_on_server: Callable[[Settings, str], Coroutine[Any, Any, list[str]]],
) -> list[str]:
    with suppress(CoReasonError):
        settings = load_storage_settings_quietly(_project(ctx), ctx.params.get("file"), ctx.params.get("data"))
        if (file := sqlite_file(settings)) is not None:
            found = _find_in_file(file, sqlite_query, incomplete)
        else:
            import asyncio

            found = asyncio.run(find_on_server(settings, incomplete))
        return [name for name in found if _is_literal(name)]
    return []


def _is_literal(name: str) -> bool:
    """Return True if a shell shows a name as it is and takes it literally: others choose it, and a command contains it."""
    return escape_label(name) == name and _LITERAL.fullmatch(name) is not None


def _find_in_file(database: Path, query: str, incomplete: str) -> list[str]:
    import sqlite3

    # The file is read without the repositories. If it has no log (WAL), there is no writer. SQLite would create a log even to
    # read, and leave it behind.
    mode = "mode=ro" if database.with_name(f"{database.name}-wal").exists() else "mode=ro&immutable=1"
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{database.as_uri()}?{mode}", uri=True, timeout=0.5)) as reader:
        return [name for (name,) in reader.execute(query, (len(incomplete), incomplete, MAX_COMPLETIONS))]
    return []


async def _find_conversations_on_server(settings: Settings, incomplete: str) -> list[str]:
    found = await _find_on_server(settings, lambda agent: agent.list_conversations(id_prefix=incomplete, limit=MAX_COMPLETIONS))
    found.sort(key=lambda record: record.status.last_interaction, reverse=True)
    return list(dict.fromkeys(record.conversation_id for record in found))[:MAX_COMPLETIONS]


async def _find_incidents_on_server(settings: Settings, incomplete: str) -> list[str]:
    from ..storage import load_newest_incidents, open_database

    database = await open_database(settings.storage.url, is_read_only=True)
    try:
        agents = [bare_jid(agent.jid) for agent in settings.agents]
        found = await load_newest_incidents(database, agents, MAX_COMPLETIONS)
    finally:
        await database.close()
    return [incident.number for incident in found if incident.number.startswith(incomplete)]


async def _find_notifications_on_server(settings: Settings, incomplete: str) -> list[str]:
    found = await _find_on_server(settings, lambda agent: agent.notifications.find_by_prefix(incomplete, MAX_COMPLETIONS))
    return [one.notification_id for one in found]


async def _find_schedules_on_server(settings: Settings, incomplete: str) -> list[str]:
    found = await _find_on_server(settings, lambda agent: agent.schedules.find_by_prefix(incomplete, MAX_COMPLETIONS))
    return [one.schedule_id for one in found]


async def _find_approvals_on_server(settings: Settings, incomplete: str) -> list[str]:
    from ..contracts import QuestionState

    found = await _find_on_server(settings, lambda agent: agent.questions.load_all(kind="approval", state=QuestionState.OPEN))
    return [one.question_id for one in found if one.question_id.startswith(incomplete)][:MAX_COMPLETIONS]


async def _find_keys_on_server(settings: Settings, incomplete: str) -> list[str]:
    from ..storage import KeyRepository, open_database

    database = await open_database(settings.storage.url, is_read_only=True)
    try:
        found = await KeyRepository(database).load_all()
    finally:
        await database.close()
    return [key.name for key in found if key.revoked_at is None and key.name.startswith(incomplete)][:MAX_COMPLETIONS]


async def _find_webhooks_on_server(settings: Settings, incomplete: str) -> list[str]:
    from ..storage import WebhookRepository, open_database

    database = await open_database(settings.storage.url, is_read_only=True)
    try:
        found = await WebhookRepository(database).load_all()
    finally:
        await database.close()
    return [one.name for one in found if one.revoked_at is None and one.name.startswith(incomplete)][:MAX_COMPLETIONS]


async def _find_on_server(settings: Settings, find: Callable[[AgentRepository], Awaitable[list[Found]]]) -> list[Found]:
    from ..storage import AgentRepository, open_database

    database = await open_database(settings.storage.url, is_read_only=True)
    try:
        return [one for agent in settings.agents for one in await find(AgentRepository(database, bare_jid(agent.jid)))]
    finally:
        await database.close()


def _project(ctx: click.Context) -> Path:
    # During completion no command runs, so there are no `GlobalOptions`.
    project: Path = ctx.find_root().params.get("project") or Path.cwd()
    return project
