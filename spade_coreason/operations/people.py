"""The operations on all that a platform stores about one person."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar

from ..contracts.base import format_rfc3339
from ..domain.callers import is_caller, key_of
from ..domain.jid import bare_jid, local_part, parse_jid
from ..exceptions import ConfigError, StoreError
from ..memory import (
    ErasureReport,
    cut_conversation,
    delete_turns_of_person,
    erase_conversation,
    erase_person,
    export_cut,
    export_person,
    export_waiting,
    is_all_erased,
)
from ..storage import (
    CutOffTurn,
    Database,
    FoundConversation,
    KeyRepository,
    PersonSearch,
    UnknownTurns,
    erase_behind_others,
    erase_trail,
    find_acts,
    find_requests,
    is_shared,
    search_person,
)
from .definition import EVERYBODY, PLATFORM_TRAIL, Arguments, Call, CallerKind, operation
from .host import OperationHost, RunningAgent, stored_agents
from .sessions import AgentErasure

T = TypeVar("T")

_LOG_WAIT_S = 30.0
_AT_ONCE = 8
"""The number of agents that are asked at the same time."""
_EXPORT_HEADER = {"schema", "version", "agent", "person", "exported_at"}

KeptReason: TypeAlias = Literal["access", "keys", "operator", "unreachable", "running", "log"]
"""The reason why something stays of a person.

It is an operator's decision about their access, a key that stands for them, or what they did as an operator. It is an agent
that the caller does not reach, a turn that does not end, or the log of a database that another program reads.
"""


class OfWholePerson(Arguments):
    """A person: a bare JID."""

    person: str


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


@operation("people.delete", EVERYBODY, is_change=True)
async def delete_person(call: Call, arguments: OfWholePerson) -> PersonDeletion:
    """Delete all that the platform stores about a person, also what came through agents and rooms. Says what may be left.

    The person, and the user of the machine, reach all agents; an operator reaches those whose operator they are, and not the
    trail of the platform. Until it ends, requests of the person are refused. In conversations that belong to agents and rooms
    only the turns of the person go, with what was stored for the conversation while they ran. The trail of the platform has one
    entry, because it is one act, and so that it does not tell which agents the person has used.
    """
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
            for agent, is_over in (await _ask_all(running, lambda one: one.wait_for_person(person))).items()
            if not is_over
        ]
        if not kept and not call.is_stopped:
            await erase_trail(host.database, PLATFORM_TRAIL, person)
        reached = [*agents, *([] if kept else [PLATFORM_TRAIL])]
        kept += [KeptData(agent, "running") for agent in late]
        search = await _search(call, host, host.database, person, agents)
        cut_off = await _ask_all(running, lambda one: one.list_cut_off(person))
        search = await _add_cut_off(host, search, cut_off)
        unknown = search.unknown
        erasures = await _erase_all(call, host, person, agents, search)
        # A turn that had ended, and was not stored yet, is found now.
        while not call.is_stopped and (search := await _search(call, host, host.database, person, agents, search.end)).found:
            for agent, report in (await _erase_all(call, host, person, agents, search)).items():
                erasures[agent] += report
        for agent, dropped in (await _ask_all(running, lambda one: one.count_dropped(person))).items():
            erasures[agent] += ErasureReport(requests=dropped)
        kept += await _find_kept(host, host.database, person, reached)
        # Still refused: a request that another agent has sent before it was cancelled may arrive.
        if not await host.database.wait_until_erased(_LOG_WAIT_S):
            kept.append(KeptData(PLATFORM_TRAIL, "log"))
    return PersonDeletion(
        person,
        [AgentErasure(agent, report) for agent, report in erasures.items()],
        _describe_unknown(call, unknown, agents),
        kept,
        is_complete=not call.is_stopped,
    )


@operation("people.export", EVERYBODY, is_change=True)
async def export_whole_person(call: Call, arguments: OfWholePerson) -> dict[str, Any]:
    """Export all that the platform stores about a person, also what came through agents and rooms.

    It has what a deletion by the same caller deletes. The trail of the platform has an entry. A person gets only the agents
    that store something about them: others may answer strangers with silence. They get no turns that may be of others.
    """
    host, person = call.host.whole, _parse_person(arguments.person)
    agents, kept = await _find_reach(call, host, person)
    exported: dict[str, Any] = {"person": person, "agents": [], "may_hold_more": [], "not_reached": [one.agent for one in kept]}
    if host.database is None:
        return exported
    with _one_search(call, host.database):
        await _check_person(host, host.database, person)
        await call.record(PLATFORM_TRAIL, "people.export", "a person", person=person)
        search = await _search(call, host, host.database, person, agents)
        requests = await find_requests(host.database, agents, search, person)
        for agent in agents:
            repository, memory = host.repository(agent), host.memory(agent)
            own = await export_person(repository, memory, person)
            of_keys = {one["person"] for one in own["callers"]}
            passed_on = [one for one in search.found if one.agent == agent and one.record.owner not in of_keys]
            own["passed_on"] = {
                "conversations": [await export_cut(repository, memory, one) for one in passed_on],
                "requests": [export_waiting(one) for one in requests if one.agent == agent],
            }
            if call.actor.kind is not CallerKind.PERSON or _holds_data(own):
                exported["agents"].append(own)
        exported["may_hold_more"] = [
            {"agent": one.agent, "turns": one.turns, "first": one.first, "last": one.last}
            for one in _describe_unknown(call, search.unknown, agents)
        ]
    return exported


@contextmanager
def _one_search(call: Call, database: Database) -> Iterator[None]:
    """Let a person or an operator export one person at a time: it reads all turns. ConfigError if an export runs already."""
    if call.actor.kind is CallerKind.MACHINE_USER:
        yield
        return
    if call.actor.name in database.searching_people:
        raise ConfigError("person", "another export of yours is being made; wait until you have it")
    database.searching_people.add(call.actor.name)
    try:
        yield
    finally:
        database.searching_people.discard(call.actor.name)


def _parse_person(text: str) -> str:
    try:
        return bare_jid(parse_jid(text))
    except ValueError as error:
        raise ConfigError("person", str(error)) from error


async def _check_person(host: OperationHost, database: Database, person: str) -> None:
    """Raise ConfigError for a JID behind which others are: an agent, a room, or a key that stands for a person."""
    if await is_shared(database, person, await host.list_agents()):
        problem = "is an agent or a chat room, and many people are behind it; name a person, or delete it with `sessions clear`"
        raise ConfigError("person", f"{person} {problem}")
    key = await KeyRepository(database).find(local_part(key_of(person))) if is_caller(person) else None
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
            while not call.is_stopped and not await one.refuse_person(person):
                if call.actor.kind is not CallerKind.MACHINE_USER:
                    raise ConfigError("person", f"{person} is being deleted already; wait until that is done")
                waiting = asyncio.ensure_future(one.wait_until_admitted(person))
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
                await one.admit_person(person)


async def _ask_all(running: Mapping[str, RunningAgent], ask: Callable[[RunningAgent], Awaitable[T]]) -> dict[str, T]:
    """Ask agents the same, some at a time: the answer of another worker takes a while. Return the answers."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def ask_one(one: RunningAgent) -> T:
        async with slots:
            return await ask(one)

    return dict(zip(running, await asyncio.gather(*map(ask_one, running.values())), strict=True))


