"""Pause and resume agents, and show what their quotas have counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from ..domain.quotas import QuotaUsage
from ..domain.texts.translation import N_
from ..exceptions import ConfigError
from .definition import EVERYBODY, OPERATORS, About, Call, OfAgents, operation
from .host import describe_agents, select_agent, select_agents
from .view import Slash, TableView, View


@dataclass(frozen=True, slots=True)
class AgentPause:
    """The pause of an agent. `is_changed` is False if it was as wanted before."""

    agent: str
    is_paused: bool
    is_changed: bool


@operation(
    "agents.pause",
    OPERATORS,
    is_change=True,
    view=View(
        command="pause",
        examples=["pause notes"],
        given=["agent"],
        done=("{agent} is paused.", "{agent} was paused already."),
        slash=Slash(
            name="pause",
            description=N_("pause: start no new answers, and store every message"),
            done=N_("Paused. I start no new answers, and store every message. Continue with /resume."),
            unchanged=N_("I am paused already. Continue with /resume."),
        ),
        offered=lambda row: not row.is_paused,
    ),
)
async def pause_agents(call: Call, arguments: OfAgents) -> list[AgentPause]:
    """Pause an agent: it stores every message and answers none.

    Answers that are being written are finished. A pause lasts over restarts, until `resume`. An operator does the same in a
    chat with /pause.

    AGENT is a JID or its name alone; "*" means all agents. It may be left out if there is only one.
    """
    return await _set_paused(call, arguments, is_paused=True)


@operation(
    "agents.resume",
    OPERATORS,
    is_change=True,
    view=View(
        command="resume",
        examples=["resume notes"],
        given=["agent"],
        done=("{agent} continues.", "{agent} was not paused."),
        slash=Slash(
            name="resume",
            description=N_("continue after a pause"),
            done=N_("I continue."),
            unchanged=N_("I am not paused."),
        ),
        offered=lambda row: row.is_paused,
    ),
)
async def resume_agents(call: Call, arguments: OfAgents) -> list[AgentPause]:
    """Resume a paused agent: it answers what was stored.

    The messages are answered in their order. An operator does the same in a chat with /resume.

    AGENT is a JID or its name alone; "*" means all agents. It may be left out if there is only one.
    """
    return await _set_paused(call, arguments, is_paused=False)


class ListUsage(OfAgents):
    """The use of a person, or without one the total and at most `limit` of those who used most."""

    person: Annotated[str | None, About("Show the use of this person only.", "JID")] = None
    limit: Annotated[int, Ge(1), About("Show this many, those who wrote most first.")] = 20


@operation(
    "quotas.list",
    EVERYBODY,
    prefers_running=True,
    view=View(
        command="quotas",
        examples=["quotas notes", "quotas notes --person alice@example.org"],
        given=["agent"],
        table=TableView(
            columns=[
                ("holder", lambda usage: usage.holder or "everybody"),
                ("kind", lambda usage: usage.role or usage.scope),
                ("messages", lambda usage: f"{usage.messages:,}"),
                ("quota", lambda usage: f"{usage.messages_per_day:,}" if usage.messages_per_day else "none"),
                ("bytes", lambda usage: f"{usage.bytes:,}"),
                ("quota of bytes", lambda usage: f"{usage.bytes_per_day:,}" if usage.bytes_per_day else "none"),
                ("refused", lambda usage: f"{usage.refused:,}"),
            ]
        ),
        links=["sessions.list", "memory.recall", "people.export", "people.delete"],
    ),
)
async def list_usage(call: Call, arguments: ListUsage) -> list[QuotaUsage]:
    """Show what was used of an agent's quotas today.

    That is what everybody has used, and the domains, rooms and people who wrote most. A day begins at midnight UTC. Only a
    running platform knows what it has refused.

    AGENT is a JID or its name alone. It may be left out if there is only one.
    """
    agent = await select_agent(call.host, arguments.agent)
    return await (await call.host.open_agent(agent)).list_usage(arguments.person, arguments.limit)


async def _set_paused(call: Call, arguments: OfAgents, *, is_paused: bool) -> list[AgentPause]:
    agents = await select_agents(call.host, arguments.agent)
    if arguments.agent is None and len(agents) > 1:
        raise ConfigError("agent", f'is missing; name one, or "*" for all: {describe_agents(agents)}')
    found = []
    for agent in agents:
        found_agent = await call.host.open_agent(agent, changes=True)
        is_stored = (await call.host.repository(agent).load_agent()).is_paused is is_paused
        is_changed = await found_agent.find_pause() is not is_paused or not is_stored
        if is_changed:
            # It has effect first: an operator who pauses an agent may do so because it cannot store anything.
            written = found_agent.set_paused(is_paused)
            await call.record(agent, "agents.pause" if is_paused else "agents.resume", "the agent")
            await written
        found.append(AgentPause(agent, is_paused, is_changed))
    return found
