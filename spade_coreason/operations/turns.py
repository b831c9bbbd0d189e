"""The operations on running turns."""

from __future__ import annotations

import asyncio

from .definition import OPERATORS, Call, operation
from .host import select_agents
from .memory import OfAgents
from .status import RunningTurn


@operation("turns.list", OPERATORS, needs_platform=True, timeout_s=5.0)
async def list_turns(call: Call, arguments: OfAgents) -> list[RunningTurn]:
    """List the turns that run, of all agents or one, with what each waits for."""

    async def list_of(agent: str) -> list[RunningTurn]:
        running = await call.host.running_agent(agent)
        return [] if running is None else await running.list_turns()

    # All at once: other workers are asked for theirs.
    found = await asyncio.gather(*map(list_of, await select_agents(call.host, arguments.agent)))
    return [turn for turns in found for turn in turns]
