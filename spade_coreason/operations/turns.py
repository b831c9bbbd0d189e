"""The operations on running turns."""

from __future__ import annotations

from .definition import OPERATORS, Call, operation
from .host import select_agents
from .memory import OfAgents
from .status import RunningTurn


@operation("turns.list", OPERATORS, needs_platform=True, timeout_s=5.0)
async def list_turns(call: Call, arguments: OfAgents) -> list[RunningTurn]:
    """List the turns that run, of all agents or one, with what each waits for."""
    running = [await call.host.running_agent(agent) for agent in await select_agents(call.host, arguments.agent)]
    return [turn for agent in running if agent is not None for turn in await agent.list_turns()]
