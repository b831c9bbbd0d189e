"""The command `spade-coreason incident`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ....exceptions import ConfigError
from ...completion import complete_incidents
from ...context import define_command as define, json_option
from ...operations import describe_none, open_platform, storage_options
from ...terminal.console import format_timestamp, print_cleaned, print_json, print_line, print_table
from ...terminal.tracebacks import format_frame, format_traceback

if TYPE_CHECKING:
    from ....domain.texts.error_chain import ErrorChain
    from ....operations.incidents import IncidentContents

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
@json_option("Print JSON.")
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
        _list(file, data, agent, as_json)
    else:
        _show(file, data, agent, " ".join(words), has_texts, as_json)


def _list(file: Path | None, data: Path | None, agent: str | None, as_json: bool) -> None:
    from ....operations.incidents import ListIncidents, list_incidents

    with open_platform(file, data) as platform:
        found = platform.perform(list_incidents, ListIncidents(agent=agent, limit=_LISTED))
    if as_json:
        print_json([_record(incident, has_texts=False) for incident in found])
    elif not found:
        print_line(describe_none(platform, "incidents"))
    else:
        print_table(("id", "agent", "time", "type", "place"), map(_row, found))


def _show(file: Path | None, data: Path | None, agent: str | None, text: str, has_texts: bool, as_json: bool) -> None:
    from ....operations.incidents import OfIncident, show_incident, show_incident_messages

    with open_platform(file, data, changes=has_texts) as platform:
        incident = platform.perform(show_incident_messages if has_texts else show_incident, OfIncident(agent=agent, id=text))
    if as_json:
        print_json(_record(incident, has_texts=has_texts))
        return
    print_line(_describe(incident))
    print_cleaned(format_traceback(_chain(incident), shows_text=has_texts))


def _chain(incident: IncidentContents) -> ErrorChain:
    from ....domain.texts.error_chain import load_error_chain

    return load_error_chain(incident.errors)


def _row(incident: IncidentContents) -> tuple[str, ...]:
    from ....domain.texts.error_chain import find_frame

    chain = _chain(incident)
    where = format_frame(find_frame(chain))
    return incident.id, incident.agent_id, format_timestamp(incident.occurred_at), chain[-1].short_type, where


def _describe(incident: IncidentContents) -> str:
    conversation = f", conversation {incident.conversation_id}" if incident.conversation_id is not None else ""
    when = format_timestamp(incident.occurred_at)
    return f"incident {incident.id}: {incident.agent_id}, {when}, with {incident.person}{conversation}"


def _record(incident: IncidentContents, *, has_texts: bool) -> dict[str, Any]:
    errors = [
        {
            "type": error.type,
            "relation": error.relation or None,
            **({"message": error.text} if has_texts else {}),
            "frames": [frame._asdict() for frame in error.frames],
            "omitted_frames": error.omitted,
        }
        for error in _chain(incident)
    ]
    return {**asdict(incident), "errors": errors}
