"""What forgetting leaves: nothing of who is forgotten, everything of others, in the database and in the interaction memory."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from spade_coreason import AgentInteractionMemory
from spade_coreason.domain.identifiers import candidate_conversation_ids, choose_conversation_id, derive_session_id
from spade_coreason.domain.value import replace
from spade_coreason.memory.erasure import ErasureReport, erase_conversation, erase_everyone, erase_person
from spade_coreason.runtime.policy import Policy
from spade_coreason.storage.records import StoredConversation, Variable
from spade_coreason.storage.repository import AgentRepository
from tests.support.databases import CLOSED, SQLITE, open_without_sync, read_all_tables
from tests.support.records import (
    AGENT,
    ALICE,
    ALICE_ELSEWHERE,
    BOB,
    CAROL,
    MALICE,
    NOW,
    OTHER_AGENT,
    new_conversation,
    receive_request,
    store_turn,
)
from tests.support.runner import Observation, RememberingAgent, RunnerHarness


@pytest.fixture
def memory(tmp_path: Path) -> AgentInteractionMemory:
    return AgentInteractionMemory(AGENT, tmp_path / "memory")


async def populated(database_url: str, memory: AgentInteractionMemory | None = None) -> None:
    """Five people, two agents; each person has two conversations, and a request in each state with each agent."""
    database = await open_without_sync(database_url)
    for agent in (AGENT, OTHER_AGENT):
        store = AgentRepository(database, agent)
        for owner in (ALICE, BOB, MALICE, ALICE_ELSEWHERE):
            person = Variable("person", owner, "v", json.dumps(f"a secret of {owner}"))
            for name in (f"{owner}_{agent}", f"of {owner.split('@')[0]} {owner[-1]}"):
                row = new_conversation(store, name, owner)
                for _ in range(3):
                    row = await store_turn(store, row, Variable("conversation", name, "v", f'"{owner}"'), person)
                if memory is not None and agent == AGENT:
                    await memory.aadd_information(name, f"a secret of {owner}")
            await store_turn(store, row, answer=f'["to {owner}"]')
            await receive_request(store, owner, json.dumps({"from": owner}))
    await database.close()


def is_about(row: dict[str, Any], agent: str, owner: str, theirs: set[int]) -> bool:
    if row.get("agent", agent) != agent:
        return False
    names = {f"{owner}_{agent}", f"of {owner.split('@')[0]} {owner[-1]}"}
    of_them = {row.get("owner"), row.get("sender"), row.get("holder")} & {owner, *names}
    return bool(of_them) or row.get("conversation") in theirs


async def test_forgetting_a_person_takes_all_rows_of_theirs_and_none_of_others_and_reports_how_many(database_url: str) -> None:
    await populated(database_url)
    before = read_all_tables(database_url)
    theirs = {row["id"] for row in before["conversations"] if (row["agent"], row["owner"]) == (AGENT, ALICE)}
    database = await open_without_sync(database_url)
    report = await AgentRepository(database, AGENT).erase_person(ALICE)
    after = read_all_tables(database_url)
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
    assert await AgentRepository(database, AGENT).erase_person(ALICE) == replace(
        report, conversation_ids=(), interactions=0, variables=0, requests=0
    )
    await database.close()


async def test_of_a_forgotten_person_not_even_the_name_is_in_the_file(database_url: str) -> None:
    database = await open_without_sync(database_url)
    store = AgentRepository(database, AGENT)
    for owner in (ALICE, BOB):
        row = await store_turn(
            store, new_conversation(store, f"{owner}_{AGENT}", owner), Variable("person", owner, "v", f'"{owner}"')
        )
        await store_turn(store, row, answer=f'["to {owner}"]')
        await receive_request(store, owner, f'{{"from": "{owner}"}}')
    await store.erase_person(ALICE)
    for table, found in read_all_tables(database_url).items():
        assert ALICE not in str(found), table
    await database.close()
    if database_url.startswith(SQLITE):
        file = await asyncio.to_thread(Path(database_url.removeprefix(SQLITE)).read_bytes)
        assert ALICE.encode() not in file
        assert BOB.encode() in file


async def test_of_a_forgotten_stranger_nothing_is_left(database_url: str) -> None:
    database = await open_without_sync(database_url)
    store = AgentRepository(database, AGENT)
    for stranger in (ALICE, BOB):
        await store.save_refusal(stranger)
    assert sorted(await store.list_refused_people()) == sorted(await store.list_people()) == sorted([ALICE, BOB])
    await store.erase_person(ALICE)
    await store.delete_refusal(BOB)
    assert await store.list_refused_people() == await store.list_people() == []
    await database.close()


async def test_a_message_that_comes_again_after_forgetting_is_still_known(database_url: str) -> None:
    database = await open_without_sync(database_url)
    store = AgentRepository(database, AGENT)
    await receive_request(store, key=b"k" * 16)
    await store.erase_person(ALICE)
    assert await store.inbox.load_pending() == []
    assert not await store.inbox.receive(b"k" * 16, ALICE, "{}", NOW)[1]
    await database.close()


async def test_deleting_a_conversation_leaves_the_persons_others_and_every_other_agents(database_url: str) -> None:
    await populated(database_url)
    database = await open_without_sync(database_url)
    store = AgentRepository(database, AGENT)
    before = read_all_tables(database_url)
    row = (await store.find_conversations([f"{ALICE}_{AGENT}"]))[f"{ALICE}_{AGENT}"]
    report = await store.delete_conversation(row)
    assert (report.conversation_ids, report.interactions, report.variables, report.requests) == (
        (row.conversation_id,),
        3,
        1,
        0,
    )
    after = read_all_tables(database_url)
    assert {table: len(before[table]) - len(after[table]) for table in before} == {
        "conversations": 1,
        "interactions": 3,
        "variables": 1,
        "inbox": 0,
    }
    assert await store.load_variables("person", ALICE) != {}
    await database.close()


async def taken(store: AgentRepository, thread: str | None, owner: str) -> StoredConversation:
    """The conversation that the owner gets on a thread, as the runner gives it."""
    possible = candidate_conversation_ids(thread, owner, store.agent)
    found = await store.find_conversations(possible)
    name = choose_conversation_id(possible, owner, {name: row.owner for name, row in found.items()})
    assert name is not None
    row = found.get(name) or new_conversation(store, name, owner)
    return await store_turn(store, row, Variable("conversation", name, "v", f'"{owner}"'))


@pytest.mark.parametrize("cleared", ["conversation", "person"])
async def test_after_a_conversation_was_cleared_everybody_else_keeps_theirs(
    store: AgentRepository, memory: AgentInteractionMemory, cleared: str
) -> None:
    hers, his = await taken(store, "t", ALICE), await taken(store, "t", BOB)
    assert (hers.conversation_id, his.conversation_id) == ("t", f"t_{BOB}")
    if cleared == "conversation":
        await erase_conversation(store, memory, hers)
    else:
        await erase_person(store, memory, ALICE)
    again = await taken(store, "t", BOB)
    assert (again.conversation_id, again.id, again.turns) == (f"t_{BOB}", his.id, 2)
    carols = await taken(store, "t", CAROL)
    assert (carols.conversation_id, carols.turns) == ("t", 1)
    assert await store.load_variables("conversation", "t") == {"v": f'"{CAROL}"'}
    new = await taken(store, "t", ALICE)
    assert (new.conversation_id, new.turns) == (f"t_{ALICE}", 1)
    assert len(await store.load_history(new.id, 10)) == 1


# With the interaction memory


def remembered(memory: AgentInteractionMemory) -> str:
    """The file as it is, and whatever lies beside it."""
    return "".join(file.read_text() for file in sorted(memory.path.parent.iterdir()))


@pytest.mark.parametrize(
    ("cleared", "alice_sees"),
    [("conversation", Observation()), ("memory", Observation(1, 1)), ("nothing", Observation(1, 1, (f"a secret of {ALICE}",)))],
)
async def test_nothing_of_a_forgotten_person_remains_in_the_memory_file(
    database_url: str, memory: AgentInteractionMemory, cleared: str, alice_sees: Observation
) -> None:
    async with RunnerHarness(database_url, RememberingAgent(memory)) as talk:
        for sender in (ALICE, BOB):
            for thread in (None, "t", "u"):
                await talk.say("x", thread, sender)
    database = await open_without_sync(database_url)
    store = AgentRepository(database, AGENT)
    row = (await store.find_conversations(["t"]))["t"]
    assert row.owner == ALICE
    if cleared == "conversation":
        gone = await erase_conversation(store, memory, row)
        assert gone == ErasureReport(("t",), 1, 1, 0, 1)
    elif cleared == "memory":
        assert await memory.aclear_conversation("t")
    await database.close()
    agent = RememberingAgent(memory)
    async with RunnerHarness(database_url, agent) as talk:
        # Somebody else takes the thread that is free now, so that Alice gets another one.
        for sender in (CAROL, ALICE):
            await talk.say("y", "t", sender)
    assert agent.seen == [Observation(), alice_sees]
    database = await open_without_sync(database_url)
    store = AgentRepository(database, AGENT)
    gone = await erase_person(store, memory, f"{ALICE}/phone")
    assert (len(gone.conversation_ids), gone.memories) == (3, 3)
    assert ALICE not in remembered(memory)
    assert all(remembered(memory).count(f"a secret of {other}") for other in (BOB, CAROL))
    assert (await erase_person(store, memory, ALICE)).is_empty
    assert set(await memory.aget_all_conversations()) == {row.conversation_id for row in await store.list_conversations()}
    await database.close()


@pytest.mark.parametrize("thread", [None, "t", f"x_{AGENT}"])
async def test_what_an_unfinished_turn_remembered_is_forgotten_too(
    database_url: str, memory: AgentInteractionMemory, thread: str | None
) -> None:
    agent = RememberingAgent(memory, asyncio.Event())
    async with RunnerHarness(database_url, agent) as talk:
        talk.begin("x", thread)
        await agent.at_work.wait()
    assert ALICE in remembered(memory)
    database = await open_without_sync(database_url)
    gone = await erase_person(AgentRepository(database, AGENT), memory, ALICE)
    await database.close()
    assert (gone.requests, gone.memories) == (1, 1)
    assert ALICE not in remembered(memory)


async def test_forgetting_somebodys_unfinished_turn_takes_no_memory_of_who_owns_the_thread(
    database_url: str, memory: AgentInteractionMemory
) -> None:
    async with RunnerHarness(database_url, RememberingAgent(memory)) as talk:
        await talk.say("x", "t", BOB)
    agent = RememberingAgent(memory, asyncio.Event())
    async with RunnerHarness(database_url, agent) as talk:
        talk.begin("x", "t", ALICE)
        await agent.at_work.wait()
    database = await open_without_sync(database_url)
    gone = await erase_person(AgentRepository(database, AGENT), memory, ALICE)
    await database.close()
    assert gone.memories == 1
    assert ALICE not in remembered(memory)
    assert await memory.aget_information("t") == [f"a secret of {BOB}"]


async def test_what_an_interrupted_turn_remembered_stays_its_owners(database_url: str, memory: AgentInteractionMemory) -> None:
    agent = RememberingAgent(memory, asyncio.Event())
    policy = Policy(on_restart="report")
    async with RunnerHarness(database_url, agent, policy) as talk:
        talk.begin("x", "t", ALICE)
        await agent.at_work.wait()
    agent = RememberingAgent(memory)
    async with RunnerHarness(database_url, agent, policy) as talk:
        await talk.say("y", "t", BOB)
    assert agent.seen == [Observation()]
    assert BOB not in str(await memory.aget_information("t"))
    assert await memory.aget_information(f"t_{BOB}") == [f"a secret of {BOB}"]
    database = await open_without_sync(database_url)
    await erase_person(AgentRepository(database, AGENT), memory, ALICE)
    await database.close()
    assert ALICE not in remembered(memory)


async def test_forgetting_everybody_leaves_nothing_of_an_agent_and_everything_of_the_others(
    database_url: str, memory: AgentInteractionMemory
) -> None:
    await populated(database_url, memory)
    database = await open_without_sync(database_url)
    store = AgentRepository(database, AGENT)
    before = read_all_tables(database_url)
    # Whose only conversation was cleared may still have variables; a request that waits may be somebody's first.
    row = await store_turn(
        store, new_conversation(store, "carols", CAROL), Variable("person", CAROL, "v", '"a secret of carol"')
    )
    await erase_conversation(store, memory, row)
    await receive_request(store, "dave@localhost", '{"from": "dave@localhost"}')
    gone = await erase_everyone(store, memory)
    after = read_all_tables(database_url)
    for table in ("conversations", "variables"):
        assert after[table] == [row for row in before[table] if row["agent"] == OTHER_AGENT]
    assert all(row["state"] == CLOSED and row["request"] is None for row in after["inbox"] if row["agent"] == AGENT)
    assert (len(gone.conversation_ids), gone.interactions, gone.variables, gone.requests, gone.memories) == (8, 28, 13, 9, 8)
    assert "secret" not in remembered(memory)
    assert (await erase_everyone(store, memory)).is_empty
    await database.close()


def test_reports_add_up() -> None:
    one = ErasureReport(("a",), 1, 2, 3, 4)
    assert not one.is_empty
    assert ErasureReport().is_empty
    assert UUID(str(derive_session_id(AGENT, ALICE, "t"))).version == 5
