"""The sessions of one agent on a real file: the inbox, who owns what, variables, history, and what forgetting leaves."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, text

from spade_coreason import AgentDefinition, AgentInteractionMemory, ConversationState, Identity, StoreError
from spade_coreason.codec import Incoming
from spade_coreason.contracts import Interaction, MemoryConfig, MemoryStrategy
from spade_coreason.contracts.base import utc_now
from spade_coreason.conversation import Life, Rules, begin
from spade_coreason.forget import Forgotten, forget_conversation, forget_everybody, forget_person
from spade_coreason.names import choose, possible_ids, session_id
from spade_coreason.pruning import extent
from spade_coreason.runner import Policy, Runner
from spade_coreason.session import Session, Variables
from spade_coreason.stores import AgentStore, ConversationRow, Database, Turn, Variable
from spade_coreason.values import replace
from tests.clock import Clock
from tests.databases import SQLITE, commits, everything, execute, rows
from tests.turns import AGENT, ALICE, NOW, conversation, received, turn
from tests.waiting import eventually

OTHER_AGENT = "echo@localhost"
BOB, CAROL = "bob@localhost", "carol@localhost"
# Whose JIDs look like Alice's.
MALICE, ALICE_ELSEWHERE = "malice@localhost", "alice@localhost.example"
RECEIVED, ANSWERED, CLOSED = range(3)


@pytest.fixture
def store(database: Database) -> AgentStore:
    return AgentStore(database, AGENT)


@pytest.fixture
def memory(tmp_path: Path) -> AgentInteractionMemory:
    return AgentInteractionMemory(AGENT, tmp_path / "memory")


async def opened(url: str) -> Database:
    return await Database.open(url, "off")


def inbox(database_url: str) -> list[tuple[int, str | None, str | None]]:
    return [(row["state"], row["request"], row["answer"]) for row in rows(database_url, "inbox")]


# The inbox


async def test_a_request_is_received_answered_and_closed(store: AgentStore, database_url: str) -> None:
    row = await received(store, request='{"q": 1}')
    assert inbox(database_url) == [(RECEIVED, '{"q": 1}', None)]
    await store.inbox.finish(row, conversation(store), None, '["<message/>"]')
    assert inbox(database_url) == [(ANSWERED, None, '["<message/>"]')]
    store.inbox.close(row)
    await store.save_conversation(conversation(store, "another"))  # with which it is written
    assert inbox(database_url) == [(CLOSED, None, None)]


async def test_a_request_without_an_answer_is_closed_at_once(store: AgentStore, database_url: str) -> None:
    await store.inbox.finish(await received(store), conversation(store), None, None)
    assert inbox(database_url) == [(CLOSED, None, None)]


async def test_what_is_closed_last_is_written_when_the_database_closes(database_url: str) -> None:
    database = await opened(database_url)
    store = AgentStore(database, AGENT)
    row = await received(store)
    store.inbox.close(row)
    await database.close()
    assert inbox(database_url) == [(CLOSED, None, None)]


@pytest.mark.parametrize("state", [RECEIVED, ANSWERED, CLOSED])
@pytest.mark.parametrize("reopened", [False, True], ids=["", "after a restart"])
async def test_a_duplicate_is_known_in_every_state_and_changes_nothing(database_url: str, state: int, reopened: bool) -> None:
    database = await opened(database_url)
    store = AgentStore(database, AGENT)
    row = await received(store, request='{"first": 1}', key=b"k" * 16)
    if state != RECEIVED:
        await store.inbox.finish(row, conversation(store), None, '["<message/>"]' if state == ANSWERED else None)
    if reopened:
        await database.close()
        database = await opened(database_url)
        store = AgentStore(database, AGENT)
    before = everything(database_url)
    assert not await store.inbox.receive(b"k" * 16, ALICE, '{"second": 2}', NOW + timedelta(days=1))[1]
    assert everything(database_url) == before
    await database.close()


async def test_of_many_duplicates_at_once_one_is_new(store: AgentStore, database_url: str) -> None:
    keys = [bytes([n % 7]) * 16 for n in range(200)]
    found = await asyncio.gather(*(store.inbox.receive(key, ALICE, "{}", NOW)[1] for key in keys))
    assert sum(found) == len(inbox(database_url)) == 7
    assert found[:7] == [True] * 7


async def test_unsent_answers_are_listed_again_in_order_until_they_are_closed(database_url: str) -> None:
    database = await opened(database_url)
    store = AgentStore(database, AGENT)
    talk = conversation(store)
    numbers = [await received(store, key=bytes([n]) * 16) for n in range(5)]
    for n in (3, 0, 4, 1):
        await store.inbox.finish(numbers[n], talk, None, f'["answer {n}"]')
    for closed, expected in ((None, [0, 1, 2, 3, 4]), (0, [1, 2, 3, 4]), (3, [1, 2, 4])):
        if closed is not None:
            store.inbox.close(numbers[closed])
        await database.close()
        database = await opened(database_url)
        store = AgentStore(database, AGENT)
        pending = await store.inbox.pending()
        assert [row.key[0] for row in pending] == expected
        assert [row.answer for row in pending] == [None if n == 2 else f'["answer {n}"]' for n in expected]
        assert [row.request for row in pending if row.answer is None] == ['{"secret": 1}']
    await database.close()


async def test_pending_requests_are_of_their_agent(store: AgentStore, database: Database) -> None:
    await received(store)
    assert await AgentStore(database, OTHER_AGENT).inbox.pending() == []


@pytest.mark.parametrize(
    ("days", "is_closed", "agent", "stays"),
    [(8, True, AGENT, False), (7, True, AGENT, True), (8, False, AGENT, True), (8, True, OTHER_AGENT, True)],
    ids=["closed and old", "closed and young", "old and open", "another agent's"],
)
async def test_only_what_is_closed_and_old_is_purged(
    database: Database, database_url: str, days: int, is_closed: bool, agent: str, stays: bool
) -> None:
    store = AgentStore(database, agent)
    row = await received(store)
    if is_closed:
        await store.inbox.finish(row, conversation(store), None, None)
    await AgentStore(database, AGENT).inbox.purge(NOW + timedelta(days=days))
    assert len(inbox(database_url)) == stays


# One transaction


@pytest.mark.parametrize("broken", ["conversation", "turn", "variable", "answer"])
async def test_a_turn_that_cannot_be_stored_whole_leaves_everything_as_it_was(
    store: AgentStore, database: Database, database_url: str, broken: str
) -> None:
    row = await turn(store, conversation(store), Variable("conversation", "t", "v", "1"), answer='["old"]')
    request = await received(store)
    before = everything(database_url)
    parts: dict[str, Any] = {
        "conversation": replace(row, turns=2, life=replace(row.life, interaction_count=2)),
        "turn": Turn("i", NOW, "{}"),
        "variable": Variable("conversation", "t", "v", "2"),
        "answer": '["new"]',
    }
    wrong: dict[str, Any] = {
        "conversation": replace(parts["conversation"], owner=None),
        "turn": replace(parts["turn"], body=None),
        "variable": parts["variable"]._replace(value=None),
        "answer": object(),
    }
    given = {**parts, broken: wrong[broken]}
    with pytest.raises(StoreError, match=f"^{re.escape(database.name)}: "):
        await store.inbox.finish(request, given["conversation"], given["turn"], given["answer"], [given["variable"]])
    assert everything(database_url) == before
    await store.inbox.finish(request, parts["conversation"], parts["turn"], parts["answer"], [parts["variable"]])
    assert await store.history(row.id, 10) == ['{"n": 1, "of": "alice@localhost"}', "{}"]
    assert await store.variables("conversation", "t") == {"v": "2"}
    assert inbox(database_url) == [(ANSWERED, None, '["old"]'), (ANSWERED, None, '["new"]')]


async def test_turns_that_end_together_are_each_stored_whole(store: AgentStore, database_url: str) -> None:
    good = [conversation(store, f"t{n}", turns=1) for n in range(100)]
    bad = [replace(conversation(store, f"b{n}", turns=1), owner=None) for n in range(3)]
    talks = [*good[:50], *bad, *good[50:]]
    requests = [await received(store) for _ in talks]
    finished = [
        store.inbox.finish(request, row, Turn("i", NOW, "{}"), "[]", [Variable("conversation", row.conversation_id, "v", "1")])
        for request, row in zip(requests, talks, strict=True)
    ]
    results = await asyncio.gather(*finished, return_exceptions=True)
    assert [row.conversation_id for row, result in zip(talks, results, strict=True) if result is not True] == ["b0", "b1", "b2"]
    assert [len(rows(database_url, table)) for table in ("conversations", "interactions", "variables")] == [100, 100, 100]
    assert sorted(state for state, _, _ in inbox(database_url)) == [RECEIVED] * 3 + [ANSWERED] * 100


async def test_turns_that_end_together_share_a_commit(store: AgentStore, database_url: str) -> None:
    talks = [conversation(store, f"t{n}", turns=1) for n in range(100)]
    before = commits(database_url)

    async def talk(row: ConversationRow) -> None:
        await store.inbox.finish(await received(store), row, Turn("i", NOW, "{}"), "[]")

    await asyncio.gather(*map(talk, talks))
    assert len(rows(database_url, "interactions")) == 100
    assert commits(database_url) - before <= 10  # and neither 100 nor 200


# Conversations and their owners


async def test_a_conversation_comes_back_as_it_was_stored(database_url: str) -> None:
    life = Life(ConversationState.MAX_INTERACTIONS_REACHED, 7, NOW, NOW + timedelta(microseconds=1), 2, NOW + timedelta(1))
    database = await opened(database_url)
    store = AgentStore(database, AGENT)
    row = conversation(store, "t <é> '", life=life, window_start=5, turns=9)
    await store.save_conversation(row)
    await database.close()
    database = await opened(database_url)
    store = AgentStore(database, AGENT)
    assert await store.find_conversations([row.conversation_id, "another"]) == {row.conversation_id: row}
    assert row.record.dump()["interaction_count"] == 7
    assert store.new_conversation_row() > row.id
    await database.close()


async def test_an_id_that_is_anothers_cannot_be_stored(store: AgentStore, database: Database) -> None:
    hers = conversation(store, "t", ALICE)
    await store.save_conversation(hers)
    with pytest.raises(StoreError, match=r"(?i)unique"):
        await store.save_conversation(conversation(store, "t", BOB))
    assert await store.find_conversations(["t"]) == {"t": hers}
    # With another agent it is another conversation.
    elsewhere = AgentStore(database, OTHER_AGENT)
    await elsewhere.save_conversation(conversation(elsewhere, "t", BOB))
    assert (await store.find_conversations(["t"]))["t"].owner == ALICE
    assert (await elsewhere.find_conversations(["t"]))["t"].owner == BOB


async def taken(store: AgentStore, thread: str | None, owner: str) -> ConversationRow:
    """The conversation that the owner gets on a thread, as the runner gives it."""
    possible = possible_ids(thread, owner, store.agent)
    found = await store.find_conversations(possible)
    name = choose(possible, owner, {name: row.owner for name, row in found.items()})
    assert name is not None
    row = found.get(name) or conversation(store, name, owner)
    return await turn(store, row, Variable("conversation", name, "v", f'"{owner}"'))


@pytest.mark.parametrize("cleared", ["conversation", "person"])
async def test_after_a_conversation_was_cleared_everybody_else_keeps_theirs(
    store: AgentStore, memory: AgentInteractionMemory, cleared: str
) -> None:
    hers, his = await taken(store, "t", ALICE), await taken(store, "t", BOB)
    assert (hers.conversation_id, his.conversation_id) == ("t", f"t_{BOB}")
    if cleared == "conversation":
        await forget_conversation(store, memory, hers)
    else:
        await forget_person(store, memory, ALICE)
    again = await taken(store, "t", BOB)
    assert (again.conversation_id, again.id, again.turns) == (f"t_{BOB}", his.id, 2)
    carols = await taken(store, "t", CAROL)
    assert (carols.conversation_id, carols.turns) == ("t", 1)
    assert await store.variables("conversation", "t") == {"v": f'"{CAROL}"'}
    new = await taken(store, "t", ALICE)
    assert (new.conversation_id, new.turns) == (f"t_{ALICE}", 1)
    assert len(await store.history(new.id, 10)) == 1


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({}, ["c", "b", "a"]),
        ({"owner": ALICE}, ["c", "a"]),
        ({"owner": MALICE}, []),
        ({"state": ConversationState.COMPLETED}, ["b"]),
        ({"owner": ALICE, "state": ConversationState.COMPLETED}, []),
        ({"limit": 2}, ["c", "b"]),
    ],
)
async def test_conversations_are_listed_the_newest_first(
    store: AgentStore, database: Database, arguments: dict[str, Any], names: list[str]
) -> None:
    for hours, (name, owner) in enumerate([("a", ALICE), ("b", BOB), ("c", ALICE)]):
        state = ConversationState.COMPLETED if name == "b" else ConversationState.ACTIVE
        await store.save_conversation(conversation(store, name, owner, life=Life(state, 1, NOW, NOW + timedelta(hours=hours))))
    elsewhere = AgentStore(database, OTHER_AGENT)
    await elsewhere.save_conversation(conversation(elsewhere, "d"))
    assert [row.conversation_id for row in await store.conversations(**arguments)] == names


async def test_only_the_agents_own_active_conversations_are_active(store: AgentStore, database: Database) -> None:
    elsewhere = AgentStore(database, OTHER_AGENT)
    await elsewhere.save_conversation(conversation(elsewhere, "elsewhere"))
    ended = Life(ConversationState.COMPLETED, 1, NOW, NOW)
    await store.save_conversation(conversation(store, "ended", life=ended))
    assert await store.active() == {}
    later = NOW + timedelta(seconds=1)
    await store.save_conversation(conversation(store, "later", life=Life(ConversationState.ACTIVE, 1, NOW, later)))
    assert await store.active() == {"later": later}
    assert (await store.count_conversations(), await elsewhere.count_conversations()) == ((1, 2), (1, 1))
    assert await AgentStore(database, "nobody@localhost").count_conversations() == (0, 0)


# Variables

HOLDERS = [
    (agent, scope, holder) for agent in (AGENT, OTHER_AGENT) for scope in ("conversation", "person") for holder in (ALICE, BOB)
]


@pytest.mark.parametrize("written", HOLDERS)
async def test_a_variable_is_of_one_agent_scope_and_holder(database: Database, written: tuple[str, str, str]) -> None:
    """A conversation may have a JID as its name: whoever chose such a thread reads no variable of that person."""
    agent, scope, holder = written
    store = AgentStore(database, agent)
    row = await turn(store, conversation(store), Variable(scope, holder, "v", "1"))
    await turn(store, row, Variable(scope, holder, "v", "2"), Variable(scope, holder, "w\t", "3"))
    for where in HOLDERS:
        found = await AgentStore(database, where[0]).variables(*where[1:])
        assert found == ({"v": "2", "w\t": "3"} if where == written else {})


def session(store: AgentStore, owner: str, name: str, values: dict[str, str], of_person: dict[str, str]) -> Session:
    row = ConversationRow(1, name, owner, name, begin(NOW), 0)
    identity = Identity(id=owner, name=owner, role="user")
    conversation, person = Variables("conversation", name, values), Variables("person", owner, of_person)
    return Session(row, (), identity, store, conversation, person)


async def loaded(store: AgentStore, owner: str, name: str) -> Session:
    return session(store, owner, name, await store.variables("conversation", name), await store.variables("person", owner))


@pytest.mark.parametrize(
    ("scope", "same", "another_thread", "another_person"),
    [("conversation", 1, None, None), ("person", 1, 1, None), (None, 1, 1, None)],
)
async def test_what_a_session_stores_is_read_in_its_scope_and_by_no_other_owner(
    store: AgentStore, scope: Any, same: Any, another_thread: Any, another_person: Any
) -> None:
    told = await loaded(store, ALICE, "t")
    await told.store("v", 1, scope=scope)
    before = await loaded(store, ALICE, "t")
    assert await before.get("v") is None  # it lasts from the end of the turn
    await turn(store, conversation(store), *told.written())
    assert await (await loaded(store, ALICE, "t")).get("v") == same
    assert await (await loaded(store, ALICE, "u")).get("v") == another_thread
    assert await (await loaded(store, BOB, f"t_{BOB}")).get("v") == another_person


circle: list[Any] = []
circle.append(circle)
WRONG: dict[str, Any] = {
    "an object": object(),
    "a set": {1, 2},
    "bytes": b"x",
    "no number": float("nan"),
    "infinity": [float("-inf")],
    "half a character": "\ud800",
    "half a character within": {"a": ["\udfff"]},
    "a key that is none": {(1, 2): 3},
    "a key that is a number": {1: "x"},
    "a key within that is nothing": [{"a": ({None: "x"},)}],
    "something deep": [{"a": [datetime.now(UTC)]}],
    "itself": circle,
    "something too deep": None,
}
deep: list[Any] = []
for _ in range(100_000):
    deep = [deep]
WRONG["something too deep"] = deep


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("scope", ["conversation", "person", None])
async def test_a_value_that_is_no_json_is_an_error_that_names_its_key_and_changes_nothing(
    store: AgentStore, what: str, scope: Any
) -> None:
    before = session(store, ALICE, "t", {"the key": '"old"'}, {"the key": '"older"'})
    await before.store("another", 1)
    written = before.written()
    with pytest.raises(ValueError, match=r'variable "the key": .*only JSON values can be kept'):
        await before.store("the key", WRONG[what], scope=scope)
    assert before.written() == written
    assert await before.get("the key") == "old"
    assert {row.name for row in written} == {"another"}


async def test_a_key_that_cannot_be_stored_is_named(store: AgentStore) -> None:
    told = session(store, ALICE, "t", {}, {})
    with pytest.raises(ValueError, match="only JSON values can be kept"):
        await told.store("\ud800", 1)
    with pytest.raises(ValueError, match=r"'a\\x00b'"):  # for which PostgreSQL has no room
        await told.store("a\0b", 1)
    assert told.written() == []


# History and its window


@pytest.mark.parametrize("limit", [0, 1, 4, 25, 100])
@pytest.mark.parametrize("offset", [0, 1, 22, 25, 100])
async def test_history_is_paged_from_the_newest_in_chronological_order(database_url: str, limit: int, offset: int) -> None:
    database_url = await _twenty_five_turns(database_url)
    database = await opened(database_url)
    store = AgentStore(database, AGENT)
    row = (await store.find_conversations(["t"]))["t"]
    numbers = list(range(1, 26))
    end = max(25 - offset, 0)
    expected = numbers[max(end - limit, 0) : end]
    assert [json.loads(body)["n"] for body in await store.history(row.id, limit, offset)] == expected
    await database.close()


async def _twenty_five_turns(database_url: str) -> str:
    """Of two conversations in turns, with a clock that goes backwards."""
    database = await opened(database_url)
    store = AgentStore(database, AGENT)
    talks = [conversation(store, "t"), conversation(store, "other", BOB)]
    finished = []
    for n in range(1, 26):
        for row in talks:
            what = Turn(f"{n}", NOW - timedelta(hours=n), json.dumps({"n": n if row.owner == ALICE else -n}))
            finished.append(store.inbox.finish(await received(store), replace(row, turns=n), what, None))
    await asyncio.gather(*finished)
    await database.close()
    return database_url


LONG = 100_000


class Pages:
    """Looks back a little."""

    manifest = AgentDefinition.simple("pages")

    async def assist(self, request: Any, session: Any, response: Any) -> None:
        assert len(await session.history(5, 40)) == 5
        await response.markdown("x")


async def test_a_long_session_costs_what_its_window_costs(database_url: str) -> None:
    """Whatever reads the rest of a hundred thousand turns takes longer than to count their letters; see `make bench`."""
    database = await opened(database_url)
    store = AgentStore(database, AGENT)
    for name, turns in (("short", 100), ("long", LONG)):
        row = conversation(store, name, turns=turns, window_start=turns - 19)
        await store.save_conversation(row)
        await database.write(partial(_fill, row.id, turns))
    await database.close()
    async with Talk(database_url, Pages(), Policy(rules=Rules(max_interactions=0))) as talk:
        if not database_url.startswith(SQLITE):  # as autovacuum does, which is off here
            await asyncio.to_thread(execute, database_url, "ANALYZE interactions")
        found = await talk.store.find_conversations(["short", "long"])

        async def loaded(name: str) -> None:
            assert len((await talk.store.load([name], ALICE, 20)).history) == 20

        async def paged(name: str) -> None:
            row = found[name]
            assert len(await talk.store.history(row.id, 5, row.turns // 2)) == 5

        async def turned(name: str) -> None:
            await talk.say("x", name)

        async def counted(name: str) -> None:
            letters = text("SELECT sum(length(body)) FROM interactions WHERE conversation = :row")
            await database_of(talk).read(lambda connection: connection.execute(letters, {"row": found[name].id}).scalar_one())

        rest = await _quickest(counted, "long")
        for deed in (loaded, paged, turned):
            best = {name: await _quickest(deed, name) for name in ("short", "long")}
            assert best["long"] - best["short"] < rest / 2, deed.__name__


def database_of(talk: Talk) -> Database:
    return talk.store._database


def _fill(conversation_row: int, turns: int, connection: Connection) -> None:
    series = "generate_series(1, :turns) AS numbers (n)"
    if connection.dialect.name == "sqlite":
        counted = "SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :turns"
        series = f"(WITH RECURSIVE numbers (n) AS ({counted}) SELECT n FROM numbers)"
    body = Interaction(input={"query": "x"}, output={"text": "y" * 100}).model_dump_json()
    said = {"turns": turns, "row": conversation_row, "first": conversation_row * 10 * LONG, "body": body}
    connection.execute(text(f"INSERT INTO interactions SELECT :first + n, :row, n, 'i', n, :body FROM {series}"), said)


async def _quickest(deed: Callable[[str], Awaitable[None]], name: str) -> float:
    """Seconds, of twenty times: the machine may be busy at any of them."""
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        await deed(name)
        times.append(time.perf_counter() - begin)
    return min(times)


@pytest.mark.parametrize(
    ("strategy", "limit", "kept", "start"),
    [
        (MemoryStrategy.SLIDING_WINDOW, 3, 3, 8),
        (MemoryStrategy.SLIDING_WINDOW, 10, 10, 1),
        (MemoryStrategy.SLIDING_WINDOW, 50, 10, 1),
        (MemoryStrategy.ALL, 3, 10, 1),
    ],
)
def test_the_window_begins_with_the_first_turn_that_is_kept(
    strategy: MemoryStrategy, limit: int, kept: int, start: int
) -> None:
    assert extent(10, MemoryConfig(strategy=strategy, limit=limit), 10) == (kept, start)


class Remembers:
    """Says how many turns it sees, and remembers everything in all ways."""

    manifest = AgentDefinition.simple("notes")

    def __init__(self, memory: AgentInteractionMemory | None = None, release: asyncio.Event | None = None) -> None:
        self.memory = memory
        self.release = release
        self.at_work = asyncio.Event()

    async def assist(self, request: Any, session: Any, response: Any) -> None:
        name = request.metadata["conversation_id"]
        known = [] if self.memory is None else await self.memory.aget_information(name)
        if self.memory is not None:
            await self.memory.aadd_information(name, f"a secret of {session.identity.id}")
        await session.store("v", f"a secret of {session.identity.id}")
        self.at_work.set()
        if self.release is not None:
            await self.release.wait()
        await response.data({"seen": len(session._state.history), "all": len(await session.history(1000)), "known": known})


class Talk:
    """A runner over the database at a URL, started and stopped as often as wanted."""

    def __init__(
        self, database_url: str, agent: Any = None, policy: Policy | None = None, clock: Callable[[], datetime] = utc_now
    ) -> None:
        self.url = database_url
        self.clock = clock
        self.agent = agent or Remembers()
        self.policy = policy or Policy()
        self.sent: list[str] = []

    async def __aenter__(self) -> Talk:
        self.database = await opened(self.url)
        self.store = AgentStore(self.database, AGENT)
        self.runner = Runner(self.agent, AGENT, self.store, self.policy, clock=self.clock)
        await self.runner.open(self.sent.extend)
        self.runner.send_unsent()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.runner.drain(0)
        await self.runner.close()
        await self.database.close()

    def begin(self, text: str, thread: str | None = "t", sender: str = ALICE) -> asyncio.Future[bool]:
        taken = self.runner.receive(Incoming("person", f"{sender}/x", str(uuid4()), thread, {"query": text}, text))
        assert taken is not None
        return taken

    async def say(self, text: str, thread: str | None = "t", sender: str = ALICE) -> None:
        await self.begin(text, thread, sender)
        await self.runner.settled()


async def test_what_leaves_the_window_stays_in_storage_and_a_window_never_grows_back(database_url: str) -> None:
    starts = []
    for limit in (3, 10, 2):
        async with Talk(database_url, policy=Policy(memory=MemoryConfig(limit=limit))) as talk:
            for n in range(5):
                await talk.say(str(n))
                starts.append((await talk.store.find_conversations(["t"]))["t"].window_start)
            assert len(await talk.store.history(1, 1000)) == len(starts)
    assert starts == [1, 1, 1, 2, 3, 3, 3, 3, 3, 3, 10, 11, 12, 13, 14]


class Meeting:
    """Two turns of a person in two conversations: each sees what was, then both store, in the order of the first to go on."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("meeting")
        self.go_on = {"one": asyncio.Event(), "two": asyncio.Event()}
        self.there = 0
        self.found: dict[str, Any] = {}

    async def assist(self, request: Any, session: Any, response: Any) -> None:
        name = request.payload["query"]
        if name == "look":
            self.found = {key: await session.get(key) for key in ("one", "two", "both")}
            return
        assert await session.get("both") is None
        self.there += 1
        await self.go_on[name].wait()
        await session.store(name, {"of": name}, scope="person")
        await session.store("both", name, scope="person")


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one"), None])
async def test_two_turns_at_once_lose_none_of_each_others_variables(database_url: str, order: tuple[str, str] | None) -> None:
    agent = Meeting()
    async with Talk(database_url, agent) as talk:
        for name in agent.go_on:
            talk.begin(name, thread=name)
        await eventually(lambda: agent.there == 2)
        for name in order or agent.go_on:
            agent.go_on[name].set()
            if order:  # else both are stored in one transaction
                await talk.runner.settled(ALICE, name)
        await talk.runner.settled()
        await talk.say("look", "three")
        in_memory = agent.found
    async with Talk(database_url, agent) as talk:
        await talk.say("look", "four")
    assert agent.found == in_memory  # the last one counts, in memory as in the database
    assert (agent.found["one"], agent.found["two"]) == ({"of": "one"}, {"of": "two"})
    assert agent.found["both"] == (order[1] if order else "two")


