"""The command `spade-coreason incident`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...exceptions import ConfigError
from ..agent_storage import AgentStorage, open_storage, storage_options
from ..completion import complete_incidents
from ..context import define_command as define, run_async
from ..terminal.console import format_time, one_line, print_cleaned, print_json, print_line, print_table
from ..terminal.tracebacks import format_frame, format_traceback

if TYPE_CHECKING:
    from ...storage import Incident

_LISTED = 20


@define("incident")
@click.argument("words", metavar="[ID]", nargs=-1, shell_complete=complete_incidents)
@storage_options
@click.option(
    "--message",
    "has_texts",
    is_flag=True,
    help="Also show the messages of the exceptions. This writes an entry to the audit trail.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    words: tuple[str, ...], file: Path | None, data: Path | None, agent: str | None, has_texts: bool, as_json: bool
) -> None:
    """Show the exception behind an incident number.

    ID is the number in the message that the person received: "Something went wrong on my side (incident 1f2e3d4c)". Without
    ID, the newest twenty incidents are listed. Works while the platform runs.

    The message of an exception may quote a person. It is shown only with --message, which writes an entry to the audit trail
    of the agent. The newest 1,000 incidents of an agent and the newest 100 of a person are kept. They are deleted with the
    person's data.

    \b
      spade-coreason incident
      spade-coreason incident 1f2e3d4c
      spade-coreason incident 1f2e3d4c --message
    """
    if not words:
        if has_texts:
            raise ConfigError("--message", "needs the number of an incident: spade-coreason incident ID --message")
        run_async(_list(file, data, agent, as_json))
    else:
        run_async(_show(file, data, agent, " ".join(words), has_texts, as_json))


async def _list(file: Path | None, data: Path | None, agent: str | None, as_json: bool) -> None:
    from ...storage import load_newest_incidents

    async with open_storage(file, data, agent) as storage:
        found = [] if storage.database is None else await load_newest_incidents(storage.database, storage.agents, _LISTED)
    if as_json:
        print_json([_record(incident, has_texts=False) for incident in found])
    elif not found:
        print_line(storage.describe_none("incidents"))
    else:
        print_table(("id", "agent", "time", "type", "place"), [_row(incident) for incident in found])


async def _show(file: Path | None, data: Path | None, agent: str | None, text: str, has_texts: bool, as_json: bool) -> None:
    async with open_storage(file, data, agent) as storage:
        incident = await _find(storage, text)
        data_dir = storage.settings.data_dir
    if has_texts:
        incident = await _read_texts(file, data, agent, data_dir, incident)
    if as_json:
        print_json(_record(incident, has_texts=has_texts))
        return
    print_line(_describe(incident))
    print_cleaned(format_traceback(incident.chain, shows_text=has_texts))


async def _read_texts(file: Path | None, data: Path | None, agent: str | None, data_dir: Path, incident: Incident) -> Incident:
    from ...app import read_incident_texts, request_incident_texts
    from ...config import is_platform_running

    if is_platform_running(data_dir):
        return await request_incident_texts(data_dir, incident)
    async with open_storage(file, data, agent, is_exclusive=True) as storage:
        if storage.database is None:
            raise ConfigError("ID", f"incident {incident.number} was deleted a moment ago")
        return await read_incident_texts(storage.database, incident.agent, incident.row, incident.number)


async def _find(storage: AgentStorage, text: str) -> Incident:
    from ...storage import load_incidents

    numbers = re.findall(r"\b[0-9a-f]{8}\b", text.lower())  # also in "incident 1F2E3D4C", or in all that the person was told
    if numbers and storage.database is not None:
        for incident in await load_incidents(storage.database, storage.agents, numbers):
            return incident
    raise ConfigError("ID", f'there is no incident "{one_line(text)}"; `spade-coreason incident` lists the newest')


def _row(incident: Incident) -> tuple[str, ...]:
    from ...domain.texts.error_chain import find_frame

    kind = incident.chain[-1].short_type
    return incident.number, incident.agent, format_time(incident.occurred_at), kind, format_frame(find_frame(incident.chain))


def _describe(incident: Incident) -> str:
    conversation = f", conversation {incident.conversation_id}" if incident.conversation_id is not None else ""
    where = f"{incident.agent}, {format_time(incident.occurred_at)}, with {incident.person}{conversation}"
    return f"incident {incident.number}: {where}"


def _record(incident: Incident, *, has_texts: bool) -> dict[str, Any]:
    from ...contracts.base import format_rfc3339

    errors = [
        {
            "type": error.type,
            "relation": error.relation or None,
            **({"message": error.text} if has_texts else {}),
            "frames": [frame._asdict() for frame in error.frames],
            "omitted_frames": error.omitted,
        }
        for error in incident.chain
    ]
    return {
        "id": incident.number,
        "agent_id": incident.agent,
        "person": incident.person,
        "conversation_id": incident.conversation_id,
        "occurred_at": format_rfc3339(incident.occurred_at),
        "errors": errors,
    }
