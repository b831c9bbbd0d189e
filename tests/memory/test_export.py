"""The export of everything that an agent stores about a person, the counterpart of erasure."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from spade_coreason import AgentInteractionMemory
from spade_coreason.contracts import AuditEntry, ConversationState
from spade_coreason.domain.conversation import ConversationStatus
from spade_coreason.domain.identifiers import EXPORT_SCHEMA
from spade_coreason.domain.preferences import PREFERENCES_SCOPE, Preferences
from spade_coreason.domain.texts.error_chain import describe_error_chain
from spade_coreason.memory.erasure import erase_person
from spade_coreason.memory.export import VERSION, export_person
from spade_coreason.storage import MessageCount, TopicItem, addition_of, open_database
from spade_coreason.storage.backends.database import Database
from spade_coreason.storage.records import DocumentCollection, NewDocument, StoredConversation, TurnRecord, Variable
from spade_coreason.storage.repository import AgentRepository
from tests.support.records import open_repository
from tests.support.stored_initiative import make_reminder
from tests.support.stored_questions import CODE, store_question

AGENT, OTHER, ALICE, BOB = "agent@localhost", "other@localhost", "alice@localhost", "bob@localhost"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = await open_database(f"sqlite+aiosqlite:///{tmp_path}/platform.db", "off")
    yield database
    await database.close()


@pytest.fixture
def memory(tmp_path: Path) -> AgentInteractionMemory:
    return AgentInteractionMemory(AGENT, tmp_path / "memory", clock=lambda: NOW)


async def store_conversation(repository: AgentRepository, owner: str, name: str, turns: int) -> StoredConversation:
    """Store a conversation with so many turns and a variable."""
    row = StoredConversation(
        repository.database.row_ids.next(),
        name,
        owner,
        str(uuid4()),
        ConversationStatus(ConversationState.ACTIVE, turns, NOW, NOW),
        100,
    )
    for number in range(turns):
        row = replace(row, turns=number + 1)
        inbox, _, _ = repository.inbox.receive(uuid4().bytes, owner, "{}", NOW)
        turn = TurnRecord(f"{name}-{number}", NOW, json.dumps({"of": owner, "number": number}))
        ended = repository.inbox.finish(inbox, row, turn, None, [Variable("conversation", name, "city", '"Berlin"')])
    await ended
    return row


async def store_everything(repository: AgentRepository, memory: AgentInteractionMemory, owner: str) -> None:
    """Store something of every kind about a person."""
    await store_conversation(repository, owner, f"{owner}/long", 1201)
    await store_conversation(repository, owner, f"{owner}/short", 1)
    await repository.turns.save_feedback(f"{owner}/short-0", owner, ["👍"])
    await repository.save_variable("person", owner, "name", f'"{owner}"')
    await repository.save_variable(PREFERENCES_SCOPE, owner, PREFERENCES_SCOPE, Preferences("de", streaming=False).to_json())
    await memory.aadd_information(f"{owner}/short", f"is {owner}")
    documents = [NewDocument(f"note of {owner}", owner.encode(), [f"knows {owner}", "and more"])]
    await repository.knowledge.save_documents(DocumentCollection("person", owner), documents, NOW)
    await repository.knowledge.save_documents(DocumentCollection("conversation", f"{owner}/long"), documents, NOW)
    repository.inbox.save_message_counts(lambda: [MessageCount("person", owner, NOW.date(), 3, 30)])
    await memory.aadd_information(f"{owner}_{AGENT}", "was told in a turn that never ended")
    await repository.audit_trail.append(AuditEntry(actor=AGENT, action="tell", resource=owner, outcome="success"), owner)
    await repository.incidents.record("1f2e3d4c", owner, None, NOW, describe_error_chain(ValueError(f"a key of {AGENT}")))
    await repository.topics.subscribe(owner, [f"news/{owner}"])
    await repository.topics.publish(TopicItem(f"item of {owner}", "news", owner, NOW, {"title": f"of {owner}"}))
    _, is_new, _ = repository.inbox.receive(uuid4().bytes, owner, json.dumps({"payload": {"query": "waits"}}), NOW)
    await is_new
    new = repository.notifications.make_notification(str(uuid4()), owner, None, "", json.dumps([f"for {owner}"]), NOW)
    await repository.notifications.create(new, lambda own, of_others: new)
    assert await repository.schedules.store([addition_of(make_reminder(repository, owner, NOW, query=f"of {owner}"))])
    await store_question(repository, owner, owner)


async def test_everything_about_a_person_is_shown_and_nothing_about_others(
    database: Database, memory: AgentInteractionMemory
) -> None:
    repository = await open_repository(database, AGENT)
    await store_everything(repository, memory, ALICE)
    await store_everything(repository, memory, BOB)
    await store_conversation(await open_repository(database, OTHER), ALICE, "elsewhere", 1)
    export = json.loads(json.dumps(await export_person(repository, memory, f"{ALICE}/phone", clock=lambda: NOW)))
    assert BOB not in json.dumps(export)
    head = {name: export[name] for name in ("schema", "version", "agent", "person", "exported_at")}
    assert head == {
        "schema": EXPORT_SCHEMA,
        "version": VERSION,
        "agent": AGENT,
        "person": ALICE,
        "exported_at": "2026-01-02T03:04:05Z",
    }
    conversations = {entry["conversation_id"]: entry for entry in export["conversations"]}
    assert set(conversations) == {f"{ALICE}/long", f"{ALICE}/short"}
    turns = conversations[f"{ALICE}/long"].pop("turns")
    assert [turn["number"] for turn in turns] == list(range(1201))
    session = conversations[f"{ALICE}/long"].pop("session_id")
    assert conversations[f"{ALICE}/long"] == {
        "conversation_id": f"{ALICE}/long",
        "state": "active",
        "interaction_count": 1201,
        "max_interactions": 100,
        "created_at": "2026-01-02T03:04:05Z",
        "last_interaction": "2026-01-02T03:04:05Z",
        "variables": {"city": "Berlin"},
    }
    assert session == (await repository.find_conversations([f"{ALICE}/long"]))[f"{ALICE}/long"].session_id
    assert conversations[f"{ALICE}/short"]["turns"] == [{"of": ALICE, "number": 0, "meta": {"feedback": ["👍"]}}]
    assert (export["variables"], export["preferences"]) == ({"name": ALICE}, {"language": "de", "streaming": False})
    assert export["memories"] == {
        f"{ALICE}/short": [{"content": f"is {ALICE}", "timestamp": "2026-01-02T03:04:05.000Z"}],
        f"{ALICE}_{AGENT}": [{"content": "was told in a turn that never ended", "timestamp": "2026-01-02T03:04:05.000Z"}],
    }
    document = {"name": f"note of {ALICE}", "added_at": "2026-01-02T03:04:05Z", "text": f"knows {ALICE}\nand more"}
    assert export["documents"] == [{"person": ALICE, **document}, {"conversation": f"{ALICE}/long", **document}]
    assert [(entry["action"], entry["resource"]) for entry in export["audit"]] == [("tell", ALICE)]
    assert export["incidents"] == [{"incident": "1f2e3d4c", "occurred_at": "2026-01-02T03:04:05Z", "conversation_id": None}]
    waiting, parked = export["requests"]
    assert parked["steps"] == [{"name": "ask", "use": 1}]
    assert [one["request"]["payload"] for one in export["parked_requests"]] == [{"query": f"of {ALICE}"}]
    [question] = export["questions"]
    assert (question["text"], question["state"], question["is_of_own_request"]) == (f"pay({ALICE})", "open", True)
    assert CODE not in json.dumps(question)
    assert export["finished_requests"] == 1202
    assert waiting == {
        "received_at": "2026-01-02T03:04:05Z",
        "state": "received",
        "request": {"payload": {"query": "waits"}},
    }


async def test_the_export_contains_everything_that_is_erased_and_is_empty_afterwards(
    database: Database, memory: AgentInteractionMemory
) -> None:
    repository = await open_repository(database, AGENT)
    await store_everything(repository, memory, ALICE)
    export = await export_person(repository, memory, ALICE)
    counted = {
        "conversation_ids": {entry["conversation_id"] for entry in export["conversations"]},
        "interactions": sum(len(entry["turns"]) for entry in export["conversations"]),
        "variables": sum(len(entry["variables"]) for entry in (*export["conversations"], export)),
        "requests": len([one for one in export["requests"] if "request" in one]) + len(export["parked_requests"]),
        "memories": len(export["memories"]),
        "preferences": int(bool(export["preferences"])),
        "documents": len(export["documents"]),
        "audit_entries": len(export["audit"]),
        "incidents": len(export["incidents"]),
        "subscriptions": len(export["topics"]["subscriptions"]),
        "items": len(export["topics"]["published"]),
        "notifications": len(export["notifications"]),
        "schedules": len(export["schedules"]),
        "questions": len(export["questions"]),
    }
    assert all(counted.values())
    assert export["messages_today"] == {"today": {"day": f"{NOW:%Y-%m-%d}", "messages": 3, "bytes": 30}}
    report = asdict(await erase_person(repository, memory, ALICE))
    assert {**report, "conversation_ids": set(report["conversation_ids"])} == {**counted, "deleted_items": 0}
    kinds = (
        "conversations",
        "variables",
        "messages_today",
        "preferences",
        "memories",
        "documents",
        "audit",
        "requests",
        "finished_requests",
        "incidents",
        "notifications",
        "schedules",
        "tasks",
        "questions",
        "parked_requests",
        "keys",
        "callers",
    )
    empty = await export_person(repository, memory, ALICE)
    assert not any(empty[kind] for kind in kinds)
    assert empty.pop("doors") == {"threads": [], "files": []}
    assert empty.pop("topics") == {"subscriptions": [], "published": []}
    assert set(empty) - set(kinds) == {"schema", "version", "agent", "person", "exported_at"}


async def test_a_person_with_only_a_reminder_or_a_notification_is_listed(database: Database) -> None:
    repository = await open_repository(database, AGENT)
    assert await repository.schedules.store([addition_of(make_reminder(repository, ALICE, NOW, query=f"of {ALICE}"))])
    new = repository.notifications.make_notification(str(uuid4()), BOB, None, f"root-{BOB}", "[]", NOW)
    await repository.notifications.create(new, lambda own, of_others: new)
    assert sorted(await repository.list_people()) == sorted([ALICE, BOB, f"root-{BOB}"])


async def test_a_person_with_only_preferences_is_listed_and_can_be_erased(
    database: Database, memory: AgentInteractionMemory
) -> None:
    repository = await open_repository(database, AGENT)
    await repository.save_variable(PREFERENCES_SCOPE, ALICE, PREFERENCES_SCOPE, Preferences(thoughts=True).to_json())
    assert await repository.list_people() == [ALICE]
    assert (await export_person(repository, None, ALICE))["preferences"] == {"thoughts": True}
    report = await erase_person(repository, memory, ALICE)
    assert (report.preferences, report.is_empty, await repository.list_people()) == (1, False, [])


@pytest.mark.parametrize("body", ["[" * 100_000, '{"n": ' + "9" * 5000 + "}", "no JSON"])
async def test_a_turn_that_cannot_be_read_is_shown_as_it_is_stored(database: Database, body: str) -> None:
    repository = await open_repository(database, AGENT)
    row = replace(await store_conversation(repository, ALICE, "t", 1), turns=2)
    inbox, _, _ = repository.inbox.receive(uuid4().bytes, ALICE, "{}", NOW)
    await repository.inbox.finish(inbox, row, TurnRecord("x", NOW, body), None)
    export: dict[str, Any] = await export_person(repository, None, ALICE)
    assert [turn if isinstance(turn, str) else turn["number"] for turn in export["conversations"][0]["turns"]] == [0, body]
