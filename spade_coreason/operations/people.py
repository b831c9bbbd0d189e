"""List people, and delete or export all that the platform stores about a person."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from .. import memory, storage
from ..contracts.times import format_rfc3339
from ..domain.callers import is_caller, key_of
from ..domain.jid import bare_jid, local_part, parse_jid
from ..domain.texts.translation import N_, translate, translate_plural
from ..exceptions import ConfigError, StoreError
from .definition import EVERYBODY, OPERATORS, PLATFORM_TRAIL, About, Arguments, Call, CallerKind, OfAgents, operation
from .host import OperationHost, RunningAgent, stored_agents
from .lists import Limit, read_time
from .sessions import AgentErasure, describe_deleted
from .view import PERSON_FIELD, Slash, TableView, View, moment

T = TypeVar("T")

_LOG_WAIT_S = 30.0
_AT_ONCE = 8
"""The number of agents that are asked at the same time."""
_EXPORT_HEADER = {"schema", "version", "agent", "person", "exported_at"}

KeptReason: TypeAlias = Literal["access", "keys", "operator", "unreachable", "running", "log", "file"]
"""The reason why something stays of a person.

It is an operator's decision about their access, a key that stands for them, or what they did as an operator. It is an agent
that the caller does not reach, or a turn that does not end. It is the log of a database that another program reads, or the file
of a large one.
"""


class OfWholePerson(Arguments):
    """A person: a bare JID."""

    person: Annotated[str, About("The person.", "JID")]


class ListPeople(OfAgents):
    """The people with whom agents have conversations."""

    limit: Limit = 100
    before: Annotated[str | None, About("List only people whose last turn is from before this time.", "TIME")] = None


@dataclass(frozen=True, slots=True)
class ListedPerson:
    """A person, a room or an agent (a bare JID), and the conversations of agents with them. `last` is as in RFC 3339."""

    person: str
    agents: int
    conversations: int
    turns: int
    last_interaction: str


@operation(
    "people.list",
    OPERATORS,
    view=View(
        examples=["people list --agent notes"],
        table=TableView(
            "people",
            cursor="last_interaction",
            columns=["person", "agents", "conversations", "turns", ("last", moment("last_interaction"))],
        ),
        links=["sessions.list", "sessions.export", "people.delete"],
    ),
)
async def list_people(call: Call, arguments: ListPeople) -> list[ListedPerson]:
    """List the people with whom agents have conversations, those who wrote last first."""
    agents, before = await stored_agents(call.host, arguments.agent), read_time(arguments.before, "before")
    if not agents or call.host.database is None:
        return []
    found = await storage.list_owners(call.host.database, agents, before, arguments.limit)
    return [
        ListedPerson(person, count, conversations, turns, format_rfc3339(storage.from_micros(last)))
        for person, count, conversations, turns, last in found
    ]


@dataclass(frozen=True, slots=True)
class UnknownPeriod:
    """Turns of an agent that may hold more, because the person behind them is not known. Times are as in RFC 3339."""

    agent: str
    turns: int
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class KeptData:
    """Something that stays about the person, at an agent."""

    agent: str
    reason: KeptReason


@dataclass(frozen=True, slots=True)
class PersonDeletion:
    """The deleted data of a person by agent, what may hold more, and what stays."""

    person: str
    erasures: list[AgentErasure]
    may_hold_more: list[UnknownPeriod]
    kept: list[KeptData]
    is_complete: bool = True
    """False if it was stopped. The same call deletes the rest."""


def describe_deletion(deletion: PersonDeletion) -> str:
    """Describe the deletion of all about a person: what was deleted by agent, what may hold more, and what stays."""
    return "\n".join(list_deletion_lines(deletion, lambda one: [f"{one.agent}: {describe_deleted(one.report)}"], _STAYS))


def list_deletion_lines(
    deletion: PersonDeletion, describe: Callable[[AgentErasure], list[str]], stays: Mapping[KeptReason, str]
) -> list[str]:
    """Return the lines about a deletion. `describe` makes those about an agent, and `stays` has the texts on what stays."""
    lines = [line for one in deletion.erasures if not one.report.is_empty for line in describe(one)]
    lines = lines or [translate("There was nothing to delete.")]
    for unknown in deletion.may_hold_more:
        text = translate_plural(
            "{agent} may hold more: {number} turn of which it is not known from whom it came ({first} to {last}).",
            "{agent} may hold more: {number} turns of which it is not known from whom they came ({first} to {last}).",
            unknown.turns,
            agent=unknown.agent,
            first=unknown.first[:10],
            last=unknown.last[:10],
        )
        lines.append(text)
    return lines + [f"{kept.agent}: {translate(stays[kept.reason])}" for kept in deletion.kept]


_STAYS: dict[KeptReason, str] = {
    "access": N_("an operator's decision about access stays."),
    "keys": N_("keys that stand for this person stay, and so does what was asked with them."),
    "operator": N_("what was done as an operator stays in the audit trail."),
    "unreachable": N_("was not reached, because you are not its operator."),
    "running": N_("an answer does not end, and may store more. Try again later."),
    "log": N_("The log of the database still has deleted data, because another program reads it. They go when that ends."),
    "file": N_("The file of the database may still have copies of deleted data. They go when an operator writes it anew."),
}


@operation(
    "people.delete",
    EVERYBODY,
    is_change=True,
    view=View(
        examples=["people delete alice@example.org"],
        given=["person"],
        question="delete everything of {person} with all agents",
        progress="deleting",
        slash=Slash(
            name="people delete",
            description=N_("delete everything about a person, at the agents whose operator you are"),
            done=describe_deletion,
            fields=(PERSON_FIELD,),
            question=N_("This deletes everything about this person, at all agents whose operator you are."),
            usage="JID",
        ),
    ),
)
async def delete_person(call: Call, arguments: OfWholePerson) -> PersonDeletion:
    """Delete all that the platform stores about a person, of all agents.

    JID is the address of the person. Also deletes what reached agents through other agents and in chat rooms, as far as it is
    known from whom that came. The output lists what may hold more, and what stays. Turns of the person end first, and their
    messages are refused until it ends. Ctrl-C ends it early; run it again for the rest. Backups are not changed.
    """
    # An operator reaches the agents whose operator they are, and not the trail of the platform. In conversations that belong to
    # agents and rooms only the turns of the person go, with what was stored for the conversation while they ran. The trail of
    # the platform has one entry, because it is one act, and so that it does not tell which agents the person has used.
    host, person = call.host.whole, _parse_person(arguments.person)
    agents, kept = await _find_reach(call, host, person)
    if host.database is None:
        return PersonDeletion(person, [], [], kept)
    await _check_person(host, host.database, person)
    # Someone who deletes all about themselves is not named: the entry stays, and would be data about them.
    await call.record(PLATFORM_TRAIL, "people.delete", "a person", actor="a person" if call.actor.name == person else "")
    async with _refused(call, host, person, agents) as running:
        late = [
            agent
            for agent, is_over in (await _ask_all(running, lambda one: one.erasure.wait_for_person(person))).items()
            if not is_over
        ]
        if not kept and not call.is_stopped:
            await storage.erase_trail(host.database, PLATFORM_TRAIL, person)
        reached = [*agents, *([] if kept else [PLATFORM_TRAIL])]
        kept += [KeptData(agent, "running") for agent in late]
        search = await _search(host, host.database, person, agents)
        cut_off = await _ask_all(running, lambda one: one.erasure.list_cut_off(person))
        search = await _add_cut_off(host, search, cut_off)
        unknown, done = search.unknown, search.turn_ids
        erasures = await _erase_all(call, host, person, agents, search)
        # A turn that had ended, and was not stored yet, is found now.
        while not call.is_stopped and (search := await _search(host, host.database, person, agents)).turn_ids - done:
            done |= search.turn_ids
            for agent, report in (await _erase_all(call, host, person, agents, search)).items():
                erasures[agent] += report
        for agent, dropped in (await _ask_all(running, lambda one: one.erasure.count_dropped(person))).items():
            erasures[agent] += storage.ErasureReport(requests=dropped)
        kept += await _find_kept(host, host.database, person, reached)
        # Still refused: a request that another agent has sent before it was cancelled may arrive.
        if (remains := await host.database.backend.wait_until_erased(_LOG_WAIT_S)) is not None:
            kept.append(KeptData(PLATFORM_TRAIL, remains))
    await storage.LoginRepository(host.database).end_all(person)
    return PersonDeletion(
        person,
        [AgentErasure(agent, report) for agent, report in erasures.items()],
        _describe_unknown(call, unknown, agents),
        kept,
        is_complete=not call.is_stopped,
    )


@operation(
    "people.export",
    EVERYBODY,
    is_change=True,
    view=View(examples=["people export alice@example.org"], given=["person"], role="content"),
)
async def export_whole_person(call: Call, arguments: OfWholePerson) -> dict[str, Any]:
    """Print all that the platform stores about a person as JSON, of all agents.

    JID is the address of the person. The output has what `people delete` would delete. The audit trail of the platform has an
    entry of it.
    """
    # A person gets only the agents that store something about them: others may answer strangers with silence. They get no turns
    # that may be of others.
    host, person = call.host.whole, _parse_person(arguments.person)
    agents, kept = await _find_reach(call, host, person)
    exported: dict[str, Any] = {"person": person, "agents": [], "may_hold_more": [], "not_reached": [one.agent for one in kept]}
    if host.database is None:
        return exported
    await _check_person(host, host.database, person)
    await call.record(PLATFORM_TRAIL, "people.export", "a person", person=person)
    search = await _search(host, host.database, person, agents)
    requests = await storage.find_requests(host.database, agents, search, person)
    for agent in agents:
        repository, remembered = host.repository(agent), host.memory(agent)
        own = await memory.export_person(repository, remembered, person)
        of_keys = {one["person"] for one in own["callers"]}
        passed_on = [one for one in search.found if one.agent == agent and one.record.owner not in of_keys]
        own["passed_on"] = {
            "conversations": [await memory.export_cut(repository, remembered, one) for one in passed_on],
            "requests": [memory.export_waiting(one) for one in requests if one.agent == agent],
        }
        if call.actor.kind is not CallerKind.PERSON or _holds_data(own):
            exported["agents"].append(own)
    exported["may_hold_more"] = [
        {"agent": one.agent, "turns": one.turns, "first": one.first, "last": one.last}
        for one in _describe_unknown(call, search.unknown, agents)
    ]
    return exported


def _parse_person(text: str) -> str:
    try:
        return bare_jid(parse_jid(text))
    except ValueError as error:
        raise ConfigError("person", str(error)) from error


async def _check_person(host: OperationHost, database: storage.Database, person: str) -> None:
    """Raise ConfigError for a JID behind which others are: an agent, a room, or a key that stands for a person."""
    if await storage.is_shared(database, person, await host.list_agents()):
        problem = "is an agent or a chat room, and many people are behind it; name a person, or delete it with `sessions clear`"
        raise ConfigError("person", f"{person} {problem}")
    key = await storage.KeyRepository(database).find(local_part(key_of(person))) if is_caller(person) else None
    if key is not None and key.account:
        raise ConfigError("person", f"{person} is a key of {key.account}, who has the data; name {key.account}")


async def _find_reach(call: Call, host: OperationHost, person: str) -> tuple[list[str], list[KeptData]]:
    """Return the agents that the caller reaches, and the others as what stays."""
    # Last the agent with the command of the caller: until its data are deleted, a crash lets the command run again.
    agents = sorted(await stored_agents(host, None), key=call.actor.agent.__eq__)
    if call.actor.kind is not CallerKind.OPERATOR or call.actor.name == person:
        return agents, []
    running = {agent: await host.running_agent(agent) for agent in agents}
    reached = [agent for agent, one in running.items() if one is not None and call.actor.name in await one.list_operators()]
    return reached, [KeptData(agent, "unreachable") for agent in agents if agent not in reached]


@asynccontextmanager
async def _refused(
    call: Call, host: OperationHost, person: str, agents: Sequence[str]
) -> AsyncIterator[dict[str, RunningAgent]]:
    """Refuse the requests of a person at all running agents, and end their turns there.

    The user of the machine waits for another deletion of the person, which may be one that was left alone. For others it is a
    ConfigError: a turn of the person would wait for a deletion that ends it. An early end also ends the wait.
    """
    running = {agent: one for agent in agents if (one := await host.running_agent(agent, changes=True)) is not None}
    begun: list[RunningAgent] = []
    try:
        for one in running.values():
            while not call.is_stopped and not await one.erasure.refuse_person(person):
                if call.actor.kind is not CallerKind.MACHINE_USER:
                    raise ConfigError("person", f"{person} is being deleted already; wait until that is done")
                waiting = asyncio.ensure_future(one.erasure.wait_until_admitted(person))
                call.on_stop = waiting.cancel
                try:
                    await asyncio.wait([waiting])
                finally:
                    waiting.cancel()
            if call.is_stopped:
                running = {}
                break
            begun.append(one)
        yield running
    finally:
        for one in begun:
            with suppress(StoreError):  # its worker has ended, and with it the refusal
                await one.erasure.admit_person(person)


async def _ask_all(running: Mapping[str, RunningAgent], ask: Callable[[RunningAgent], Awaitable[T]]) -> dict[str, T]:
    """Ask agents the same, some at a time: the answer of another worker takes a while. Return the answers."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def ask_one(one: RunningAgent) -> T:
        async with slots:
            return await ask(one)

    return dict(zip(running, await asyncio.gather(*map(ask_one, running.values())), strict=True))


