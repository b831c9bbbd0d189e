"""The operations on running turns: list them, or let them finish and stop the platform."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime

from .definition import OPERATORS, PLATFORM_TRAIL, Call, operation
from .host import select_agents
from .log_level import Nothing
from .memory import OfAgents

_WAIT_S = 0.5


@dataclass(frozen=True, slots=True)
class RunningTurn:
    """A turn that runs: of which person (a bare JID), in which conversation, and since when.

    `last_step` is the name of its last durable step, or empty. `waits_in` is the place in the code where it waits.
    """

    agent: str
    person: str
    conversation_id: str
    since: datetime
    last_step: str
    waits_in: str


@dataclass(frozen=True, slots=True)
class DrainedTurns:
    """The number of turns that were finished before the stop. With `is_complete` False the platform runs on."""

    turns: int
    is_complete: bool


@operation("turns.list", OPERATORS, needs_platform=True, timeout_s=5.0)
async def list_turns(call: Call, arguments: OfAgents) -> list[RunningTurn]:
    """List the turns that run, of all agents or one, with what each waits for."""
    running = [call.host.running_agent(agent) for agent in await select_agents(call.host, arguments.agent)]
    return [turn for agent in running if agent is not None for turn in agent.list_turns()]


@operation("platform.drain", is_change=True, needs_platform=True)
async def drain_platform(call: Call, arguments: Nothing) -> DrainedTurns:
    """Let the running turns finish, start no others, and stop the platform."""
    await call.record(PLATFORM_TRAIL, "platform.drain", "the platform")
    found = [call.host.running_agent(agent) for agent in await call.host.list_agents()]
    agents = [agent for agent in found if agent is not None]
    held = [agent for agent in agents if not agent.is_paused]
    total = left = sum(agent.busy_count for agent in agents)
    while not call.is_stopped:
        call.on_progress(max(0, total - left), total)
        await asyncio.gather(*(agent.finish_turns(_WAIT_S) for agent in agents))
        if not (left := sum(agent.busy_count for agent in agents)):
            break
    if left:
        for agent in held:
            agent.continue_turns()
    else:
        call.host.stop()
    return DrainedTurns(max(0, total - left), is_complete=not left)
