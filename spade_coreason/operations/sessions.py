"""The operations on sessions: conversations with their turns, variables, documents and interaction memories."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from ..contracts.base import format_rfc3339
from ..domain.history import parse_interactions
from ..domain.texts.enumeration import join_names
from ..exceptions import ConfigError
from ..memory import ErasureReport, erase_conversation, erase_person, export_person
from ..storage import StoredConversation
from .definition import EVERYBODY, PERSON, Arguments, Call, operation
from .host import OperationHost, select_agent, select_agents, stored_agents


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """A session without its turns. Times are as in RFC 3339."""

    session_id: str
    agent_id: str
    user_id: str
    conversation_id: str
    turns: int
    created_at: str
    last_interaction: str
    state: str


@dataclass(frozen=True, slots=True)
class SessionContents:
    """A session with its newest turns and its variables."""

    summary: SessionSummary
    variables: dict[str, Any]
    person_variables: dict[str, Any]
    history: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class AgentErasure:
    """The report on the deleted data of one agent."""

    agent: str
    report: ErasureReport


@dataclass(frozen=True, slots=True)
class Clearance:
    """The reports on the deleted data, by agent."""

    erasures: list[AgentErasure]
    is_complete: bool = True
    """False if it was stopped. The same call deletes the rest."""


class ListSessions(Arguments):
    """Which sessions. `limit` counts those of each agent, the newest."""

    agent: str | None = None
    person: str | None = None
    limit: int = Field(100, ge=1)


@operation("sessions.list", EVERYBODY)
async def list_sessions(call: Call, arguments: ListSessions) -> list[SessionSummary]:
    """List the sessions of agents, newest first."""
    return [
        _summary(agent, record)
        for agent in await stored_agents(call.host, arguments.agent)
        for record in await call.host.repository(agent).list_conversations(owner=arguments.person, limit=arguments.limit)
    ]


class ShowSession(Arguments):
    """The session of a conversation, by its id. `limit` counts its turns, the newest."""

    conversation: str
    agent: str | None = None
    limit: int = Field(20, ge=1)


@operation("sessions.show", PERSON)
async def show_session(call: Call, arguments: ShowSession) -> SessionContents:
    """Show the session of a conversation: its turns and its variables."""
    agent, record = await find_conversation(call.host, arguments.agent, arguments.conversation)
    repository = call.host.repository(agent)
    turns = parse_interactions(await repository.load_history(record.id, arguments.limit))
    own = await repository.load_variables("conversation", record.conversation_id)
    person = await repository.load_variables("person", record.owner)
    return SessionContents(
        _summary(agent, record), _load_all(own), _load_all(person), [interaction.dump() for interaction in turns]
    )


class OfPerson(Arguments):
    """A person: a bare JID."""

    person: str
    agent: str | None = None


@operation("sessions.export", PERSON, is_change=True)
async def export_sessions(call: Call, arguments: OfPerson) -> dict[str, Any]:
    """Export everything that an agent stores about a person. The trail has an entry of it."""
    agent = await select_agent(call.host, arguments.agent)
    await call.record(agent, "sessions.export", "a person", person=arguments.person)
    return await export_person(call.host.repository(agent), call.host.memory(agent), arguments.person)


class FindTargets(Arguments):
    """The subject of a deletion: a conversation, or all data of agents."""

    agent: str | None = None
    conversation: str | None = None


@dataclass(frozen=True, slots=True)
class Targets:
    """The agents that a deletion would be about, and the owner of the conversation, if it is about one."""

    agents: list[str]
    owner: str | None = None


@operation("sessions.find_targets")
async def find_targets(call: Call, arguments: FindTargets) -> Targets:
    """Find what a deletion would be about."""
    if arguments.conversation is not None:
        agent, record = await find_conversation(call.host, arguments.agent, arguments.conversation)
        return Targets([agent], record.owner)
    if arguments.agent is None:
        return Targets([await select_agent(call.host, None)])
    return Targets(list(await select_agents(call.host, arguments.agent)))


class ClearSessions(Arguments):
    """The subject of a deletion: a person (a bare JID), everyone, or one conversation.

    `agent` is "*" for all agents. It may be left out if there is only one.
    """

    agent: str | None = None
    person: str | None = None
    everyone: bool = False
    conversation: str | None = None


@operation("sessions.clear", PERSON, is_change=True)
async def clear_sessions(call: Call, arguments: ClearSessions) -> Clearance:
    """Delete sessions with their turns, variables, documents and interaction memories."""
    host, person, is_everyone = call.host, arguments.person, arguments.everyone
    if [person is not None, is_everyone, arguments.conversation is not None].count(True) != 1:
        raise ConfigError("sessions.clear", "needs exactly one of a person, everyone and a conversation")
    if arguments.conversation is not None:
        agent, record = await find_conversation(host, arguments.agent, arguments.conversation)
        await call.record(agent, "sessions.clear", f"conversation {record.conversation_id}", person=record.owner)
        return Clearance([AgentErasure(agent, await _erase_conversation(host, agent, record))])
    agents = await stored_agents(host, arguments.agent)
    if arguments.agent is None:
        await select_agent(host, None)
    erasures, steps = dict.fromkeys(agents, ErasureReport()), []
    for agent in agents:
        resource = "all people" if is_everyone else "a person"
        # Someone who deletes all about themselves is not named: the entry stays, and would be data about them.
        await call.record(agent, "sessions.clear", resource, actor="a person" if call.actor.name == person else "")
        people = await host.repository(agent).list_people() if is_everyone else [str(person)]
        steps += [(agent, one) for one in people]
    for done, (agent, one) in enumerate(steps):
        call.on_progress(done, len(steps))
        if call.is_stopped:
            break
        erasures[agent] += await _erase_person(host, agent, one)
    else:
        for agent in agents if is_everyone else ():
            if (memory := host.memory(agent)) is None:
                continue
            cleared = await memory.aclear_conversations(await memory.aget_all_conversations())
            erasures[agent] += ErasureReport(memories=cleared)
    return Clearance([AgentErasure(agent, report) for agent, report in erasures.items()], is_complete=not call.is_stopped)


async def find_conversation(host: OperationHost, agent: str | None, conversation: str) -> tuple[str, StoredConversation]:
    """Return the agent and the record of a conversation. Raise ConfigError if there is none, or if several agents have it."""
    found = []
    for jid in await stored_agents(host, agent):
        running = await host.running_agent(jid)
        record = None if running is None else await running.find_conversation(conversation)
        if record := record or (await host.repository(jid).find_conversations([conversation])).get(conversation):
            found.append((jid, record))
    if not found:
        raise ConfigError("conversation", f'there is no conversation "{conversation}"; `sessions list` shows them all')
    if len(found) > 1:
        names = join_names(jid for jid, _ in found)
        raise ConfigError("agent", f"is missing; {names} have a conversation with this id; name one")
    return found[0]


async def _erase_person(host: OperationHost, agent: str, person: str) -> ErasureReport:
    if (running := await host.running_agent(agent, changes=True)) is not None:
        return await running.erase_person(person)
    return await erase_person(host.repository(agent), host.memory(agent), person)


async def _erase_conversation(host: OperationHost, agent: str, record: StoredConversation) -> ErasureReport:
    if (running := await host.running_agent(agent, changes=True)) is not None:
        return await running.erase_conversation(record)
    return await erase_conversation(host.repository(agent), host.memory(agent), record)


def _summary(agent: str, record: StoredConversation) -> SessionSummary:
    status = record.status
    return SessionSummary(
        record.session_id,
        agent,
        record.owner,
        record.conversation_id,
        record.turns,
        format_rfc3339(status.created_at),
        format_rfc3339(status.last_interaction),
        str(status.state),
    )


def _load_all(texts: dict[str, str]) -> dict[str, Any]:
    return {name: json.loads(text) for name, text in texts.items()}
