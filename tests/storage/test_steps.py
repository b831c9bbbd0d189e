"""The stored steps of a request: they live as long as its turn has not ended, on both databases."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from spade_coreason import StoreError
from spade_coreason.memory.export import export_person
from spade_coreason.storage.backends.database import Database
from spade_coreason.storage.records import StoredStep
from spade_coreason.storage.repository import AgentRepository
from tests.support.databases import count_commits, execute, open_without_sync, read_rows
from tests.support.records import AGENT, ALICE, BOB, NOW, OTHER_AGENT, new_conversation, open_repository, receive_request

INTENDED = StoredStep("charge", 1, "a" * 64, None)
CHARGED = StoredStep("charge", 1, "a" * 64, '{"id": "☂\\u0000"}')
MAILED = StoredStep("mail", 2, "b" * 64, "null")


def step_rows(url: str) -> list[dict[str, Any]]:
    return read_rows(url, "steps")


async def test_steps_come_back_after_a_restart(database_url: str) -> None:
    database = await open_without_sync(database_url)
    repository = await open_repository(database, AGENT)
    row, other = await receive_request(repository), await receive_request(repository)
    await repository.inbox.save_step(row, INTENDED)
    assert await repository.inbox.load_steps(row) == [INTENDED]
    for step in (CHARGED, MAILED):
        await repository.inbox.save_step(row, step)
    await database.close()
    database = await open_without_sync(database_url)
    repository = await open_repository(database, AGENT)
    assert sorted(await repository.inbox.load_steps(row)) == [CHARGED, MAILED]
    assert await repository.inbox.load_steps(other) == []
    await database.close()


async def test_an_intention_and_its_result_in_one_transaction_are_one_step(
    repository: AgentRepository, database_url: str
) -> None:
    row = await receive_request(repository)
    repository.inbox.save_step(row, INTENDED)
    await repository.inbox.save_step(row, CHARGED)
    assert [stored["result"] for stored in step_rows(database_url)] == [CHARGED.result]


async def test_steps_of_one_moment_share_a_transaction(repository: AgentRepository, database_url: str) -> None:
    row = await receive_request(repository)
    before = count_commits(database_url)
    commits = [repository.inbox.save_step(row, MAILED._replace(number=number)) for number in range(50)]
    assert all([await commit for commit in commits])
    assert len(step_rows(database_url)) == 50
    assert count_commits(database_url) - before <= 1


@pytest.mark.parametrize("answer", ['["<message/>"]', None], ids=["answered", "without an answer"])
async def test_the_end_of_the_turn_deletes_its_steps_and_no_others(
    repository: AgentRepository, database_url: str, answer: str | None
) -> None:
    row, other = await receive_request(repository), await receive_request(repository)
    for owner in (row, other):
        await repository.inbox.save_step(owner, CHARGED)
    repository.inbox.save_step(row, MAILED)  # in the same transaction as the end
    await repository.inbox.finish(row, new_conversation(repository), None, answer)
    assert [stored["request"] for stored in step_rows(database_url)] == [other]
    assert await repository.inbox.load_steps(row) == []


async def test_closing_a_request_deletes_its_steps(repository: AgentRepository, database_url: str) -> None:
    row = await receive_request(repository)
    await repository.inbox.save_step(row, CHARGED)
    repository.inbox.close(row)
    await repository.save_conversation(new_conversation(repository))  # with which it is written
    assert step_rows(database_url) == []


async def test_erasing_a_person_deletes_their_steps_and_no_others(
    repository: AgentRepository, database: Database, database_url: str
) -> None:
    elsewhere = await open_repository(database, OTHER_AGENT)
    rows = [await receive_request(repository, owner) for owner in (ALICE, BOB)] + [await receive_request(elsewhere, ALICE)]
    for row in rows:
        await repository.inbox.save_step(row, CHARGED)
    await repository.erase_person(ALICE)
    assert [stored["request"] for stored in step_rows(database_url)] == rows[1:]


async def test_an_export_has_the_steps_of_an_interrupted_turn(repository: AgentRepository) -> None:
    row = await receive_request(repository)
    for step in (CHARGED, MAILED, INTENDED._replace(number=2)):
        await repository.inbox.save_step(row, step)
    await receive_request(repository, BOB)
    [request] = (await export_person(repository, None, ALICE))["requests"]
    assert request["steps"] == [
        {"name": "charge", "use": 1, "result": {"id": "☂\0"}},
        {"name": "charge", "use": 2},
        {"name": "mail", "use": 2, "result": None},
    ]
    [other] = (await export_person(repository, None, BOB))["requests"]
    assert "steps" not in other


async def test_a_purge_leaves_the_steps_of_open_requests(repository: AgentRepository, database_url: str) -> None:
    closed, opened = await receive_request(repository), await receive_request(repository)
    for row in (closed, opened):
        await repository.inbox.save_step(row, CHARGED)
    execute(database_url, f"UPDATE inbox SET state = 2 WHERE id = {closed}")  # as if the deletion of its steps had been lost
    await repository.inbox.purge(NOW + timedelta(days=8))
    assert [stored["request"] for stored in step_rows(database_url)] == [opened]


async def test_a_step_of_a_request_that_was_never_stored_fails_alone(repository: AgentRepository, database_url: str) -> None:
    row = await receive_request(repository)
    lost = repository.inbox.save_step(row + 1, CHARGED)
    stored = repository.inbox.save_step(row, CHARGED)
    with pytest.raises(StoreError):
        await lost
    assert await stored
    assert len(step_rows(database_url)) == 1