async def _search(host: OperationHost, database: storage.Database, person: str, agents: Sequence[str]) -> storage.PersonSearch:
    """Search the turns of all agents, and leave out those of agents that the caller does not reach."""
    search = await storage.search_person(database, person, await host.list_agents())
    return replace(
        search,
        found=[one for one in search.found if one.agent in agents],
        emptied=[one for one in search.emptied if one.agent in agents],
    )


async def _add_cut_off(
    host: OperationHost, search: storage.PersonSearch, cut_off: Mapping[str, Sequence[storage.CutOffTurn]]
) -> storage.PersonSearch:
    """Add the turns that the deletion itself has cut off, by agent: they are not stored, but what they have stored is there."""
    found = {(one.agent, one.record.conversation_id): one for one in search.found}
    for agent, turns in cut_off.items():
        ids = [turn.conversation_id for turn in turns]
        for name, record in (await host.repository(agent).find_conversations(ids)).items():
            one = found.get((agent, name), storage.FoundConversation(agent, record, []))
            found[agent, name] = one._replace(cut_off=[turn for turn in turns if turn.conversation_id == name])
    return replace(search, found=list(found.values()))


async def _erase_all(
    call: Call, host: OperationHost, person: str, agents: Sequence[str], search: storage.PersonSearch
) -> dict[str, storage.ErasureReport]:
    """Erase what was found and what agents have under the name of the person, agent by agent, until the call is stopped."""
    erasures = dict.fromkeys(agents, storage.ErasureReport())
    if call.is_stopped or (database := host.database) is None:
        return erasures
    requests, items = await storage.erase_behind_others(database, agents, search, person)
    for done, agent in enumerate(agents):
        call.on_progress(done, len(agents))
        if call.is_stopped:
            break
        report = storage.ErasureReport(requests=requests[agent], deleted_items=items[agent])
        for conversation in (*search.found, *search.emptied):
            if conversation.agent == agent:
                one = await host.open_agent(agent, changes=True)
                report += await one.erasure.cut_conversation(conversation, lambda: not call.is_stopped)
        report += storage.ErasureReport(
            interactions=await memory.delete_turns_of_person(host.repository(agent), person, lambda: not call.is_stopped)
        )
        if not call.is_stopped:
            report += await (await host.open_agent(agent, changes=True)).erasure.erase_person(person)
        erasures[agent] = report
    return erasures


