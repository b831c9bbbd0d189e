"""The command `spade-coreason requests`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...context import CLIGroup, json_option
from ...operations import confirm, describe_none, open_platform, storage_options, yes_option
from ...terminal.console import encode_json, format_timestamp, print_json, print_line, print_table, print_text

if TYPE_CHECKING:
    from ....operations.requests import FailedRequest


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
@json_option()
def list_(file: Path | None, data: Path | None, agent: str | None, as_json: bool) -> None:
    """List the failed requests, the oldest first, without their text. Works while the platform runs.

    \b
      spade-coreason requests list --agent notes
    """
    from ....operations.memory import OfAgents
    from ....operations.requests import list_requests

    with open_platform(file, data) as platform:
        found = platform.perform(list_requests, OfAgents(agent=agent))
    if as_json:
        print_json([asdict(request) for request in found])
    elif not found:
        print_line(describe_none(platform, "failed requests"))
    else:
        rows = [(r.id, r.agent_id, r.sender, r.crashes, r.stops, format_timestamp(r.received_at)) for r in found]
        print_table(("id", "agent", "sender", "crashes", "stops", "received"), rows)


@command.command("show")
@click.argument("request_id", metavar="ID", type=int)
@storage_options
@json_option("Print the request as JSON.")
def show(file: Path | None, data: Path | None, agent: str | None, request_id: int, as_json: bool) -> None:
    """Show a failed request with its text. Works while the platform runs.

    ID is a number from `requests list`.

    \b
      spade-coreason requests show 4711
    """
    from ....operations.requests import OfRequest, show_request

    with open_platform(file, data) as platform:
        found = platform.perform(show_request, OfRequest(agent=agent, id=request_id))
    request = found.request
    if as_json:
        print_json({**asdict(request), "payload": found.payload})
        return
    text = found.payload.get("query")
    ends = f"{request.crashes} crashes, {request.stops} stops"
    print_line(f"{request.id}: {request.sender} to {request.agent_id}, {format_timestamp(request.received_at)}, {ends}")
    print_text(text if isinstance(text, str) else encode_json(found.payload))


@command.command("retry")
@click.argument("request_id", metavar="ID", type=int)
@storage_options
@yes_option
def retry(file: Path | None, data: Path | None, agent: str | None, request_id: int, yes: bool) -> None:
    """Run a failed request again: now if the platform runs, else at its next start.

    ID is a number from `requests list`.

    \b
      spade-coreason requests retry 4711
    """
    from ....operations.requests import OfRequest, retry_request, show_request

    with open_platform(file, data, changes=True) as platform:
        wanted = OfRequest(agent=agent, id=request_id)
        _confirm("run again", platform.perform(show_request, wanted).request, yes)
        retried = platform.perform(retry_request, wanted)
    print_line(f"The request {request_id} runs again{' now' if retried.runs_now else ' once its agent runs'}.")


@command.command("drop")
@click.argument("request_id", metavar="ID", type=int)
@storage_options
@yes_option
def drop(file: Path | None, data: Path | None, agent: str | None, request_id: int, yes: bool) -> None:
    """Delete a failed request. Works while the platform runs.

    ID is a number from `requests list`.

    \b
      spade-coreason requests drop 4711
    """
    from ....operations.requests import OfRequest, drop_request, show_request

    with open_platform(file, data, changes=True) as platform:
        wanted = OfRequest(agent=agent, id=request_id)
        _confirm("delete", platform.perform(show_request, wanted).request, yes)
        platform.perform(drop_request, wanted)
    print_line(f"The request {request_id} is deleted.")


def _confirm(action: str, request: FailedRequest, is_confirmed: bool) -> None:
    confirm(f"{action} the request {request.id} of {request.sender} to {request.agent_id}", is_confirmed)
