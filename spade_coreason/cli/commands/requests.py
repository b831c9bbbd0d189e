"""The command `spade-coreason requests`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...exceptions import ConfigError
from ..agent_storage import AgentStorage, confirm, open_storage, storage_options
from ..context import CLIGroup, run_async
from ..terminal.console import encode_json, format_time, print_json, print_line, print_table, print_text

if TYPE_CHECKING:
    from ...storage import CrashedRequest


@click.group("requests", cls=CLIGroup)
def command() -> None:
    """List requests that ended the platform, and retry or delete them.

    A request that was running when the platform crashed runs again at the next start. After two crashes it runs alone. If the
    platform crashes once more, the request has failed: its sender gets an error, and the request is listed here for seven
    days. The same happens to a request that five stops of the platform have cut off, at the next stop that cuts off no other
    one. A request that blocked the platform for a minute until it was killed has failed at once. `retry` and `drop` write an
    entry to the audit trail of the agent.

    \b
      spade-coreason requests list
      spade-coreason requests show 4711
      spade-coreason requests retry 4711
      spade-coreason requests drop 4711
    """


@command.command("list")
@storage_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def list_(file: Path | None, data: Path | None, agent: str | None, as_json: bool) -> None:
    """List the failed requests, the oldest first, without their text. Works while the platform runs.

    \b
      spade-coreason requests list --agent notes
    """
    run_async(_list(file, data, agent, as_json))


async def _list(file: Path | None, data: Path | None, agent: str | None, as_json: bool) -> None:
    async with open_storage(file, data, agent) as storage:
        found = await _load_failed(storage)
    if as_json:
        print_json([_record(request) for request in found])
    elif not found:
        print_line(storage.describe_none("failed requests"))
    else:
        rows = [(r.id, r.agent, r.sender, r.crashes, r.stops, format_time(r.received_at)) for r in found]
        print_table(("id", "agent", "sender", "crashes", "stops", "received"), rows)


@command.command("show")
@click.argument("request_id", metavar="ID", type=int)
@storage_options
@click.option("--json", "as_json", is_flag=True, help="Print the request as JSON.")
def show(file: Path | None, data: Path | None, agent: str | None, request_id: int, as_json: bool) -> None:
    """Show a failed request with its text. Works while the platform runs.

    ID is a number from `requests list`.

    \b
      spade-coreason requests show 4711
    """
    run_async(_show(file, data, agent, request_id, as_json))


async def _show(file: Path | None, data: Path | None, agent: str | None, request_id: int, as_json: bool) -> None:
    async with open_storage(file, data, agent) as storage:
        request = await _find(storage, request_id)
    payload = json.loads(request.request).get("payload", {})
    if as_json:
        print_json({**_record(request), "payload": payload})
        return
    text = payload.get("query")
    ends = f"{request.crashes} crashes, {request.stops} stops"
    print_line(f"{request.id}: {request.sender} to {request.agent}, {format_time(request.received_at)}, {ends}")
    print_text(text if isinstance(text, str) else encode_json(payload))


@command.command("retry")
@click.argument("request_id", metavar="ID", type=int)
@storage_options
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def retry(file: Path | None, data: Path | None, agent: str | None, request_id: int, yes: bool) -> None:
    """Run a failed request again at the next start. Stop the platform first.

    ID is a number from `requests list`.

    \b
      spade-coreason requests retry 4711
    """
    run_async(_change(file, data, agent, request_id, yes, is_retry=True))


@command.command("drop")
@click.argument("request_id", metavar="ID", type=int)
@storage_options
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def drop(file: Path | None, data: Path | None, agent: str | None, request_id: int, yes: bool) -> None:
    """Delete a failed request. Stop the platform first.

    ID is a number from `requests list`.

    \b
      spade-coreason requests drop 4711
    """
    run_async(_change(file, data, agent, request_id, yes, is_retry=False))


async def _change(
    file: Path | None, data: Path | None, agent: str | None, request_id: int, yes: bool, *, is_retry: bool
) -> None:
    from ...contracts import AuditEntry
    from ...storage import drop_failed_request, retry_failed_request

    async with open_storage(file, data, agent, is_exclusive=True) as storage:
        request = await _find(storage, request_id)
        action = "run again at the next start" if is_retry else "delete"
        confirm(f"{action}: the request {request.id} of {request.sender} to {request.agent}", yes)
        repository = storage.repository(request.agent)
        if storage.database is not None and repository is not None:
            action, resource = f"requests.{'retry' if is_retry else 'drop'}", f"request {request.id}"
            entry = AuditEntry(actor="operator", action=action, resource=resource, outcome="success")
            await repository.audit_trail.append(entry, request.sender)
            await (retry_failed_request if is_retry else drop_failed_request)(storage.database, request)
    print_line(f"The request {request.id} {'runs again at the next start' if is_retry else 'is deleted'}.")


async def _load_failed(storage: AgentStorage) -> list[CrashedRequest]:
    from ...storage import load_failed_requests

    return [] if storage.database is None else await load_failed_requests(storage.database, storage.agents)


async def _find(storage: AgentStorage, request_id: int) -> CrashedRequest:
    for request in await _load_failed(storage):
        if request.id == request_id:
            return request
    raise ConfigError("ID", f"there is no failed request {request_id}; `requests list` shows them all")


def _record(request: CrashedRequest) -> dict[str, Any]:
    from ...contracts.base import format_rfc3339

    return {
        "id": request.id,
        "agent_id": request.agent,
        "sender": request.sender,
        "crashes": request.crashes,
        "stops": request.stops,
        "received_at": format_rfc3339(request.received_at),
        "failed_at": None if request.failed_at is None else format_rfc3339(request.failed_at),
    }