async def test_a_clock_that_jumps_back_loses_and_reorders_nothing(database_url: str) -> None:
    clock = Clock()
    async with Talk(database_url, clock=clock) as talk:
        for n, days in enumerate((0, -400, 1, -30, 500)):
            clock.move(days=days)
            await talk.say(str(n))
        # The same message, after the clock has gone back, is known all the same.
        again = Incoming("person", f"{ALICE}/x", "again", "t", {"query": "5"}, "5")
        for _ in range(2):
            talk.runner.receive(again)
            await talk.runner.settled()
            clock.move(days=-100)
    async with Talk(database_url, clock=clock) as talk:
        row = (await talk.store.find_conversations(["t"]))["t"]
        bodies = [json.loads(body)["input"]["query"] for body in await talk.store.history(row.id, 10)]
        assert bodies == [str(n) for n in range(6)]
        assert row.life.state is ConversationState.ACTIVE
        await talk.say("6")
        assert (await talk.store.find_conversations(["t"]))["t"].turns == 7


# Forgetting


async def populated(database_url: str, memory: AgentInteractionMemory | None = None) -> None:
    """Five people, two agents; each person has two conversations, and a request in each state with each agent."""
    database = await opened(database_url)
    for agent in (AGENT, OTHER_AGENT):
        store = AgentStore(database, agent)
        for owner in (ALICE, BOB, MALICE, ALICE_ELSEWHERE):
            person = Variable("person", owner, "v", json.dumps(f"a secret of {owner}"))
            for name in (f"{owner}_{agent}", f"of {owner.split('@')[0]} {owner[-1]}"):
                row = conversation(store, name, owner)
                for _ in range(3):
                    row = await turn(store, row, Variable("conversation", name, "v", f'"{owner}"'), person)
                if memory is not None and agent == AGENT:
                    await memory.aadd_information(name, f"a secret of {owner}")
            await turn(store, row, answer=f'["to {owner}"]')
            await received(store, owner, json.dumps({"from": owner}))
    await database.close()