async def _find_kept(host: OperationHost, database: storage.Database, person: str, agents: Sequence[str]) -> list[KeptData]:
    """Return what is left on purpose: decisions of operators, keys that stand for the person, and their acts as an operator."""
    decided = [agent for agent in agents if person in (await host.repository(agent).load_agent()).admissions]
    keys = await storage.KeyRepository(database).load_of(person)
    with_keys = {agent for key in keys for agent in (*key.agent_jids, *key.withdrawn_jids)}
    acts = [agent for agent in await storage.find_acts(database, person) if agent in agents]
    return [
        *(KeptData(agent, "access") for agent in decided),
        *(KeptData(agent, "keys") for agent in agents if agent in with_keys),
        *(KeptData(agent, "operator") for agent in acts),
    ]


def _holds_data(exported: Any) -> bool:
    """Return True if something in an exported JSON value says more than who is exported where and when."""
    if isinstance(exported, dict):
        return any(_holds_data(value) for name, value in exported.items() if name not in _EXPORT_HEADER)
    return any(map(_holds_data, exported)) if isinstance(exported, list) else bool(exported)


def _describe_unknown(call: Call, unknown: Sequence[storage.UnknownTurns], agents: Sequence[str]) -> list[UnknownPeriod]:
    """Return the turns that may hold more, for operators and the user of the machine: they may be of others."""
    if call.actor.kind is CallerKind.PERSON:
        return []
    return [
        UnknownPeriod(one.agent, one.count, format_rfc3339(one.first), format_rfc3339(one.last))
        for one in unknown
        if one.agent in agents
    ]
