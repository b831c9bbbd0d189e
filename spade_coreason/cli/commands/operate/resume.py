"""The command `spade-coreason resume`."""

from __future__ import annotations

from pathlib import Path

from ...context import define_command as define
from .pause import pause_options, set_paused


@define("resume")
@pause_options
def command(agent: str | None, file: Path | None, data: Path | None, as_json: bool) -> None:
    """Resume a paused agent: it answers what was stored.

    The messages are answered in their order. Works with and without a running platform. An operator does the same in a chat
    with /resume.

    AGENT is a JID or its name alone; "*" means all agents. It may be left out if there is only one.

    \b
      spade-coreason resume notes
    """
    from ....operations.agents import resume_agents

    set_paused(resume_agents, agent, file, data, as_json=as_json, texts=("continues", "was not paused"))
