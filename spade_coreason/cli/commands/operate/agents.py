"""The command `spade-coreason agents`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...account import data_option
from ...context import define_command as define, json_option
from ...operations import require_running
from ...settings import config_option
from ...terminal.console import print_json, print_table

if TYPE_CHECKING:
    from ....operations.status import AgentStatus


@define("agents")
@config_option("config/platform.yaml, if it exists")
@data_option
@json_option("Print the cards of the agents as JSON.")
def command(file: Path | None, data: Path | None, as_json: bool) -> int:
    """List the agents of the running platform with their capabilities.

    The list has all agents, with the cards by which other agents find them. A directory agent shows each sender only the agents
    that the sender may talk to.

    --json shows the schemas of the capabilities, too.

    Exit code: 0 success, 2 a mistake in the configuration, 4 no platform is running, or it does not answer.

    \b
      spade-coreason agents
      spade-coreason agents --data /var/lib/agents --json
    """
    from ....operations.definition import NoArguments
    from ....operations.platform import show_status

    found = require_running(file, data).perform(show_status, NoArguments())
    if as_json:
        print_json([_describe_agent(agent) for agent in found.agents])
    else:
        print_table(("agent", "state", "capabilities", "description"), map(_agent_row, found.agents), texts=("description",))
    return 0


def _describe_agent(agent: AgentStatus) -> dict[str, Any]:
    from ....domain.cards import dump_card

    card = {} if agent.card is None else dump_card(agent.card)
    return {"jid": agent.jid, "state": _state_of(agent), **card}


def _agent_row(agent: AgentStatus) -> tuple[str, ...]:
    card = agent.card
    if card is None:
        return agent.jid, _state_of(agent), "", ""
    return agent.jid, _state_of(agent), ", ".join(one.name for one in card.capabilities), card.description


def _state_of(agent: AgentStatus) -> str:
    return "paused" if agent.is_paused and agent.state == "online" else agent.state