async def _search(
    call: Call, host: OperationHost, database: Database, person: str, agents: Sequence[str], after: int = 0
) -> PersonSearch:
    """Search the turns of all agents, and leave out those of agents that the caller does not reach."""
    search = await search_person(
        database,
        person,
        await host.list_agents(),
        lambda done, total: call.on_progress(done, total + len(agents)),
        lambda: not call.is_stopped,
        after,
    )
    return replace(
        search,
        found=[one for one in search.found if one.agent in agents],
        emptied=[one for one in search.emptied if one.agent in agents],
    )


async def _add_cut_off(host: OperationHost, search: PersonSearch, cut_off: Mapping[str, Sequence[CutOffTurn]]) -> PersonSearch:
    """Add the turns that the deletion itself has cut off, by agent: they are not stored, but what they have stored is there."""
    found = {(one.agent, one.record.conversation_id): one for one in search.found}
    for agent, turns in cut_off.items():
        ids = [turn.conversation_id for turn in turns]
        for name, record in (await host.repository(agent).find_conversations(ids)).items():
            one = found.get((agent, name), FoundConversation(agent, record, []))
            found[agent, name] = one._replace(cut_off=[turn for turn in turns if turn.conversation_id == name])
    return replace(search, found=list(found.values()))


async def _erase_all(
    call: Call, host: OperationHost, person: str, agents: Sequence[str], search: PersonSearch
) -> dict[str, ErasureReport]:
    """Erase what was found and what agents have under the name of the person, agent by agent, until the call is stopped."""
    erasures = dict.fromkeys(agents, ErasureReport())
    if call.is_stopped or (database := host.database) is None:
        return erasures
    requests, items = await erase_behind_others(database, agents, search, person)
    for done, agent in enumerate(agents):
        call.on_progress(done, len(agents))
        if call.is_stopped:
            break
        report = ErasureReport(requests=requests[agent], deleted_items=items[agent])
        for conversation in (*search.found, *search.emptied):
            if conversation.agent == agent:
                report += await _cut(call, host, conversation)
        report += ErasureReport(
            interactions=await delete_turns_of_person(host.repository(agent), person, lambda: not call.is_stopped)
        )
        if not call.is_stopped:
            running = await host.running_agent(agent, changes=True)
            if running is not None:
                report += await running.erase_person(person)
            else:
                report += await erase_person(host.repository(agent), host.memory(agent), person)
        erasures[agent] = report
    return erasures


async def _cut(call: Call, host: OperationHost, conversation: FoundConversation) -> ErasureReport:
    def should_go_on() -> bool:
        return not call.is_stopped

    if (running := await host.running_agent(conversation.agent, changes=True)) is not None:
        return await running.cut_conversation(conversation, should_go_on)
    repository, memory = host.repository(conversation.agent), host.memory(conversation.agent)
    report = (await cut_conversation(repository, memory, conversation, should_go_on)).report
    if await is_all_erased(repository, memory, conversation.record):
        report += await erase_conversation(repository, memory, conversation.record, with_copies=False)
    return report


async def _find_kept(host: OperationHost, database: Database, person: str, agents: Sequence[str]) -> list[KeptData]:
    """Return what is left on purpose: decisions of operators, keys that stand for the person, and their acts as an operator."""
    decided = [agent for agent in agents if person in (await host.repository(agent).load_agent()).admissions]
    keys = await KeyRepository(database).load_of(person)
    with_keys = {agent for key in keys for agent in (*key.agent_jids, *key.withdrawn_jids)}
    acts = [agent for agent in await find_acts(database, person) if agent in agents]
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


def _describe_unknown(call: Call, unknown: Sequence[UnknownTurns], agents: Sequence[str]) -> list[UnknownPeriod]:
    """Return the turns that may hold more, for operators and the user of the machine: they may be of others."""
    if call.actor.kind is CallerKind.PERSON:
        return []
    return [
        UnknownPeriod(one.agent, one.count, format_rfc3339(one.first), format_rfc3339(one.last))
        for one in unknown
        if one.agent in agents
    ]
