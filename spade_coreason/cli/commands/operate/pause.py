"""The command `spade-coreason pause`, and what `resume` shares with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...account import data_option
from ...completion import complete_agents
from ...context import define_command as define, json_option
from ...operations import open_platform
from ...settings import config_option
from ...terminal.console import print_json, print_line

if TYPE_CHECKING:
    from ....operations.agents import AgentPause
    from ....operations.definition import Operation
    from ....operations.memory import OfAgents


def pause_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument AGENT and the options of `pause` and `resume`."""
    agent = click.argument("agent", metavar="[AGENT]", required=False, shell_complete=complete_agents)
    as_json = json_option()
    return agent(config_option("config/platform.yaml, if it exists")(data_option(as_json(function))))


def set_paused(
    operation: Operation[OfAgents, list[AgentPause]],
    agent: str | None,
    file: Path | None,
    data: Path | None,
    *,
    as_json: bool,
    texts: tuple[str, str],
) -> None:
    """Pause or resume agents. `texts` are for those that were not and that were so before."""
    from ....operations.memory import OfAgents

    with open_platform(file, data, changes=True) as platform:
        found = platform.perform(operation, OfAgents(agent=agent))
    if as_json:
        print_json([asdict(pause) for pause in found])
        return
    for pause in found:
        print_line(f"{pause.agent} {texts[0] if pause.is_changed else texts[1]}.")


@define("pause")
@pause_options
def command(agent: str | None, file: Path | None, data: Path | None, as_json: bool) -> None:
    """Pause an agent: it stores every message and answers none.

    Answers that are being written are finished. A pause lasts over restarts, until `resume`. Works with and without a running
    platform. An operator does the same in a chat with /pause.

    AGENT is a JID or its name alone; "*" means all agents. It may be left out if there is only one.

    \b
      spade-coreason pause notes
    """
    from ....operations.agents import pause_agents

    set_paused(pause_agents, agent, file, data, as_json=as_json, texts=("is paused", "was paused already"))