def is_about(row: dict[str, Any], agent: str, owner: str, theirs: set[int]) -> bool:
    if row.get("agent", agent) != agent:
        return False
    names = {f"{owner}_{agent}", f"of {owner.split('@')[0]} {owner[-1]}"}
    of_them = {row.get("owner"), row.get("sender"), row.get("holder")} & {owner, *names}
    return bool(of_them) or row.get("conversation") in theirs


async def test_forgetting_a_person_takes_all_rows_of_theirs_and_none_of_others_and_reports_how_many(database_url: str) -> None:
    await populated(database_url)
    before = everything(database_url)
    theirs = {row["id"] for row in before["conversations"] if (row["agent"], row["owner"]) == (AGENT, ALICE)}
    database = await opened(database_url)
    report = await AgentStore(database, AGENT).forget(ALICE)
    after = everything(database_url)
    mine = {table: [row for row in before[table] if is_about(row, AGENT, ALICE, theirs)] for table in before}
    for table in ("conversations", "interactions", "variables"):
        assert after[table] == [row for row in before[table] if row not in mine[table]]
    assert [row for row in after["inbox"] if row["key"] not in {row["key"] for row in mine["inbox"]}] == [
        row for row in before["inbox"] if row not in mine["inbox"]
    ]
    waiting = [row for row in mine["inbox"] if row["state"] != CLOSED]
    assert sorted(report.conversation_ids) == sorted(row["conversation_id"] for row in mine["conversations"])
    assert (report.interactions, report.variables, report.requests) == (7, 3, 2)
    assert (len(mine["interactions"]), len(mine["variables"]), len(waiting)) == (7, 3, 2)
    assert await AgentStore(database, AGENT).forget(ALICE) == replace(
        report, conversation_ids=(), interactions=0, variables=0, requests=0
    )
    await database.close()


