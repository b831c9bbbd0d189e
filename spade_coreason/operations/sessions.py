"""List, show, export or delete the stored sessions of agents.

A session is a conversation with its turns, variables, documents and interaction memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import Ge

from .. import memory, storage
from ..contracts.times import format_rfc3339
from ..domain.forms.fields import Field
from ..domain.identifiers import recover_thread
from ..domain.texts.translation import N_, translate, translate_plural
from ..exceptions import ConfigError
from .definition import EVERYBODY, PERSON, About, Call, OfAgents, operation
from .host import OperationHost, select_agent, select_agents, stored_agents
from .lists import Page, choose_one, load_newest
from .view import Slash, TableView, View, count, moment

ListedState: TypeAlias = Literal["active", "completed", "error", "timeout", "max_interactions_reached"]
"""The states of conversations. The class of these values would need pydantic, which a command of the terminal does without."""
_CONTENTS = ("variables", "person_variables", "history")


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
    interaction_count: int
    """The number of turns in its present episode, and below the most that it may have; None without a limit."""
    max_interactions: int | None


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
    report: storage.ErasureReport


@dataclass(frozen=True, slots=True)
class Clearance:
    """The reports on the deleted data, by agent."""

    erasures: list[AgentErasure]
    is_complete: bool = True
    """False if it was stopped. The same call deletes the rest."""


_STATES: Mapping[str, str] = {
    "active": N_("active"),
    "completed": N_("completed"),
    "error": N_("ended after errors"),
    "timeout": N_("ended by a timeout"),
    "max_interactions_reached": N_("at its limit"),
}


def describe_state(state: str) -> str:
    """Return the state of a conversation in words."""
    return translate(_STATES[state])


def describe_conversations(sessions: Sequence[SessionSummary], *, is_own: bool = False) -> str:
    """Describe conversations, each in one line."""
    lines = [format_conversation(session, is_own=is_own) for session in sessions if session.turns]
    return "\n".join(lines) or translate("There are none.")


def format_conversation(session: SessionSummary, *, is_own: bool) -> str:
    """Format a conversation in one line.

    The person's own are shown with their thread, all others with their owner and id.
    """
    thread = recover_thread(session.conversation_id, session.user_id, session.agent_id)
    thread_label = translate("thread {thread}", thread=thread) if thread is not None else translate("no thread")
    label = thread_label if is_own else f"{session.user_id}   {session.conversation_id}"
    last = datetime.fromisoformat(session.last_interaction).astimezone()
    turns = translate_plural("{number} turn", "{number} turns", session.turns)
    return f"{last:%Y-%m-%d %H:%M}   {turns}   {describe_state(session.state)}   {label}"


class ListSessions(Page):
    """A choice of sessions."""

    state: Annotated[ListedState | None, About("Only those in this state.")] = None


@operation(
    "sessions.list",
    EVERYBODY,
    view=View(
        examples=["sessions list --agent notes --person alice@example.org"],
        table=TableView(
            "sessions",
            cursor="last_interaction",
            columns=[
                ("agent", "agent_id"),
                ("person", "user_id"),
                ("conversation", "conversation_id"),
                "turns",
                ("last", moment("last_interaction")),
            ],
        ),
        slash=Slash(
            name="all",
            description=N_("list the conversations of all people with me, the newest first"),
            done=describe_conversations,
            fields=(Field("limit", N_("how many"), "number", default=50, minimum=1, maximum=500),),
            usage="50",
        ),
        links=["sessions.show", "conversations.end", "conversations.reset"],
    ),
)
async def list_sessions(call: Call, arguments: ListSessions) -> list[SessionSummary]:
    """List the sessions of agents, newest first.

    A session that goes on moves to the top. To page through all, pass the time of the last row to --before.
    """
    found = await load_newest(call.host, storage.ConversationRows, "session", arguments, state=arguments.state)
    return [_summary(row.agent, storage.conversation_from_row(row)) for row in found]


class ShowSession(OfAgents):
    """The session of a conversation, by its id. `limit` counts its turns, the newest."""

    conversation: str
    limit: Annotated[int, Ge(1), About("Show at most this many turns, the newest.")] = 20


@operation(
    "sessions.show",
    PERSON,
    view=View(
        examples=["sessions show alice@example.org_notes@example.org"],
        given=["conversation"],
        dump=lambda found: {**asdict(found.summary), **{name: getattr(found, name) for name in _CONTENTS}},
        role="content",
    ),
)
async def show_session(call: Call, arguments: ShowSession) -> SessionContents:
    """Show the session of a conversation: its turns and its variables.

    CONVERSATION is an id from `sessions list`.
    """
    from ..domain.history import parse_interactions

    agent, record = await find_conversation(call.host, arguments.agent, arguments.conversation)
    repository = call.host.repository(agent)
    turns = parse_interactions(await repository.turns.load_history(record.id, arguments.limit))
    own = await repository.load_variables("conversation", record.conversation_id)
    person = await repository.load_variables("person", record.owner)
    return SessionContents(
        _summary(agent, record), _load_all(own), _load_all(person), [interaction.dump() for interaction in turns]
    )


class OfPerson(OfAgents):
    """A person: a bare JID."""

    person: Annotated[str, About("The person.", "JID")]


@operation(
    "sessions.export",
    PERSON,
    is_change=True,
    view=View(examples=["sessions export --agent notes --person alice@example.org"], role="content"),
)
async def export_sessions(call: Call, arguments: OfPerson) -> dict[str, Any]:
    """Export everything that an agent stores about a person, as JSON.

    The person gets the same with /export. The audit trail has an entry of it.
    """
    agent = await select_agent(call.host, arguments.agent)
    await call.record(agent, "sessions.export", "a person", person=arguments.person)
    return await memory.export_person(call.host.repository(agent), call.host.memory(agent), arguments.person)


class FindTargets(OfAgents):
    """The subject of a deletion: a conversation, or all data of agents."""

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


class ClearSessions(OfAgents):
    """The subject of a deletion: a person (a bare JID), everyone, or one conversation.

    `agent` is "*" for all agents. It may be left out if there is only one.
    """

    person: Annotated[
        str | None, About("Delete all data of this person, except what they sent through another agent.", "JID")
    ] = None
    conversation: Annotated[str | None, About("Delete this conversation and its memory.")] = None
    everyone: Annotated[bool, About("Delete the data of all people.", option="all")] = False

    def __post_init__(self) -> None:
        if [self.person is not None, self.everyone, self.conversation is not None].count(True) != 1:
            raise ConfigError("sessions clear", "needs exactly one of --person JID, --conversation ID and --all")


def _ask_to_clear(wanted: ClearSessions, targets: Targets) -> str:
    agents = ", ".join(targets.agents)
    if wanted.conversation is not None:
        return f"delete the conversation {wanted.conversation} of {targets.owner} with {agents}"
    return f"delete everything of {wanted.person or 'all people'} with {agents}"


@operation(
    "sessions.clear",
    PERSON,
    is_change=True,
    view=View(
        examples=[
            'sessions clear --person alice@example.org --agent "*"',
            "sessions clear --conversation alice@example.org_notes@example.org",
            "sessions clear --agent notes --all",
        ],
        question=_ask_to_clear,
        asks=find_targets,
        progress="deleting",
        table=TableView(rows=lambda found: found.erasures),
        done=lambda one: describe_erasure(one),
    ),
)
async def clear_sessions(call: Call, arguments: ClearSessions) -> Clearance:
    """Delete sessions with their turns, variables, documents and interaction memories.

    Turns of the person end first, and what waits is dropped. Ctrl-C stops after the current person. --agent is required if
    there are several agents; --agent "*" means all of them. --person deletes what agents store under the name of a person.
    `people delete` also deletes what reached them through other agents and rooms.
    """
    host, person, is_everyone = call.host, arguments.person, arguments.everyone
    if arguments.conversation is not None:
        agent, record = await find_conversation(host, arguments.agent, arguments.conversation)
        await call.record(agent, "sessions.clear", f"conversation {record.conversation_id}", person=record.owner)
        return Clearance(
            [AgentErasure(agent, await (await host.open_agent(agent, changes=True)).erasure.erase_conversation(record))]
        )
    agents = await stored_agents(host, arguments.agent)
    if arguments.agent is None:
        await select_agent(host, None)
    erasures, steps = dict.fromkeys(agents, storage.ErasureReport()), []
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
        erasures[agent] += await (await host.open_agent(agent, changes=True)).erasure.erase_person(one)
    else:
        for agent in agents if is_everyone else ():
            if (remembered := host.memory(agent)) is None:
                continue
            cleared = await remembered.aclear_conversations(await remembered.aget_all_conversations())
            erasures[agent] += storage.ErasureReport(memories=cleared)
    return Clearance([AgentErasure(agent, report) for agent, report in erasures.items()], is_complete=not call.is_stopped)


_DELETED: Mapping[str, Callable[[int], str]] = {
    "conversation_ids": lambda number: translate_plural("{number} conversation", "{number} conversations", number),
    "interactions": lambda number: translate_plural("{number} turn", "{number} turns", number),
    "variables": lambda number: translate_plural("{number} variable", "{number} variables", number),
    "memories": lambda number: translate_plural("memory of {number} conversation", "memory of {number} conversations", number),
    "documents": lambda number: translate_plural("{number} document", "{number} documents", number),
    "audit_entries": lambda number: translate_plural(
        "the record of {number} audited step", "the record of {number} audited steps", number
    ),
    "incidents": lambda number: translate_plural("the record of {number} failure", "the record of {number} failures", number),
    "subscriptions": lambda number: translate_plural("{number} subscription", "{number} subscriptions", number),
    "items": lambda number: translate_plural(
        "the name at {number} published item", "the name at {number} published items", number
    ),
    "deleted_items": lambda number: translate_plural("{number} published item", "{number} published items", number),
    "schedules": lambda number: translate_plural("{number} reminder or schedule", "{number} reminders or schedules", number),
    "notifications": lambda number: translate_plural("{number} notification", "{number} notifications", number),
    "questions": lambda number: translate_plural("{number} question", "{number} questions", number),
}
"""The words for the counts in an `ErasureReport`."""


def describe_deleted(report: storage.ErasureReport) -> str:
    """Describe the deleted data in one sentence."""
    if report.is_empty:
        return translate("There was nothing to delete.")
    counts = {**asdict(report), "conversation_ids": len(report.conversation_ids)}
    parts = [describe(counts[name]) for name, describe in _DELETED.items() if counts[name]]
    parts += [translate("the settings")] * bool(report.preferences)
    return translate("Deleted: {list}.", list=", ".join(parts)) if parts else translate("Deleted.")


def describe_erasure(erasure: AgentErasure) -> list[str]:
    """Describe the deleted data of an agent in lines, with one for each conversation."""
    report, text = erasure.report, describe_deleted(erasure.report)
    dropped = f" Dropped: {count(report.requests, 'unanswered request')}." if report.requests else ""
    return [
        f"{erasure.agent}: {text[:1].lower()}{text[1:]}{dropped}",
        *(f"  {conversation}" for conversation in report.conversation_ids),
    ]


async def find_conversation(
    host: OperationHost, agent: str | None, conversation: str
) -> tuple[str, storage.StoredConversation]:
    """Return the agent and the record of a conversation. Raise ConfigError if there is none, or if several agents have it."""
    agents = await stored_agents(host, agent)
    found = {jid: await (await host.open_agent(jid)).find_conversation(conversation) for jid in agents}
    return choose_one(found, conversation, "conversation", "sessions list")


def _summary(agent: str, record: storage.StoredConversation) -> SessionSummary:
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
        status.interaction_count,
        record.max_interactions,
    )


def _load_all(texts: dict[str, str]) -> dict[str, Any]:
    return {name: json.loads(text) for name, text in texts.items()}
