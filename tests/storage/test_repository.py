"""The stored sessions of an agent: conversations with their owners, variables in their scopes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from spade_coreason import AgentDefinition, AgentRequest, Identity, ResponseHandler, Session, StoreError
from spade_coreason.contracts import ConversationState, MemoryConfig
from spade_coreason.domain.conversation import ConversationStatus, new_status
from spade_coreason.memory import ExtractiveSummariser, HistoryWindows, estimate_tokens
from spade_coreason.memory.conversation import Variables
from spade_coreason.memory.session import SessionChanges, TurnSession
from spade_coreason.runtime.steps.step_journal import StepJournal
from spade_coreason.storage import ConversationRows, count_stored
from spade_coreason.storage.backends.database import Database
from spade_coreason.storage.records import StoredConversation, Variable
from spade_coreason.storage.repository import AgentRepository
from tests.support.databases import open_without_sync
from tests.support.records import AGENT, ALICE, BOB, MALICE, NOW, OTHER_AGENT, new_conversation, open_repository, store_turn
from tests.support.runner import RunnerHarness
from tests.support.session_tools import StepsOnly
from tests.support.wait import eventually

# Conversations and their owners


async def test_a_conversation_comes_back_as_it_was_stored(database_url: str) -> None:
    status = ConversationStatus(
        ConversationState.MAX_INTERACTIONS_REACHED, 7, NOW, NOW + timedelta(microseconds=1), 2, NOW + timedelta(1)
    )
    database = await open_without_sync(database_url)
    repository = await open_repository(database, AGENT)
    row = new_conversation(repository, "t <é> '", status=status, window_start=5, turns=9)
    await repository.save_conversation(row)
    await database.close()
    database = await open_without_sync(database_url)
    repository = await open_repository(database, AGENT)
    assert await repository.find_conversations([row.conversation_id, "another"]) == {row.conversation_id: row}
    assert row.contract_record.dump()["interaction_count"] == 7
    assert repository.database.row_ids.next() > row.id
    await database.close()


async def test_a_conversation_id_of_another_owner_cannot_be_stored(repository: AgentRepository, database: Database) -> None:
    row = new_conversation(repository, "t", ALICE)
    await repository.save_conversation(row)
    with pytest.raises(StoreError, match=r"(?i)unique"):
        await repository.save_conversation(new_conversation(repository, "t", BOB))
    assert await repository.find_conversations(["t"]) == {"t": row}
    # With another agent it is another conversation.
    elsewhere = await open_repository(database, OTHER_AGENT)
    await elsewhere.save_conversation(new_conversation(elsewhere, "t", BOB))
    assert (await repository.find_conversations(["t"]))["t"].owner == ALICE
    assert (await elsewhere.find_conversations(["t"]))["t"].owner == BOB


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({}, ["c", "b", "a"]),
        ({"person": ALICE}, ["c", "a"]),
        ({"person": MALICE}, []),
        ({"state": "completed"}, ["b"]),
        ({"person": ALICE, "state": "completed"}, []),
        ({"limit": 2}, ["c", "b"]),
        ({"beyond": NOW + timedelta(hours=2)}, ["b", "a"]),
    ],
)
async def test_conversations_are_listed_the_newest_first(
    repository: AgentRepository, database: Database, arguments: dict[str, Any], names: list[str]
) -> None:
    for hours, (name, owner) in enumerate([("a", ALICE), ("b", BOB), ("c", ALICE)]):
        state = ConversationState.COMPLETED if name == "b" else ConversationState.ACTIVE
        await repository.save_conversation(
            new_conversation(repository, name, owner, status=ConversationStatus(state, 1, NOW, NOW + timedelta(hours=hours)))
        )
    elsewhere = await open_repository(database, OTHER_AGENT)
    await elsewhere.save_conversation(new_conversation(elsewhere, "d"))
    assert [row.conversation_id for row in await ConversationRows(database, AGENT).load_page(**arguments)] == names
    assert len(await ConversationRows(database).load_page()) == 4


async def test_only_the_agents_own_active_conversations_are_active(repository: AgentRepository, database: Database) -> None:
    elsewhere = await open_repository(database, OTHER_AGENT)
    await elsewhere.save_conversation(new_conversation(elsewhere, "elsewhere"))
    ended = ConversationStatus(ConversationState.COMPLETED, 1, NOW, NOW)
    await repository.save_conversation(new_conversation(repository, "ended", status=ended))
    assert (await repository.load_agent()).active == {}
    later = NOW + timedelta(seconds=1)
    await repository.save_conversation(
        new_conversation(repository, "later", status=ConversationStatus(ConversationState.ACTIVE, 1, NOW, later))
    )
    assert (await repository.load_agent()).active == {"later": later}
    counts = {(AGENT, "active"): 1, (AGENT, "completed"): 1, (OTHER_AGENT, "active"): 1}
    assert (await count_stored(database))["conversations"] == counts


# Variables

HOLDERS = [
    (agent, scope, holder) for agent in (AGENT, OTHER_AGENT) for scope in ("conversation", "person") for holder in (ALICE, BOB)
]


@pytest.mark.parametrize("written", HOLDERS)
async def test_a_variable_is_of_one_agent_scope_and_holder(database: Database, written: tuple[str, str, str]) -> None:
    """A conversation may have a JID as its name: the owner of such a thread reads no variable of that person."""
    agent, scope, holder = written
    repository = await open_repository(database, agent)
    row = await store_turn(repository, new_conversation(repository), Variable(scope, holder, "v", "1"))
    await store_turn(repository, row, Variable(scope, holder, "v", "2"), Variable(scope, holder, "w\t", "3"))
    for where in HOLDERS:
        found = await (await open_repository(database, where[0])).load_variables(*where[1:])
        assert found == ({"v": "2", "w\t": "3"} if where == written else {})


def make_session(
    repository: AgentRepository, owner: str, name: str, values: dict[str, str], of_person: dict[str, str]
) -> tuple[TurnSession, SessionChanges]:
    row = StoredConversation(1, name, owner, name, new_status(NOW), 0)
    identity = Identity(id=owner, name=owner, role="user")
    shared = Variables("shared", repository.agent, {})
    changes = SessionChanges(Variables("conversation", name, values), Variables("person", owner, of_person), shared)
    windows = HistoryWindows(repository, MemoryConfig(), estimate_tokens, ExtractiveSummariser())
    journal = StepJournal(repository.inbox, 0, uuid4())
    return TurnSession(row, (), identity, repository, changes, windows, StepsOnly(journal)), changes


async def load_session(repository: AgentRepository, owner: str, name: str) -> tuple[TurnSession, SessionChanges]:
    return make_session(
        repository,
        owner,
        name,
        await repository.load_variables("conversation", name),
        await repository.load_variables("person", owner),
    )


@pytest.mark.parametrize(
    ("scope", "same", "another_thread", "another_person"),
    [("conversation", 1, None, None), ("person", 1, 1, None), (None, 1, 1, None)],
)
async def test_a_session_variable_is_read_in_its_scope_and_by_no_other_owner(
    repository: AgentRepository, scope: Any, same: Any, another_thread: Any, another_person: Any
) -> None:
    session, changes = await load_session(repository, ALICE, "t")
    await session.store("v", 1, scope=scope)
    before, _ = await load_session(repository, ALICE, "t")
    assert await before.get("v") is None  # it lasts from the end of the turn
    await store_turn(repository, new_conversation(repository), *changes.pending_variables())
    for owner, name, value in ((ALICE, "t", same), (ALICE, "u", another_thread), (BOB, f"t_{BOB}", another_person)):
        later, _ = await load_session(repository, owner, name)
        assert await later.get("v") == value


circle: list[Any] = []
circle.append(circle)
NOT_JSON: dict[str, Any] = {
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
NOT_JSON["something too deep"] = deep


@pytest.mark.parametrize("scope", ["conversation", "person", None])
async def test_a_value_that_is_no_json_is_an_error_that_names_its_key_and_changes_nothing(
    repository: AgentRepository, scope: Any
) -> None:
    for what, value in NOT_JSON.items():
        before, changes = make_session(repository, ALICE, "t", {"the key": '"old"'}, {"the key": '"older"'})
        await before.store("another", 1)
        written = changes.pending_variables()
        with pytest.raises(ValueError, match=r'variable "the key": .*only JSON values can be stored'):
            await before.store("the key", value, scope=scope)
        assert changes.pending_variables() == written, what
        assert await before.get("the key") == "old", what
        assert {row.name for row in written} == {"another"}


async def test_a_key_that_cannot_be_stored_is_named(repository: AgentRepository) -> None:
    session, changes = make_session(repository, ALICE, "t", {}, {})
    with pytest.raises(ValueError, match="only JSON values can be stored"):
        await session.store("\ud800", 1)
    with pytest.raises(ValueError, match=r"'a\\x00b'"):  # for which PostgreSQL has no room
        await session.store("a\0b", 1)
    assert changes.pending_variables() == []


class ConcurrentAgent:
    """Two turns of a person in two conversations: both read first, then both store in the order that the test gives."""

    def __init__(self) -> None:
        self.manifest = AgentDefinition.simple("meeting")
        self.go_on = {"one": asyncio.Event(), "two": asyncio.Event()}
        self.waiting = 0
        self.found: dict[str, Any] = {}

    async def assist(self, request: AgentRequest, session: Session, response: ResponseHandler) -> None:
        name = request.payload["query"]
        if name == "look":
            self.found = {key: await session.get(key) for key in ("one", "two", "both")}
            return
        assert await session.get("both") is None
        self.waiting += 1
        await self.go_on[name].wait()
        await session.store(name, {"of": name}, scope="person")
        await session.store("both", name, scope="person")


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one"), None])
async def test_two_turns_at_once_lose_none_of_each_others_variables(database_url: str, order: tuple[str, str] | None) -> None:
    agent = ConcurrentAgent()
    async with RunnerHarness(database_url, agent) as harness:
        for name in agent.go_on:
            harness.receive(name, thread=name)
        await eventually(lambda: agent.waiting == 2)
        for name in order or agent.go_on:
            agent.go_on[name].set()
            if order:  # else both are stored in one transaction
                await harness.runner.mailboxes.wait_until_idle(ALICE, name)
        await harness.runner.mailboxes.wait_until_idle()
        await harness.receive_and_wait("look", "three")
        in_memory = agent.found
    async with RunnerHarness(database_url, agent) as harness:
        await harness.receive_and_wait("look", "four")
    assert agent.found == in_memory  # the last one counts, in memory as in the database
    assert (agent.found["one"], agent.found["two"]) == ({"of": "one"}, {"of": "two"})
    assert agent.found["both"] == (order[1] if order else "two")