async def test_of_a_forgotten_person_not_even_the_name_is_in_the_file(database_url: str) -> None:
    database = await opened(database_url)
    store = AgentStore(database, AGENT)
    for owner in (ALICE, BOB):
        row = await turn(store, conversation(store, f"{owner}_{AGENT}", owner), Variable("person", owner, "v", f'"{owner}"'))
        await turn(store, row, answer=f'["to {owner}"]')
        await received(store, owner, f'{{"from": "{owner}"}}')
    await store.forget(ALICE)
    for table, found in everything(database_url).items():
        assert ALICE not in str(found), table
    await database.close()
    if database_url.startswith(SQLITE):
        file = await asyncio.to_thread(Path(database_url.removeprefix(SQLITE)).read_bytes)
        assert ALICE.encode() not in file
        assert BOB.encode() in file


async def test_a_message_that_comes_again_after_forgetting_is_still_known(database_url: str) -> None:
    database = await opened(database_url)
    store = AgentStore(database, AGENT)
    await received(store, key=b"k" * 16)
    await store.forget(ALICE)
    assert await store.inbox.pending() == []
    assert not await store.inbox.receive(b"k" * 16, ALICE, "{}", NOW)[1]
    await database.close()


async def test_deleting_a_conversation_leaves_the_persons_others_and_every_other_agents(database_url: str) -> None:
    await populated(database_url)
    database = await opened(database_url)
    store = AgentStore(database, AGENT)
    before = everything(database_url)
    row = (await store.find_conversations([f"{ALICE}_{AGENT}"]))[f"{ALICE}_{AGENT}"]
    report = await store.delete_conversation(row)
    assert (report.conversation_ids, report.interactions, report.variables, report.requests) == (
        (row.conversation_id,),
        3,
        1,
        0,
    )
    after = everything(database_url)
    assert {table: len(before[table]) - len(after[table]) for table in before} == {
        "conversations": 1,
        "interactions": 3,
        "variables": 1,
        "inbox": 0,
    }
    assert await store.variables("person", ALICE) != {}
    await database.close()


