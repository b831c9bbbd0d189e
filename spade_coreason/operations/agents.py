"""The operations on whole agents: pause and resume, and what their quotas have counted."""

from __future__ import annotations

import heapq
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import cast

from pydantic import Field

from ..contracts.base import utc_now
from ..domain.quotas import QuotaScope
from ..exceptions import ConfigError
from .definition import EVERYBODY, OPERATORS, Arguments, Call, operation
from .host import describe_agents, select_agent, select_agents
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


@operation("quotas.list", EVERYBODY)
async def list_usage(call: Call, arguments: ListUsage) -> list[QuotaUsage]:
    """List what was used of the quotas of an agent today (UTC). What was refused is known to a running platform only."""
    agent = await select_agent(call.host, arguments.agent)
    if (running := await call.host.running_agent(agent)) is not None:
        return await running.list_usage(arguments.person, arguments.limit)
    stored = await call.host.repository(agent).load_agent() if call.host.database is not None else None
    quotas, today = call.host.quotas(agent), utc_now().date()
    counted = {("total", ""): QuotaUsage.of("total", "", "", quotas.total, 0, 0)}
    if arguments.person is not None:
        counted["person", arguments.person] = QuotaUsage.of("person", arguments.person, *quotas.role_of(arguments.person), 0, 0)
    for count in stored.find_message_counts() if stored is not None else ():
        if count.day == today:
            scope = cast(QuotaScope, count.kind)
            role, quota = quotas.quota_of(scope, count.holder)
            counted[scope, count.holder] = QuotaUsage.of(scope, count.holder, role, quota, count.messages, count.bytes)
    if arguments.person is not None:
        return [counted["person", arguments.person]]
    total = counted.pop(("total", ""))
    return [total, *heapq.nlargest(arguments.limit, counted.values(), key=lambda usage: usage.messages)]


async def _set_paused(call: Call, arguments: OfAgents, *, is_paused: bool) -> list[AgentPause]:
    agents = await select_agents(call.host, arguments.agent)
    if arguments.agent is None and len(agents) > 1:
        raise ConfigError("agent", f'is missing; name one, or "*" for all: {describe_agents(agents)}')
    found = []
    for agent in agents:
        running, repository = await call.host.running_agent(agent, changes=True), call.host.repository(agent)
        is_stored = (await repository.load_agent()).is_paused is is_paused
        is_changed = not is_stored if running is None else await running.find_pause() is not is_paused or not is_stored
        if is_changed:
            # It has effect first: an operator who pauses an agent may do so because it cannot store anything.
            written: Awaitable[bool] = (repository.save_pause if running is None else running.set_paused)(is_paused)
            await call.record(agent, "agents.pause" if is_paused else "agents.resume", "the agent")
            await written
        found.append(AgentPause(agent, is_paused, is_changed))
    return found
