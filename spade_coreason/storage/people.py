"""The turns and requests that came from a person by way of other agents and of rooms: how they are found, and erased.

A conversation belongs to its owner: a person, but also an agent that asks for many people, or a room. The turns in it name the
person behind them (`meta["root_sender"]`), as far as that is known. They have no index: it would cost every turn something,
for a search that is rare. A search reads all turns, in pages.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from pydantic_core import from_json
from sqlalchemy import Connection, Select, delete, func, null, select, update

from ..domain.callers import is_caller
from ..domain.channel_kinds import DOOR, PERSON, PROGRAM, ROOM, SCHEDULE_CHANNEL
from ..domain.messages import ROOT_SENDER, InboundRequest
from .audit import erase_person_entries
from .backends.database import Database
from .incidents import delete_incidents_by_number
from .knowledge import delete_documents_added_between, delete_turn_documents
from .records import COMPACTION_VARIABLE, CompactionState, StoredConversation, conversation_from_row, from_micros
from .schema import (
    ANSWERED,
    CLOSED,
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
"""The number of turns that one read searches: parsing more would hold the event loop for long on PostgreSQL."""
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
    """The result of a search. `emptied` are conversations with erased turns, and no others. `end` is the last row id."""

    found: list[FoundConversation]
    unknown: list[UnknownTurns]
    emptied: list[FoundConversation]
    end: int

    @property
    def turn_ids(self) -> set[int]:
        """The row ids of the found turns."""
        return {turn.id for conversation in self.found for turn in conversation.turns}

    @property
    def item_ids(self) -> set[str]:
        """The ids of the items that the found turns have published to topics."""
        return {item for conversation in self.found for turn in conversation.turns for item in turn.item_ids}


class _Periods:
    """The number of turns by agent, with the times of the first and the last."""

    def __init__(self) -> None:
        self._periods: dict[str, tuple[int, int, int]] = {}

    def add(self, agent: str, first: int, last: int | None = None, count: int = 1) -> None:
        last = first if last is None else last
        known, begin, end = self._periods.get(agent, (0, first, last))
        self._periods[agent] = known + count, min(begin, first), max(end, last)

    def merge(self, other: _Periods) -> None:
        for agent, (count, first, last) in other._periods.items():
            self.add(agent, first, last, count)

    def list(self) -> list[UnknownTurns]:
        return [
            UnknownTurns(agent, count, from_micros(first), from_micros(last))
            for agent, (count, first, last) in sorted(self._periods.items())
        ]


async def search_person(
    database: Database,
    person: str,
    agents: Collection[str],
    on_progress: Callable[[int, int], object] = lambda done, total: None,
    should_go_on: Callable[[], bool] = lambda: True,
    after: int = 0,
) -> PersonSearch:
    """Search the turns of all agents of a platform for those that came from a person (a bare JID) through an agent or a room.

    `on_progress` gets the number of the turns that were read, and of all. It ends early if `should_go_on` returns False.
    With `after`, the end of an earlier search, only later turns are searched.
    """
    total: int = await database.read(lambda connection: connection.scalar(select(func.count(interactions.c.id))) or 0)
    done = 0
    found: dict[int, tuple[str, list[FoundTurn]]] = {}
    unknown, roots, shared, erased = _Periods(), defaultdict[str, _Periods](_Periods), set(agents), set[int]()
    while (page := await database.read(partial(_load_page, after, agents), is_background=True)).count:
        after = page.last
        for row in page.turns:
            if row.channel == ROOM.name:
                shared.add(row.owner)
            if row.turn is None:
                erased.add(row.conversation)
            elif row.root == person and row.owner != person:
                found.setdefault(row.conversation, (row.agent, []))[1].append(row.turn)
            elif row.root and row.root != row.owner:
                roots[row.root].add(row.agent, row.turn.began_at)
            elif not row.root and row.owner != person:
                unknown.add(row.agent, row.turn.began_at)
        done += page.count
        on_progress(done, max(done, total))
        if not should_go_on():
            break
    for name in shared & roots.keys():  # somebody in a room, or an agent that has published an item
        unknown.merge(roots[name])
    records = await database.read(lambda connection: _load_records(connection, found.keys() | erased), is_background=True)
    empty = await database.read(lambda connection: _find_empty(connection, erased), is_background=True)
    return PersonSearch(
        [FoundConversation(agent, records[row][1], turns) for row, (agent, turns) in found.items() if row in records],
        unknown.list(),
        [FoundConversation(*records[row], []) for row in sorted(empty & records.keys())],
        after,
    )


class _ReadTurn(NamedTuple):
    """A turn that may have another person behind it than the owner of its conversation; None for one that was erased."""

    conversation: int
    agent: str
    owner: str
    turn: FoundTurn | None
    channel: str = ""
    root: str = ""


@dataclass(frozen=True, slots=True)
class _Page:
    last: int
    count: int
    turns: list[_ReadTurn]


def _load_page(after: int, agents: Collection[str], connection: Connection) -> _Page:
    """Return the turns of the next page that may have another person behind them than the owner."""
    query = (
        select(interactions, conversations.c.agent, conversations.c.owner)
        .join(conversations, conversations.c.id == interactions.c.conversation)
        .where(interactions.c.id > after)
        .order_by(interactions.c.id)
        .limit(_PAGE_ROWS)
    )
    rows = connection.execute(query).all()
    turns = [turn for row in rows if (turn := _read_turn(row, agents)) is not None]
    return _Page(rows[-1].id if rows else after, len(rows), turns)


def _read_turn(row: Any, agents: Collection[str]) -> _ReadTurn | None:
    """Return a turn with its channel and the person behind it: "" if not known. None if that is the owner."""
    if row.body == ERASED_TURN:
        return _ReadTurn(row.conversation, row.agent, row.owner, None)
    turn = FoundTurn(row.id, row.number, row.interaction_id, row.timestamp, row.timestamp, None, ())
    try:
        body = from_json(row.body)
        meta, output, lineage = body["meta"], body["output"], body["lineage"]
        channel, root = str(meta.get("channel")), meta.get(ROOT_SENDER)
        if not isinstance(root, str):  # it came from its owner, or it is older than this name
            if channel == "notification" or (channel == SCHEDULE_CHANNEL and row.owner == row.agent):
                return None  # the agent wrote by itself: nobody is behind it
            is_passed_on = row.owner in agents or lineage.get("root_request_id") != meta.get("request_id")
            if (channel in (PROGRAM.name, DOOR.name) and not is_passed_on) or (
                channel == PERSON.name and "nickname" not in meta
            ):
                return None
            root = ""
        blocks = [block.get("data") for block in output.get("data", ())]
        items = [block["item_id"] for block in blocks if isinstance(block, dict) and isinstance(block.get("item_id"), str)]
        ended_at = row.timestamp + round(1000 * meta.get("duration_ms", 0))
        turn = turn._replace(ended_at=ended_at, incident=meta.get("incident"), item_ids=tuple(items))
    except (ValueError, LookupError, TypeError, AttributeError):  # nothing is known of it
        channel = root = ""
    return _ReadTurn(row.conversation, row.agent, row.owner, turn, channel, root)


def _load_records(connection: Connection, rows: Collection[int]) -> dict[int, tuple[str, StoredConversation]]:
    records = {}
    for part in _parts(list(rows)):
        for row in connection.execute(select(conversations).where(conversations.c.id.in_(part))):
            records[row.id] = row.agent, conversation_from_row(row)
    return records


def _find_empty(connection: Connection, rows: Collection[int]) -> set[int]:
    """Return those of the conversations with erased turns of which no turn is left."""
    empty = set(rows)
    for part in _parts(list(rows)):
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
    count = connection.execute(update(interactions).where(*is_erased).values(body=ERASED_TURN, interaction_id="")).rowcount
    numbers = [turn.number for turn in turns]
    delete_turn_documents(connection, record.id, numbers)
    documents = delete_documents_added_between(connection, agent, record.conversation_id, spans.__contains__)
    times = {turn.began_at for turn in turns}
    values = load_variables_of(connection, agent, "conversation", record.conversation_id, times.__contains__)
    owner_values = load_variables_of(connection, agent, "person", record.owner, times.__contains__)
    for scope, holder, names in (("conversation", record.conversation_id, values), ("person", record.owner, owner_values)):
        for part in _parts(list(names)):
            is_one = *_of_holder(agent, scope, holder), variables.c.name.in_(part)
            connection.execute(delete(variables).where(*is_one))
    if numbers:
        clear_summary(connection, agent, record.conversation_id, min(numbers))
    incidents = delete_incidents_by_number(connection, agent, [turn.incident for turn in turns if turn.incident])
    return CutReport(count, documents, incidents, values, owner_values)


def load_variables_of(
    connection: Connection, agent: str, scope: str, holder: str, is_found: Callable[[int], bool]
) -> dict[str, str]:
    """Return the variables of a holder as JSON texts, by name, that were stored at times which a function chooses."""
    columns = variables.c.name, variables.c.value, variables.c.updated_at
    is_own = *_of_holder(agent, scope, holder), variables.c.name.not_like("coreason.%")
    return {row.name: row.value for row in connection.execute(select(*columns).where(*is_own)) if is_found(row.updated_at)}


def _of_holder(agent: str, scope: str, holder: str) -> tuple[Any, Any, Any]:
    return variables.c.agent == agent, variables.c.scope == scope, variables.c.holder == holder


def clear_summary(connection: Connection, agent: str, conversation_id: str, number: int) -> None:
    """Delete the summary of a conversation if it covers a turn of this number. The turns that are left are summarised again.

    Run this inside a transaction of the writer.
    """
    is_state = *_of_holder(agent, "conversation", conversation_id), variables.c.name == COMPACTION_VARIABLE
    text = connection.scalar(select(variables.c.value).where(*is_state))
    if text is not None and (state := CompactionState.from_json(text)).summary and state.through >= number:
        cleared = state._replace(through=0, summary="")
        connection.execute(update(variables).where(*is_state).values(value=cleared.to_json()))


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

    i, crashed = inbox.c, crashed_requests.c
    columns = i.id, i.agent, i.sender, i.received_at, i.request, i.interaction, i.state
    others = null().label("interaction"), null().label("state")
    of_crashed = crashed.id, crashed.agent, crashed.sender, crashed.received_at, crashed.request, *others
    waiting = connection.execute(select(*columns).where(inbox.c.state < CLOSED)).all()
    return select_own(waiting), select_own(connection.execute(select(*of_crashed)).all())


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
    for part in _parts(list(found)):
        connection.execute(delete(topic_items).where(items.id.in_(part)))
    return Counter(found.values())


def _fetch(query: Select[Any], connection: Connection) -> Sequence[Any]:
    return connection.execute(query).all()


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
    await database.erase(lambda connection: erase_person_entries(connection, trail, person))


async def find_acts(database: Database, person: str) -> list[str]:
    """Return the agents whose audit trails name a person (a bare JID) as the actor, for what they did as an operator."""
    return await database.read(partial(_find_acts, person), is_background=True)


async def is_shared(database: Database, person: str, agents: Collection[str]) -> bool:
    """Return True if a JID is one of the agents, or its newest turns say that many people are behind it.

    They are those of a room, or of an agent of another platform: it has passed on requests, and no chat came from it. A request
    alone proves nothing, because its sender writes who is behind it.
    """
    if person in agents or is_caller(person):  # a key may stand for a person, who is then the one behind it
        return person in agents
    query = (
        select(interactions, conversations.c.agent, conversations.c.owner)
        .join(conversations, conversations.c.id == interactions.c.conversation)
        .where(conversations.c.agent.in_(list(agents)), conversations.c.owner == person)
        .order_by(interactions.c.id.desc())
        .limit(_PAGE_ROWS)
    )
    rows = await database.fetch(query, is_background=True)
    turns = [_read_turn(row, agents) for row in rows]
    if any(turn is not None and turn.channel == ROOM.name for turn in turns):
        return True
    own = [from_json(row.body)["meta"]["channel"] for row, turn in zip(rows, turns, strict=True) if turn is None]
    return PERSON.name not in own and any(turn is not None and turn.root not in ("", person) for turn in turns)


async def load_bodies(database: Database, turns: Sequence[FoundTurn]) -> list[str]:
    """Return found turns as JSON, in their order."""
    found: dict[int, str] = {}
    for part in _parts([turn.id for turn in turns]):
        query = select(interactions.c.id, interactions.c.body).where(interactions.c.id.in_(part))
        found |= {row.id: row.body for row in await database.read(partial(_fetch, query), is_background=True)}
    return [found[turn.id] for turn in turns if turn.id in found]


def _find_acts(person: str, connection: Connection) -> list[str]:
    actor = f'"actor":{json.dumps(person, ensure_ascii=False)}'
    query = select(audit.c.agent).where(audit.c.person != person, func.replace(audit.c.entry, actor, "") != audit.c.entry)
    return list(connection.scalars(query.distinct().order_by(audit.c.agent)))


def _is_of(request: str | None, person: str) -> bool:
    """Return True if a person is the owner of a stored request, or the person behind it."""
    if request is None:
        return False
    try:
        return InboundRequest.from_json(request).is_of(person)
    except (ValueError, KeyError, TypeError, AttributeError):  # it cannot be read, and does not run
        return False


def _parts(ids: list[Any]) -> Iterable[list[Any]]:
    return (ids[start : start + _BATCH] for start in range(0, len(ids), _BATCH))