# Forgetting, with the interaction memory


def remembered(memory: AgentInteractionMemory) -> str:
    """The file as it is, and whatever lies beside it."""
    return "".join(file.read_text() for file in sorted(memory.path.parent.iterdir()))


@pytest.mark.parametrize("cleared", ["conversation", "memory", "nothing"])
async def test_nothing_of_a_forgotten_person_remains_in_the_memory_file(
    database_url: str, memory: AgentInteractionMemory, cleared: str
) -> None:
    async with Talk(database_url, Remembers(memory)) as talk:
        for sender in (ALICE, BOB):
            for thread in (None, "t", "u"):
                await talk.say("x", thread, sender)
    database = await opened(database_url)
    store = AgentStore(database, AGENT)
    row = (await store.find_conversations(["t"]))["t"]
    assert row.owner == ALICE
    if cleared == "conversation":
        gone = await forget_conversation(store, memory, row)
        assert gone == Forgotten(("t",), 1, 1, 0, 1)
    elif cleared == "memory":
        assert await memory.aclear_conversation("t")
    await database.close()
    async with Talk(database_url, Remembers(memory)) as talk:
        # Somebody else takes the thread that is free now, so that Alice gets another one.
        for sender in (CAROL, ALICE):
            await talk.say("y", "t", sender)
    database = await opened(database_url)
    store = AgentStore(database, AGENT)
    gone = await forget_person(store, memory, f"{ALICE}/phone")
    assert (len(gone.conversation_ids), gone.memories) == (3, 3)
    assert ALICE not in remembered(memory)
    assert all(remembered(memory).count(f"a secret of {other}") for other in (BOB, CAROL))
    assert (await forget_person(store, memory, ALICE)).is_nothing
    assert set(await memory.aget_all_conversations()) == {row.conversation_id for row in await store.conversations()}
    await database.close()


