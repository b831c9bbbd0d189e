"""The operations on whole agents: pause and resume, and what their quotas have counted."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from ..exceptions import ConfigError
from .definition import EVERYBODY, OPERATORS, Arguments, Call, operation
from .host import OperationHost, RunningAgent, select_agent, select_agents
from .memory import OfAgents
from .status import QuotaUsage


@dataclass(frozen=True, slots=True)
class AgentPause:
    """The pause of an agent. `is_changed` is False if it was as wanted before."""

    agent: str
    is_paused: bool
    is_changed: bool


@operation("agents.pause", OPERATORS, is_change=True)
async def pause_agents(call: Call, arguments: OfAgents) -> list[AgentPause]:
    """Pause agents: they start no new answers, and store every message. It lasts over restarts."""
    return await _set_paused(call, arguments, is_paused=True)


@operation("agents.resume", OPERATORS, is_change=True)
async def resume_agents(call: Call, arguments: OfAgents) -> list[AgentPause]:
    """End the pause of agents: they answer what was stored, in its order."""
    return await _set_paused(call, arguments, is_paused=False)


class ListUsage(Arguments):
    """The use of a person, or without one the total and at most `limit` of those who used most."""

    agent: str | None = None
    person: str | None = None
    limit: int = Field(100, ge=1)


@operation("quotas.list", EVERYBODY, needs_platform=True)
async def list_usage(call: Call, arguments: ListUsage) -> list[QuotaUsage]:
    """List what was used of the quotas of an agent today."""
    agent = await select_agent(call.host, arguments.agent)
    return require_running_agent(call.host, agent).list_usage(arguments.person, arguments.limit)


def require_running_agent(host: OperationHost, agent: str) -> RunningAgent:
    """Return what runs of an agent. Raise ConfigError if it does not run."""
    if (running := host.running_agent(agent)) is None:
        raise ConfigError("agent", f"{agent} does not run; `spade-coreason status` says why")
    return running


async def _set_paused(call: Call, arguments: OfAgents, *, is_paused: bool) -> list[AgentPause]:
    if arguments.agent is None:
        await select_agent(call.host, None)
    found = []
    for agent in await select_agents(call.host, arguments.agent):
        running, repository = call.host.running_agent(agent), call.host.repository(agent)
        is_stored = (await repository.load_agent()).is_paused is is_paused
        is_changed = not is_stored if running is None else running.is_paused is not is_paused or not is_stored
        if is_changed:
            # It has effect first: an operator who pauses an agent may do so because it cannot store anything.
            written = (repository.save_pause if running is None else running.set_paused)(is_paused)
            await call.record(agent, "agents.pause" if is_paused else "agents.resume", "the agent")
            await written
        found.append(AgentPause(agent, is_paused, is_changed))
    return found
