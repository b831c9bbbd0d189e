"""Erasure: it leaves nothing of the erased person and everything of others, in the database and the interaction memory."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from spade_coreason import AgentInteractionMemory
from spade_coreason.app.stored_host import StoredHost
from spade_coreason.config.settings import Settings, StorageSettings
from spade_coreason.domain.identifiers import candidate_conversation_ids, choose_conversation_id, derive_session_id
from spade_coreason.memory import import_memory_files
from spade_coreason.memory.erasure import erase_conversation, erase_person
from spade_coreason.operations.definition import Actor, Call, CallerKind
from spade_coreason.operations.sessions import ClearSessions, clear_sessions
from spade_coreason.storage.records import ErasureReport, StoredConversation, Variable
from spade_coreason.storage.repository import AgentRepository
from spade_coreason.testing import Policy, Rules
from tests.support.databases import (
    CLOSED,
    RECEIVED,
    SAME_STANZA,
    SQLITE,
    execute,
    on_both_databases,
    open_without_sync,
    read_all_tables,
)
from tests.support.memories import memory_over
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
    open_repository,
    receive_request,
    store_turn,
)
from tests.support.runner import Observation, RememberingAgent, RunnerHarness


@pytest.fixture
def memory(tmp_path: Path) -> AgentInteractionMemory:
    return AgentInteractionMemory(AGENT, tmp_path / "memory")


async def populate(database_url: str, memory: AgentInteractionMemory | None = None) -> None:
    """Store data of several people with two agents: two conversations each, and a request in each state."""
    database = await open_without_sync(database_url)
    for agent in (AGENT, OTHER_AGENT):
        repository = await open_repository(database, agent)
        for owner in (ALICE, BOB, MALICE, ALICE_ELSEWHERE):
            person = Variable("person", owner, "v", json.dumps(f"a secret of {owner}"))
            for name in (f"{owner}_{agent}", f"of {owner.split('@')[0]} {owner[-1]}"):
                row = new_conversation(repository, name, owner)
                for _ in range(3):
                    row = await store_turn(repository, row, Variable("conversation", name, "v", f'"{owner}"'), person)
                if memory is not None and agent == AGENT:
                    await memory.aadd_information(name, f"a secret of {owner}")
            await store_turn(repository, row, answer=f'["to {owner}"]')
            await receive_request(repository, owner, json.dumps({"from": owner}))
    await database.close()


def is_about(row: dict[str, Any], agent: str, owner: str, theirs: set[int]) -> bool:
    if row.get("agent", agent) != agent:
        return False
    names = {f"{owner}_{agent}", f"of {owner.split('@')[0]} {owner[-1]}"}
    names_found = {row.get("owner"), row.get("sender"), row.get("holder")} & {owner, *names}
    return bool(names_found) or row.get("conversation") in theirs


@on_both_databases
async def test_erasing_a_person_deletes_all_their_rows_and_no_others_and_counts_them(database_url: str) -> None:
    await populate(database_url)
    before = read_all_tables(database_url)
    theirs = {row["id"] for row in before["conversations"] if (row["agent"], row["owner"]) == (AGENT, ALICE)}
    database = await open_without_sync(database_url)
    report = await (await open_repository(database, AGENT)).erase_person(ALICE)
    after = read_all_tables(database_url)
    alices_rows = {table: [row for row in before[table] if is_about(row, AGENT, ALICE, theirs)] for table in before}
    for table in ("conversations", "interactions", "variables"):
        assert after[table] == [row for row in before[table] if row not in alices_rows[table]]
    assert [row for row in after["inbox"] if row["key"] not in {row["key"] for row in alices_rows["inbox"]}] == [
        row for row in before["inbox"] if row not in alices_rows["inbox"]
    ]
    waiting = [row for row in alices_rows["inbox"] if row["state"] == RECEIVED]  # the other one is answered
    assert sorted(report.conversation_ids) == sorted(row["conversation_id"] for row in alices_rows["conversations"])
    assert (report.interactions, report.variables, report.requests) == (7, 3, 1)
    assert (len(alices_rows["interactions"]), len(alices_rows["variables"]), len(waiting)) == (7, 3, 1)
    assert await (await open_repository(database, AGENT)).erase_person(ALICE) == replace(
        report, conversation_ids=(), interactions=0, variables=0, requests=0
    )
    await database.close()


async def test_not_even_the_name_of_an_erased_person_is_in_the_file(database_url: str) -> None:
    database = await open_without_sync(database_url)
    repository = await open_repository(database, AGENT)
    for owner in (ALICE, BOB):
        row = await store_turn(
            repository, new_conversation(repository, f"{owner}_{AGENT}", owner), Variable("person", owner, "v", f'"{owner}"')
        )
        await store_turn(repository, row, answer=f'["to {owner}"]')
        await receive_request(repository, owner, f'{{"from": "{owner}"}}')
    await repository.erase_person(ALICE)
    for table, found in read_all_tables(database_url).items():
        assert ALICE not in str(found), table
    await database.close()
    if database_url.startswith(SQLITE):
        file = await asyncio.to_thread(Path(database_url.removeprefix(SQLITE)).read_bytes)
        assert ALICE.encode() not in file
        assert BOB.encode() in file


async def test_nothing_is_left_of_an_erased_stranger(database_url: str) -> None:
    database = await open_without_sync(database_url)
    repository = await open_repository(database, AGENT)
    for stranger in (ALICE, BOB):
        await repository.save_refusal(stranger)
    assert (await repository.load_agent()).refused_people == [ALICE, BOB]
    assert sorted(await repository.list_people()) == sorted([ALICE, BOB])
    await repository.erase_person(ALICE)
    await repository.delete_refusal(BOB)
    assert (await repository.load_agent()).refused_people == await repository.list_people() == []
    await database.close()


async def test_a_message_that_comes_again_after_forgetting_is_still_known(database_url: str) -> None:
    database = await open_without_sync(database_url)
    repository = await open_repository(database, AGENT)
    await receive_request(repository, key=b"k" * 16)
    await repository.erase_person(ALICE)
    assert await repository.inbox.load_pending() == []
    assert not await repository.inbox.receive(b"k" * 16, ALICE, "{}", NOW, evidence=SAME_STANZA)[1]
    await database.close()


@on_both_databases
async def test_deleting_a_conversation_leaves_the_others_of_the_person_and_of_other_agents(database_url: str) -> None:
    await populate(database_url)
    database = await open_without_sync(database_url)
    repository = await open_repository(database, AGENT)
    before = read_all_tables(database_url)
    row = (await repository.find_conversations([f"{ALICE}_{AGENT}"]))[f"{ALICE}_{AGENT}"]
    report = await repository.delete_conversation(row)
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
    assert await repository.load_variables("person", ALICE) != {}
    await database.close()


async def store_turn_on_thread(repository: AgentRepository, thread: str | None, owner: str) -> StoredConversation:
    """Store a turn in the conversation that the runner would give the owner on a thread."""
    possible = candidate_conversation_ids(thread, owner, repository.agent)
    found = await repository.find_conversations(possible)
    name = choose_conversation_id(possible, owner, {name: row.owner for name, row in found.items()})
    assert name is not None
    row = found.get(name) or new_conversation(repository, name, owner)
    return await store_turn(repository, row, Variable("conversation", name, "v", f'"{owner}"'))


@on_both_databases
@pytest.mark.parametrize("cleared", ["conversation", "person"])
async def test_after_an_erasure_everyone_else_keeps_their_conversation(
    repository: AgentRepository, memory: AgentInteractionMemory, cleared: str
) -> None:
    hers, his = await store_turn_on_thread(repository, "t", ALICE), await store_turn_on_thread(repository, "t", BOB)
    assert (hers.conversation_id, his.conversation_id) == ("t", f"t_{BOB}")
    if cleared == "conversation":
        await erase_conversation(repository, memory, hers)
    else:
        await erase_person(repository, memory, ALICE)
    again = await store_turn_on_thread(repository, "t", BOB)
    assert (again.conversation_id, again.id, again.turns) == (f"t_{BOB}", his.id, 2)
    carols_row = await store_turn_on_thread(repository, "t", CAROL)
    assert (carols_row.conversation_id, carols_row.turns) == ("t", 1)
    assert await repository.load_variables("conversation", "t") == {"v": f'"{CAROL}"'}
    new = await store_turn_on_thread(repository, "t", ALICE)
    assert (new.conversation_id, new.turns) == (f"t_{ALICE}", 1)
    assert len(await repository.turns.load_history(new.id, 10)) == 1


# With the interaction memory


def memory_files_text(memory: AgentInteractionMemory) -> str:
    """Return the contents of the memory file and of the files beside it."""
    return "".join(file.read_text() for file in sorted(memory.path.parent.iterdir()))


@pytest.mark.parametrize(
    ("cleared", "alice_sees"),
    [("conversation", Observation()), ("memory", Observation(1, 1)), ("nothing", Observation(1, 1, (f"a secret of {ALICE}",)))],
)
async def test_nothing_of_a_forgotten_person_remains_in_the_memory_file(
    database_url: str, memory: AgentInteractionMemory, cleared: str, alice_sees: Observation
) -> None:
    async with RunnerHarness(database_url, RememberingAgent(memory)) as harness:
        for sender in (ALICE, BOB):
            for thread in (None, "t", "u"):
                await harness.receive_and_wait("x", thread, sender)
    database = await open_without_sync(database_url)
    repository = await open_repository(database, AGENT)
    row = (await repository.find_conversations(["t"]))["t"]
    assert row.owner == ALICE
    if cleared == "conversation":
        report = await erase_conversation(repository, memory, row)
        assert report == ErasureReport(("t",), 1, 1, 0, 1)
    elif cleared == "memory":
        assert await memory.aclear_conversation("t")
    await database.close()
    agent = RememberingAgent(memory)
    async with RunnerHarness(database_url, agent) as harness:
        # Somebody else takes the thread that is free now, so that Alice gets another one.
        for sender in (CAROL, ALICE):
            await harness.receive_and_wait("y", "t", sender)
    assert agent.observations == [Observation(), alice_sees]
    database = await open_without_sync(database_url)
    repository = await open_repository(database, AGENT)
    report = await erase_person(repository, memory, f"{ALICE}/phone")
    assert (len(report.conversation_ids), report.memories) == (3, 3)
    assert ALICE not in memory_files_text(memory)
    assert all(memory_files_text(memory).count(f"a secret of {other}") for other in (BOB, CAROL))
    assert (await erase_person(repository, memory, ALICE)).is_empty
    assert set(await memory.aget_all_conversations()) == {row.conversation_id for row in await repository.list_conversations()}
    await database.close()


@pytest.mark.parametrize("thread", [None, "t", f"x_{AGENT}"])
async def test_information_of_an_unfinished_turn_is_erased_too(
    database_url: str, memory: AgentInteractionMemory, thread: str | None
) -> None:
    agent = RememberingAgent(memory, asyncio.Event())
    async with RunnerHarness(database_url, agent) as harness:
        harness.receive("x", thread)
        await agent.started.wait()
    assert ALICE in memory_files_text(memory)
    database = await open_without_sync(database_url)
    report = await erase_person(await open_repository(database, AGENT), memory, ALICE)
    await database.close()
    assert (report.requests, report.memories) == (1, 1)
    assert ALICE not in memory_files_text(memory)


async def test_erasing_an_unfinished_turn_leaves_the_memory_of_the_owner_of_the_thread(
    database_url: str, memory: AgentInteractionMemory
) -> None:
    async with RunnerHarness(database_url, RememberingAgent(memory)) as harness:
        await harness.receive_and_wait("x", "t", BOB)
    agent = RememberingAgent(memory, asyncio.Event())
    async with RunnerHarness(database_url, agent) as harness:
        harness.receive("x", "t", ALICE)
        await agent.started.wait()
    database = await open_without_sync(database_url)
    report = await erase_person(await open_repository(database, AGENT), memory, ALICE)
    await database.close()
    assert report.memories == 1
    assert ALICE not in memory_files_text(memory)
    assert await memory.aget_information("t") == [f"a secret of {BOB}"]


async def test_information_of_an_interrupted_turn_stays_with_its_owner(
    database_url: str, memory: AgentInteractionMemory
) -> None:
    agent = RememberingAgent(memory, asyncio.Event())
    policy = Policy(rules=Rules(on_restart="report"))
    async with RunnerHarness(database_url, agent, policy) as harness:
        harness.receive("x", "t", ALICE)
        await agent.started.wait()
    agent = RememberingAgent(memory)
    async with RunnerHarness(database_url, agent, policy) as harness:
        await harness.receive_and_wait("y", "t", BOB)
    assert agent.observations == [Observation()]
    assert BOB not in str(await memory.aget_information("t"))
    assert await memory.aget_information(f"t_{BOB}") == [f"a secret of {BOB}"]
    database = await open_without_sync(database_url)
    await erase_person(await open_repository(database, AGENT), memory, ALICE)
    await database.close()
    assert ALICE not in memory_files_text(memory)


@on_both_databases
async def test_erasing_everyone_leaves_nothing_of_an_agent_and_everything_of_the_others(
    database_url: str, memory: AgentInteractionMemory, tmp_path: Path
) -> None:
    await populate(database_url, memory)
    database = await open_without_sync(database_url)
    repository = await open_repository(database, AGENT)
    settings = Settings(data_dir=tmp_path, storage=StorageSettings(url=database_url, memory_dir=tmp_path / "memory"))
    call = Call(StoredHost(settings, [], database, None), Actor(CallerKind.MACHINE_USER, "user alice"))
    if database.backend.has_memories:
        files, memory = memory.path.parent, memory_over(database, AGENT)
        await import_memory_files(memory, files)
    everything = ClearSessions(agent=AGENT, everyone=True)
    before = read_all_tables(database_url)
    # Whose only conversation was cleared may still have variables; a request that waits may be somebody's first.
    row = await store_turn(
        repository, new_conversation(repository, "carols", CAROL), Variable("person", CAROL, "v", '"a secret of carol"')
    )
    await erase_conversation(repository, memory, row)
    await receive_request(repository, "dave@localhost", '{"from": "dave@localhost"}')
    [erasure] = (await clear_sessions(call, everything)).erasures
    report = erasure.report
    after = read_all_tables(database_url)
    for table in ("conversations", "variables"):
        assert after[table] == [row for row in before[table] if row["agent"] == OTHER_AGENT]
    assert all(row["state"] == CLOSED and row["request"] is None for row in after["inbox"] if row["agent"] == AGENT)
    assert (len(report.conversation_ids), report.interactions, report.variables, report.requests, report.memories) == (
        8,
        28,
        13,
        5,
        8,
    )
    assert await memory.aget_entries() == {}
    assert "secret" not in (
        memory_files_text(memory) if memory.has_file else str(execute(database_url, "SELECT * FROM interaction_memory"))
    )
    [erasure] = (await clear_sessions(call, everything)).erasures
    assert erasure.report.is_empty
    await database.close()


def test_reports_add_up() -> None:
    one = ErasureReport(("a",), 1, 2, 3, 4)
    assert one + ErasureReport(("b",), 1, items=7) == ErasureReport(("a", "b"), 2, 2, 3, 4, items=7)
    assert not one.is_empty
    assert ErasureReport().is_empty
    assert UUID(str(derive_session_id(AGENT, ALICE, "t"))).version == 5