@pytest.mark.parametrize("thread", [None, "t", f"x_{AGENT}"])
async def test_what_an_unfinished_turn_remembered_is_forgotten_too(
    database_url: str, memory: AgentInteractionMemory, thread: str | None
) -> None:
    agent = Remembers(memory, asyncio.Event())
    async with Talk(database_url, agent) as talk:
        talk.begin("x", thread)
        await agent.at_work.wait()
    assert ALICE in remembered(memory)
    database = await opened(database_url)
    gone = await forget_person(AgentStore(database, AGENT), memory, ALICE)
    await database.close()
    assert (gone.requests, gone.memories) == (1, 1)
    assert ALICE not in remembered(memory)


async def test_forgetting_somebodys_unfinished_turn_takes_no_memory_of_who_owns_the_thread(
    database_url: str, memory: AgentInteractionMemory
) -> None:
    async with Talk(database_url, Remembers(memory)) as talk:
        await talk.say("x", "t", BOB)
    agent = Remembers(memory, asyncio.Event())
    async with Talk(database_url, agent) as talk:
        talk.begin("x", "t", ALICE)
        await agent.at_work.wait()
    database = await opened(database_url)
    gone = await forget_person(AgentStore(database, AGENT), memory, ALICE)
    await database.close()
    assert gone.memories == 1
    assert ALICE not in remembered(memory)
    assert await memory.aget_information("t") == [f"a secret of {BOB}"]


