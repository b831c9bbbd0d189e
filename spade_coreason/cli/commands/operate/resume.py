"""The command `spade-coreason resume`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from ...account import data_option
from ...completion import complete_agents
from ...context import define_command as define
from ...operations import open_platform
from ...settings import config_option
from ...terminal.console import print_json, print_line


@define("resume")
@click.argument("agent", metavar="[AGENT]", required=False, shell_complete=complete_agents)
@config_option("config/platform.yaml, if it exists")
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def command(agent: str | None, file: Path | None, data: Path | None, as_json: bool) -> None:
    """Resume a paused agent: it answers what was stored.

    The messages are answered in their order. Works with and without a running platform. An operator does the same in a chat
    with /resume.

    AGENT is a JID or its name alone; "*" means all agents. It may be left out if there is only one.

    \b
      spade-coreason resume notes
    """
    from ....operations.agents import resume_agents
    from ....operations.memory import OfAgents

    with open_platform(file, data, changes=True) as platform:
        found = platform.perform(resume_agents, OfAgents(agent=agent))
    if as_json:
        print_json([asdict(pause) for pause in found])
        return
    for pause in found:
        print_line(f"{pause.agent} {'continues' if pause.is_changed else 'was not paused'}.")
