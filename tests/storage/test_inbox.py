"""The inbox of one agent: a request is known in every state, and stored with its turn whole or not at all."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from spade_coreason import StoreError
from spade_coreason.domain.duplicates import Evidence
from spade_coreason.storage.backends.database import Database
from spade_coreason.storage.records import StoredConversation, TurnRecord, Variable
from spade_coreason.storage.repository import AgentRepository
from tests.support.databases import (
    ANSWERED,
    CLOSED,
    RECEIVED,
    SAME_STANZA,
    count_commits,
    open_without_sync,
    read_all_tables,
    read_rows,
)
from tests.support.records import AGENT, ALICE, NOW, OTHER_AGENT, new_conversation, open_repository, receive_request, store_turn


def inbox_rows(database_url: str) -> list[tuple[int, str | None, str | None]]:
    return [(row["state"], row["request"], row["answer"]) for row in read_rows(database_url, "inbox")]


# The inbox


async def test_a_request_is_received_answered_and_closed(repository: AgentRepository, database_url: str) -> None:
    row = await receive_request(repository, request='{"q": 1}')
    assert inbox_rows(database_url) == [(RECEIVED, '{"q": 1}', None)]
    await repository.inbox.finish(row, new_conversation(repository), None, '["<message/>"]')
    assert inbox_rows(database_url) == [(ANSWERED, None, '["<message/>"]')]
    repository.inbox.close(row)
    await repository.save_conversation(new_conversation(repository, "another"))  # with which it is written
    assert inbox_rows(database_url) == [(CLOSED, None, None)]


async def test_a_request_without_an_answer_is_closed_at_once(repository: AgentRepository, database_url: str) -> None:
    await repository.inbox.finish(await receive_request(repository), new_conversation(repository), None, None)
    assert inbox_rows(database_url) == [(CLOSED, None, None)]


async def test_the_last_closed_request_is_written_when_the_database_closes(database_url: str) -> None:
    database = await open_without_sync(database_url)
    repository = await open_repository(database, AGENT)
    row = await receive_request(repository)
    repository.inbox.close(row)
    await database.close()
    assert inbox_rows(database_url) == [(CLOSED, None, None)]


@pytest.mark.parametrize("state", [RECEIVED, ANSWERED, CLOSED])
@pytest.mark.parametrize("is_reopened", [False, True], ids=["", "after a restart"])
async def test_a_duplicate_is_known_in_every_state_and_changes_nothing(
    database_url: str, state: int, is_reopened: bool
) -> None:
    database = await open_without_sync(database_url)
    repository = await open_repository(database, AGENT)
    row = await receive_request(repository, request='{"first": 1}', key=b"k" * 16)
    if state != RECEIVED:
        await repository.inbox.finish(row, new_conversation(repository), None, '["<message/>"]' if state == ANSWERED else None)
    if is_reopened:
        await database.close()
        database = await open_without_sync(database_url)
        repository = await open_repository(database, AGENT)
    before = read_all_tables(database_url)
    assert not await repository.inbox.receive(b"k" * 16, ALICE, '{"second": 2}', NOW + timedelta(days=1), evidence=SAME_STANZA)[
        1
    ]
    assert read_all_tables(database_url) == before
    await database.close()


@pytest.mark.parametrize("is_reopened", [False, True], ids=["", "after a restart"])
@pytest.mark.parametrize("is_purged", [False, True], ids=["", "without the first"])
async def test_each_of_several_messages_with_the_same_id_and_content_is_known(
    database_url: str, is_reopened: bool, is_purged: bool
) -> None:
    database = await open_without_sync(database_url)
    repository = await open_repository(database, AGENT)
    conversation = new_conversation(repository)

    async def receive(number: int, days: int) -> tuple[int, bool]:
        evidence, own_key = Evidence(server_id=f"id {number}"), bytes([number]) * 16
        now = NOW + timedelta(days=days)
        row, stored, _ = repository.inbox.receive(b"k" * 16, ALICE, "{}", now, evidence=evidence, own_key=own_key)
        return row, await stored

    for number in range(3):
        row, is_new = await receive(number, 2 * number)
        assert is_new
        await repository.inbox.finish(row, conversation, None, None)
    if is_purged:
        await repository.inbox.purge(NOW + timedelta(days=7, hours=1))
    if is_reopened:
        await database.close()
        database = await open_without_sync(database_url)
        repository = await open_repository(database, AGENT)
    assert [(await receive(number, 6))[1] for number in range(1, 4)] == [False, False, True]
    await database.close()


async def test_of_many_duplicates_at_once_one_is_new(repository: AgentRepository, database_url: str) -> None:
    keys = [bytes([n % 7]) * 16 for n in range(200)]
    found = await asyncio.gather(*(repository.inbox.receive(key, ALICE, "{}", NOW, evidence=SAME_STANZA)[1] for key in keys))
    assert sum(found) == len(inbox_rows(database_url)) == 7
    assert found[:7] == [True] * 7


async def test_unsent_answers_are_listed_again_in_order_until_they_are_closed(database_url: str) -> None:
    database = await open_without_sync(database_url)
    repository = await open_repository(database, AGENT)
    conversation = new_conversation(repository)
    numbers = [await receive_request(repository, key=bytes([n]) * 16) for n in range(5)]
    for n in (3, 0, 4, 1):
        await repository.inbox.finish(numbers[n], conversation, None, f'["answer {n}"]')
    for closed, expected in ((None, [0, 1, 2, 3, 4]), (0, [1, 2, 3, 4]), (3, [1, 2, 4])):
        if closed is not None:
            repository.inbox.close(numbers[closed])
        await database.close()
        database = await open_without_sync(database_url)
        repository = await open_repository(database, AGENT)
        pending = await repository.inbox.load_pending()
        assert [row.key[0] for row in pending] == expected
        assert [row.reply for row in pending] == [None if n == 2 else f'["answer {n}"]' for n in expected]
        assert [row.request for row in pending if row.reply is None] == ['{"secret": 1}']
    await database.close()


async def test_pending_requests_are_of_their_agent(repository: AgentRepository, database: Database) -> None:
    await receive_request(repository)
    assert await (await open_repository(database, OTHER_AGENT)).inbox.load_pending() == []


@pytest.mark.parametrize(
    ("days", "is_closed", "agent", "stays"),
    [(8, True, AGENT, False), (7, True, AGENT, True), (8, False, AGENT, True), (8, True, OTHER_AGENT, True)],
    ids=["closed and old", "closed and young", "old and open", "another agent's"],
)
async def test_only_closed_and_old_requests_are_purged(
    database: Database, database_url: str, days: int, is_closed: bool, agent: str, stays: bool
) -> None:
    repository = await open_repository(database, agent)
    row = await receive_request(repository)
    if is_closed:
        await repository.inbox.finish(row, new_conversation(repository), None, None)
    await (await open_repository(database, AGENT)).inbox.purge(NOW + timedelta(days=days))
    assert len(inbox_rows(database_url)) == stays


# One transaction


@pytest.mark.parametrize("broken", ["conversation", "turn", "variable", "answer"])
async def test_a_turn_that_cannot_be_stored_completely_changes_nothing(
    repository: AgentRepository, database: Database, database_url: str, broken: str
) -> None:
    row = await store_turn(repository, new_conversation(repository), Variable("conversation", "t", "v", "1"), answer='["old"]')
    request = await receive_request(repository)
    before = read_all_tables(database_url)
    parts: dict[str, Any] = {
        "conversation": replace(row, turns=2, status=replace(row.status, interaction_count=2)),
        "turn": TurnRecord("i", NOW, "{}"),
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
        await repository.inbox.finish(request, given["conversation"], given["turn"], given["answer"], [given["variable"]])
    assert read_all_tables(database_url) == before
    await repository.inbox.finish(request, parts["conversation"], parts["turn"], parts["answer"], [parts["variable"]])
    assert await repository.turns.load_history(row.id, 10) == ['{"n": 1, "of": "alice@localhost"}', "{}"]
    assert await repository.load_variables("conversation", "t") == {"v": "2"}
    assert inbox_rows(database_url) == [(ANSWERED, None, '["old"]'), (ANSWERED, None, '["new"]')]


async def test_turns_that_end_together_are_each_stored_whole(repository: AgentRepository, database_url: str) -> None:
    good = [new_conversation(repository, f"t{n}", turns=1) for n in range(100)]
    no_owner: Any = None  # the database refuses it
    bad = [replace(new_conversation(repository, f"b{n}", turns=1), owner=no_owner) for n in range(3)]
    conversations = [*good[:50], *bad, *good[50:]]
    requests = [await receive_request(repository) for _ in conversations]
    finished = [
        repository.inbox.finish(
            request, row, TurnRecord("i", NOW, "{}"), "[]", [Variable("conversation", row.conversation_id, "v", "1")]
        )
        for request, row in zip(requests, conversations, strict=True)
    ]
    results = await asyncio.gather(*finished, return_exceptions=True)
    assert [row.conversation_id for row, result in zip(conversations, results, strict=True) if result is not True] == [
        "b0",
        "b1",
        "b2",
    ]
    assert [len(read_rows(database_url, table)) for table in ("conversations", "interactions", "variables")] == [100, 100, 100]
    assert sorted(state for state, _, _ in inbox_rows(database_url)) == [RECEIVED] * 3 + [ANSWERED] * 100


async def test_turns_that_end_together_share_a_commit(repository: AgentRepository, database_url: str) -> None:
    conversations = [new_conversation(repository, f"t{n}", turns=1) for n in range(100)]
    before = count_commits(database_url)

    async def finish_turn(row: StoredConversation) -> None:
        await repository.inbox.finish(await receive_request(repository), row, TurnRecord("i", NOW, "{}"), "[]")

    await asyncio.gather(*map(finish_turn, conversations))
    assert len(read_rows(database_url, "interactions")) == 100
    assert count_commits(database_url) - before <= 10  # and neither 100 nor 200