async def test_what_an_interrupted_turn_remembered_stays_its_owners(database_url: str, memory: AgentInteractionMemory) -> None:
    agent = Remembers(memory, asyncio.Event())
    policy = Policy(on_restart="report")
    async with Talk(database_url, agent, policy) as talk:
        talk.begin("x", "t", ALICE)
        await agent.at_work.wait()
    async with Talk(database_url, Remembers(memory), policy) as talk:
        await talk.say("y", "t", BOB)
    assert BOB not in str(await memory.aget_information("t"))
    assert await memory.aget_information(f"t_{BOB}") == [f"a secret of {BOB}"]
    database = await opened(database_url)
    await forget_person(AgentStore(database, AGENT), memory, ALICE)
    await database.close()
    assert ALICE not in remembered(memory)


async def test_forgetting_everybody_leaves_nothing_of_an_agent_and_everything_of_the_others(
    database_url: str, memory: AgentInteractionMemory
) -> None:
    await populated(database_url, memory)
    database = await opened(database_url)
    store = AgentStore(database, AGENT)
    before = everything(database_url)
    # Whose only conversation was cleared may still have variables; a request that waits may be somebody's first.
    row = await turn(store, conversation(store, "carols", CAROL), Variable("person", CAROL, "v", '"a secret of carol"'))
    await forget_conversation(store, memory, row)
    await received(store, "dave@localhost", '{"from": "dave@localhost"}')
    gone = await forget_everybody(store, memory)
    after = everything(database_url)
    for table in ("conversations", "variables"):
        assert after[table] == [row for row in before[table] if row["agent"] == OTHER_AGENT]
    assert all(row["state"] == CLOSED and row["request"] is None for row in after["inbox"] if row["agent"] == AGENT)
    assert (len(gone.conversation_ids), gone.interactions, gone.variables, gone.requests, gone.memories) == (8, 28, 13, 9, 8)
    assert "secret" not in remembered(memory)
    assert (await forget_everybody(store, memory)).is_nothing
    await database.close()


def test_reports_add_up() -> None:
    one = Forgotten(("a",), 1, 2, 3, 4)
    assert not one.is_nothing
    assert Forgotten().is_nothing
    assert UUID(str(session_id(AGENT, ALICE, "t"))).version == 5
