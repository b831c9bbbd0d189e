"""The command `spade-coreason incident`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ....exceptions import ConfigError
from ....operations.incidents import list_incidents, show_incident, show_incident_messages
from ...completion import complete_field
from ...context import define_command as define
from ...operations import refuse_options
from ...views import make_parameters, run_operation


@define("incident")
@click.argument("words", metavar="[ID]", nargs=-1, shell_complete=complete_field("incidents", "id"))
@click.option(
    "--message",
    "has_texts",
    is_flag=True,
    help="Also show the messages of the exceptions. This writes an entry to the audit trail.",
)
def command(words: tuple[str, ...], has_texts: bool, file: Path | None, data: Path | None, as_json: bool, **given: Any) -> int:
    """Show the exception behind an incident number.

    ID is the number in the message that the person received: "Something went wrong on my side (incident 1f2e3d4c)". Without
    ID, the newest incidents are listed. Works while the platform runs.

    The message of an exception may quote a person. It is shown only with --message, which writes an entry to the audit trail
    of the agent. The newest 1,000 incidents of an agent and the newest 100 of a person are kept. They are deleted with the
    person's data.

    \b
      spade-coreason incident
      spade-coreason incident 1f2e3d4c
      spade-coreason incident 1f2e3d4c --message
    """
    if words:
        refuse_options(given.keys() - {"agent"}, "is for the list of incidents, without ID")
        show = show_incident_messages if has_texts else show_incident
        return run_operation(show, file, data, as_json=as_json, agent=given["agent"], id=" ".join(words))
    if has_texts:
        raise ConfigError("--message", "needs the number of an incident: spade-coreason incident ID --message")
    return run_operation(list_incidents, file, data, as_json=as_json, **given)


command.params += make_parameters(list_incidents)
