"""The turns and requests that came from a person by way of other agents and of rooms: how they are found, and erased.

A conversation belongs to its owner: a person, but also an agent that asks for many people, or a room. The turns in it name the
person behind them (`interactions.root`), as far as that is known. Only such turns are in the index of the column.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

from pydantic_core import from_json
from sqlalchemy import BigInteger, Connection, cast, delete, func, literal_column, null, select, update

from ..domain.callers import HIDDEN_PERSON, is_caller
from ..domain.channel_kinds import PERSON, ROOM
from ..domain.messages import InboundRequest
from . import kept
from .backends.database import Database
from .erasure import clear_summary
from .incidents import delete_incidents_by_number
from .knowledge import delete_documents_added_between, delete_turn_documents
from .records import StoredConversation, conversation_from_row, from_micros, to_micros
from .schema import (
    ANSWERED,
    CLOSED,
    ERASED_ROOT,
    ERASED_TURN,
    audit,
    conversations,
    crashed_requests,
    inbox,
    interactions,
    steps,
    topic_items,
    variables,
)

_PAGE_ROWS = 200
"""The number of turns that tell whether many people are behind a JID."""
_BATCH = 500


class TimeSpans:
    """Spans of time which do not overlap, each from a start to before an end. All times are in microseconds."""

    def __init__(self, spans: Iterable[tuple[int, int]] = ()) -> None:
        spans = sorted(spans)
        self._begins = [begin for begin, _ in spans]
        self._ends = [end for _, end in spans]

    def __contains__(self, moment: int) -> bool:
        place = bisect_right(self._begins, moment) - 1
        return place >= 0 and moment < self._ends[place]


class FoundTurn(NamedTuple):
    """A stored turn of a person. Times are in microseconds; `item_ids` are those of items that it published."""

    id: int
    number: int
    interaction_id: str
    began_at: int
    ended_at: int
    incident: str | None
    item_ids: tuple[str, ...]


class CutOffTurn(NamedTuple):
    """A turn that was cancelled, and is not stored: its conversation, and its times in microseconds."""

    conversation_id: str
    began_at: int
    ended_at: int


class FoundConversation(NamedTuple):
    """A conversation that belongs to an agent or a room, with the turns in it that came from a person."""

    agent: str
    record: StoredConversation
    turns: list[FoundTurn]
    cut_off: Sequence[CutOffTurn] = ()


@dataclass(frozen=True, slots=True)
class UnknownTurns:
    """Turns of an agent with an unknown person behind them: their number, and the first and the last of them."""

    agent: str
    count: int
    first: datetime
    last: datetime


@dataclass(frozen=True, slots=True)
class PersonSearch:
    """The result of a search. `emptied` are conversations with erased turns, and no others."""

    found: list[FoundConversation]
    unknown: list[UnknownTurns]
    emptied: list[FoundConversation]

    @property
    def turn_ids(self) -> set[int]:
        """The row ids of the found turns."""
        return {turn.id for conversation in self.found for turn in conversation.turns}

    @property
    def item_ids(self) -> set[str]:
        """The ids of the items that the found turns have published to topics."""
        return {item for conversation in self.found for turn in conversation.turns for item in turn.item_ids}


_OF_OTHERS = interactions.join(conversations, conversations.c.id == interactions.c.conversation)
"""Turns with their conversations."""
_HAS_ROOT = interactions.c.root != literal_column("''")
"""The condition of the index of turns that may have another person behind them than the owner."""


class OwnerSummary(NamedTuple):
    """The conversations of an owner (a bare JID): how many agents, conversations and turns, and when the last one was."""

    owner: str
    agents: int
    conversations: int
    turns: int
    last_interaction: int
    """Microseconds since 1970."""


async def list_owners(database: Database, agents: Collection[str], before: datetime | None, limit: int) -> list[OwnerSummary]:
    """Return at most `limit` owners of conversations of agents, the latest turn first; with `before` only from before it."""
    table, last = conversations.c, func.max(conversations.c.last_interaction)
    turns = cast(func.sum(table.turns), BigInteger)  # PostgreSQL sums to a decimal number
    counts = func.count(table.agent.distinct()), func.count(), turns
    query = select(table.owner, *counts, last).where(table.agent.in_(agents)).group_by(table.owner)
    query = query if before is None else query.having(last < to_micros(before))
    query = query.order_by(last.desc(), table.owner).limit(limit)
    return list(map(OwnerSummary._make, await database.fetch(query, is_background=True)))


async def search_person(database: Database, person: str, agents: Collection[str]) -> PersonSearch:
    """Search the turns of all agents of a platform for those that came from a person through an agent or a room.

    `person` is a bare JID, and `agents` are all of the platform.
    """
    root, owner = interactions.c.root, conversations.c.owner
    is_others = _HAS_ROOT, owner != person, root != owner
    roots = select(root).distinct().select_from(_OF_OTHERS).where(root.in_(select(owner)), *is_others)
    others = [one for one in await database.fetch_scalars(roots, is_background=True) if one != person]
    unknown_people = [HIDDEN_PERSON, *[one for one in others if one in agents or await is_shared(database, one, agents)]]

    def work(connection: Connection) -> PersonSearch:
        found: dict[int, list[FoundTurn]] = {}
        query = select(interactions).select_from(_OF_OTHERS).where(root == person, *is_others).order_by(interactions.c.id)
        for row in connection.execute(query):
            found.setdefault(row.conversation, []).append(_read_turn(row))
        times = func.count(), func.min(interactions.c.timestamp), func.max(interactions.c.timestamp)
        by_agent = select(conversations.c.agent, *times).select_from(_OF_OTHERS).where(root.in_(unknown_people), *is_others)
        unknown = [
            UnknownTurns(agent, count, from_micros(first), from_micros(last))
            for agent, count, first, last in connection.execute(by_agent.group_by(conversations.c.agent))
        ]
        erased = set(connection.scalars(select(interactions.c.conversation).where(_HAS_ROOT, root == ERASED_ROOT).distinct()))
        records = _load_records(connection, found.keys() | erased)
        empty = _find_empty(connection, erased)
        return PersonSearch(
            [FoundConversation(*records[row], turns) for row, turns in found.items() if row in records],
            sorted(unknown, key=lambda one: one.agent),
            [FoundConversation(*records[row], []) for row in sorted(empty & records.keys())],
        )

    return await database.read(work, is_background=True)


def _read_turn(row: Any) -> FoundTurn:
    turn = FoundTurn(row.id, row.number, row.interaction_id, row.timestamp, row.timestamp, None, ())
    try:
        body = from_json(row.body)
        meta = body["meta"]
        blocks = [block.get("data") for block in body["output"].get("data", ())]
        items = [block["item_id"] for block in blocks if isinstance(block, dict) and isinstance(block.get("item_id"), str)]
        ended_at = row.timestamp + round(1000 * meta.get("duration_ms", 0))
        return turn._replace(ended_at=ended_at, incident=meta.get("incident"), item_ids=tuple(items))
    except (ValueError, LookupError, TypeError, AttributeError):  # it was changed by hand
        return turn


def _load_records(connection: Connection, rows: Collection[int]) -> dict[int, tuple[str, StoredConversation]]:
    records = {}
    for part in _parts(rows):
        for row in connection.execute(select(conversations).where(conversations.c.id.in_(part))):
            records[row.id] = row.agent, conversation_from_row(row)
    return records


def _find_empty(connection: Connection, rows: Collection[int]) -> set[int]:
    """Return those of the conversations with erased turns of which no turn is left."""
    empty = set(rows)
    for part in _parts(rows):
        is_left = interactions.c.conversation.in_(part), interactions.c.body != ERASED_TURN
        empty -= set(connection.scalars(select(interactions.c.conversation).where(*is_left).distinct()))
    return empty


async def find_spans(database: Database, conversation: FoundConversation) -> TimeSpans:
    """Return the times of the found turns, each until the end of its last millisecond.

    A conversation does one thing at a time, so that what was stored then is of the person. What was stored between turns may be
    of others: their commands are not stored as turns, nor is a turn that runs.
    """
    query = select(interactions.c.id, interactions.c.timestamp).where(interactions.c.conversation == conversation.record.id)
    rows = await database.fetch(query.order_by(interactions.c.number), is_background=True)
    following = {row.id: after.timestamp for row, after in pairwise(rows)}
    ends = ((turn, (turn.ended_at // 1000 + 1) * 1000) for turn in conversation.turns)
    spans = [(turn.began_at, min(end, following.get(turn.id, end))) for turn, end in ends]
    return TimeSpans([*spans, *((turn.began_at, turn.ended_at) for turn in conversation.cut_off)])


async def is_emptied(database: Database, conversation: int) -> bool:
    """Return True if a conversation (its row id) has erased turns, and no others."""
    return bool(await database.read(lambda connection: _find_empty(connection, {conversation}), is_background=True))


class CutReport(NamedTuple):
    """The number of what was erased from a conversation of others, and the erased variables of it and its owner, by name."""

    turns: int
    documents: int
    incidents: int
    variables: dict[str, str]
    owner_variables: dict[str, str]


def cut_turns(
    connection: Connection, conversation: FoundConversation, turns: Sequence[FoundTurn], spans: TimeSpans
) -> CutReport:
    """Erase turns from a conversation of others, with what they have stored for it; `spans` are the times of these turns.

    Run this inside a transaction of the writer.
    """
    agent, record = conversation.agent, conversation.record
    ids = [turn.id for turn in turns]
    is_erased = interactions.c.id.in_(ids), interactions.c.body != ERASED_TURN
    count = connection.execute(
        update(interactions).where(*is_erased).values(body=ERASED_TURN, root=ERASED_ROOT, interaction_id="")
    ).rowcount
    numbers = [turn.number for turn in turns]
    delete_turn_documents(connection, record.id, numbers)
    documents = delete_documents_added_between(connection, agent, record.conversation_id, spans.__contains__)
    times = {turn.began_at for turn in turns}
    values = load_variables_of(connection, agent, "conversation", record.conversation_id, times.__contains__)
    owner_values = load_variables_of(connection, agent, "person", record.owner, times.__contains__)
    for scope, holder, names in (("conversation", record.conversation_id, values), ("person", record.owner, owner_values)):
        for part in _parts(names):
            of_holder = delete(variables).filter_by(agent=agent, scope=scope, holder=holder)
            connection.execute(of_holder.where(variables.c.name.in_(part)))
    if numbers:
        clear_summary(connection, agent, record.conversation_id, min(numbers))
    incidents = delete_incidents_by_number(connection, agent, [turn.incident for turn in turns if turn.incident])
    return CutReport(count, documents, incidents, values, owner_values)


def load_variables_of(
    connection: Connection, agent: str, scope: str, holder: str, is_found: Callable[[int], bool]
) -> dict[str, str]:
    """Return the variables of a holder as JSON texts, by name, that were stored at times which a function chooses."""
    of_holder = select(variables).filter_by(agent=agent, scope=scope, holder=holder)
    own = connection.execute(of_holder.where(variables.c.name.not_like("coreason.%")))
    return {row.name: row.value for row in own if is_found(row.updated_at)}


class FoundRequest(NamedTuple):
    """A request of a person that is stored: an open one, or one that has ended the process. `request` is JSON.

    `is_answered` is true if only its reply is not acknowledged yet.
    """

    id: int
    agent: str
    received_at: datetime
    request: str | None
    is_answered: bool


def _find_requests(
    connection: Connection, agents: Collection[str], person: str, turns: Collection[int]
) -> tuple[list[FoundRequest], list[FoundRequest]]:
    """Return what `find_requests` returns: the open requests, and those that have ended the process."""

    def select_own(rows: Iterable[Any]) -> list[FoundRequest]:
        return [
            FoundRequest(row.id, row.agent, from_micros(row.received_at), row.request, row.state == ANSWERED)
            for row in rows
            if row.agent in agents and row.sender != person and (row.interaction in turns or _is_of(row.request, person))
        ]

    waiting = select(inbox).where(inbox.c.state < CLOSED)
    crashed = select(crashed_requests, null().label("interaction"), null().label("state"))
    return select_own(connection.execute(waiting)), select_own(connection.execute(crashed))


def _erase_requests(connection: Connection, agents: Collection[str], person: str, turns: Collection[int]) -> Counter[str]:
    """Close and delete what `find_requests` returns. Return the numbers of those without an answer, by agent.

    Run this in a transaction of the writer.
    """
    waiting, crashed = _find_requests(connection, agents, person, turns)
    for part in _parts([found.id for found in waiting]):
        connection.execute(delete(steps).where(steps.c.request.in_(part)))
        connection.execute(update(inbox).where(inbox.c.id.in_(part)).values(state=CLOSED, request=None, answer=None))
    for part in _parts([found.id for found in crashed]):
        connection.execute(delete(crashed_requests).where(crashed_requests.c.id.in_(part)))
    return Counter(one.agent for one in {one.id: one for one in (*waiting, *crashed)}.values() if not one.is_answered)


def _erase_items(connection: Connection, agents: Collection[str], person: str, item_ids: Collection[str]) -> Counter[str]:
    """Delete the items that a person has published at some topic brokers, and those with an id of `item_ids`.

    Their dead letters go too. Return the numbers by broker. Run this inside a transaction of the writer.
    """
    items = topic_items.c
    rows = connection.execute(
        select(items.id, items.agent, items.item_id, items.publisher, items.dead_letter).where(items.agent.in_(list(agents)))
    )
    found = {
        row.id: row.agent
        for row in rows
        if row.publisher == person
        or row.item_id in item_ids
        or (row.dead_letter is not None and json.loads(row.dead_letter).get("item_id") in item_ids)
    }
    for part in _parts(found):
        connection.execute(delete(topic_items).where(items.id.in_(part)))
    return Counter(found.values())


async def find_requests(database: Database, agents: Collection[str], search: PersonSearch, person: str) -> list[FoundRequest]:
    """Return the stored requests of a person at some agents that came by way of agents and rooms.

    They are open, or have ended the process. One is there too if its turn was found and its reply is not acknowledged yet.
    """
    turns = search.turn_ids
    waiting, crashed = await database.read(
        lambda connection: _find_requests(connection, agents, person, turns), is_background=True
    )
    return [*waiting, *crashed]


async def erase_behind_others(
    database: Database, agents: Collection[str], search: PersonSearch, person: str
) -> tuple[Counter[str], Counter[str]]:
    """Erase what came from a person by way of agents and rooms and is in no conversation.

    That is what `find_requests` returns, and items of topics. Return their numbers, by agent. Call it before the turns are cut,
    which tell of them.
    """

    def work(connection: Connection) -> tuple[Counter[str], Counter[str]]:
        requests = _erase_requests(connection, agents, person, search.turn_ids)
        return requests, _erase_items(connection, agents, person, search.item_ids)

    return await database.erase(work)


async def erase_trail(database: Database, trail: str, person: str) -> None:
    """Erase the entries about a person from an audit trail. Their hashes stay."""
    await database.erase(lambda connection: kept.erase_person(connection, trail, person))


async def find_acts(database: Database, person: str) -> list[str]:
    """Return the agents whose audit trails name a person (a bare JID) as the actor, for what they did as an operator."""
    actor = f'"actor":{json.dumps(person, ensure_ascii=False)}'
    query = select(audit.c.agent).where(audit.c.person != person, func.replace(audit.c.entry, actor, "") != audit.c.entry)
    return await database.fetch_scalars(query.distinct().order_by(audit.c.agent), is_background=True)


async def is_shared(database: Database, person: str, agents: Collection[str]) -> bool:
    """Return True if a JID is one of the agents, or its newest turns say that many people are behind it.

    They are those of a room, or of an agent of another platform: it has passed on requests, and no chat came from it. A request
    alone proves nothing, because its sender writes who is behind it.
    """
    if person in agents or is_caller(person):  # a key may stand for a person, who is then the one behind it
        return person in agents
    query = (
        select(interactions.c.root, interactions.c.body)
        .select_from(_OF_OTHERS)
        .where(conversations.c.agent.in_(list(agents)), conversations.c.owner == person, interactions.c.body != ERASED_TURN)
        .order_by(interactions.c.id.desc())
        .limit(_PAGE_ROWS)
    )
    turns = [(root, _find_channel(body)) for root, body in await database.fetch(query, is_background=True)]
    if ROOM.name in [channel for _, channel in turns]:
        return True
    is_human = PERSON.name in [channel for root, channel in turns if not root]
    return not is_human and any(root not in ("", HIDDEN_PERSON, person) for root, _ in turns)


def _find_channel(body: str) -> object:
    try:
        return from_json(body)["meta"]["channel"]
    except (ValueError, LookupError, TypeError):  # it was changed by hand
        return None


async def load_bodies(database: Database, turns: Sequence[FoundTurn]) -> list[str]:
    """Return found turns as JSON, in their order."""
    found: dict[int, str] = {}
    for part in _parts([turn.id for turn in turns]):
        query = select(interactions.c.id, interactions.c.body).where(interactions.c.id.in_(part))
        found |= {row.id: row.body for row in await database.fetch(query, is_background=True)}
    return [found[turn.id] for turn in turns if turn.id in found]


def _is_of(request: str | None, person: str) -> bool:
    """Return True if a person is the owner of a stored request, or the person behind it."""
    if request is None:
        return False
    try:
        return InboundRequest.from_json(request).is_of(person)
    except (ValueError, KeyError, TypeError, AttributeError):  # it cannot be read, and does not run
        return False


def _parts(values: Iterable[Any]) -> Iterable[list[Any]]:
    ids = list(values)
    return (ids[start : start + _BATCH] for start in range(0, len(ids), _BATCH))
