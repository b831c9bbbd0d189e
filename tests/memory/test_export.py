"""What an agent keeps about a person, shown: the twin of forgetting."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from spade_coreason import AgentInteractionMemory, ConversationState
from spade_coreason.contracts import AuditEntry
from spade_coreason.domain.conversation import ConversationStatus
from spade_coreason.domain.preferences import PREFERENCES_SCOPE, Preferences
from spade_coreason.domain.value import replace
from spade_coreason.memory.erasure import erase_person
from spade_coreason.memory.export import SCHEMA, VERSION, export_person
from spade_coreason.storage import open_database
from spade_coreason.storage.database import Database
from spade_coreason.storage.knowledge import NewDocument, Shelf
from spade_coreason.storage.records import StoredConversation, TurnRecord, Variable
from spade_coreason.storage.repository import AgentRepository

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


async def talked(store: AgentRepository, owner: str, name: str, turns: int) -> StoredConversation:
    """A conversation with so many turns and a variable."""
    row = StoredConversation(
        store.next_conversation_row_id(),
        name,
        owner,
        str(uuid4()),
        ConversationStatus(ConversationState.ACTIVE, turns, NOW, NOW),
        100,
    )
    for number in range(turns):
        row = replace(row, turns=number + 1)
        inbox, _, _ = store.inbox.receive(uuid4().bytes, owner, "{}", NOW)
        turn = TurnRecord(f"{name}-{number}", NOW, json.dumps({"of": owner, "number": number}))
        ended = store.inbox.finish(inbox, row, turn, None, [Variable("conversation", name, "city", '"Berlin"')])
    await ended
    return row


async def lived(store: AgentRepository, memory: AgentInteractionMemory, owner: str) -> None:
    """Somebody of whom there is something of every kind."""
    await talked(store, owner, f"{owner}/long", 1201)
    await talked(store, owner, f"{owner}/short", 1)
    await store.save_feedback(f"{owner}/short-0", owner, ["👍"])
    await store.save_variable("person", owner, "name", f'"{owner}"')
    await store.save_variable(PREFERENCES_SCOPE, owner, PREFERENCES_SCOPE, Preferences("de", streaming=False).to_json())
    await memory.aadd_information(f"{owner}/short", f"is {owner}")
    known = [NewDocument(f"note of {owner}", owner.encode(), [f"knows {owner}", "and more"])]
    await store.knowledge.save_documents(Shelf("person", owner), known, NOW)
    await store.knowledge.save_documents(Shelf("conversation", f"{owner}/long"), known, NOW)
    await memory.aadd_information(f"{owner}_{AGENT}", "was told in a turn that never ended")
    await store.audit_trail.append(AuditEntry(actor=AGENT, action="tell", resource=owner, outcome="success"), owner)
    _, is_new, _ = store.inbox.receive(uuid4().bytes, owner, json.dumps({"payload": {"query": "waits"}}), NOW)
    await is_new


async def test_everything_about_a_person_is_shown_and_nothing_about_others(
    database: Database, memory: AgentInteractionMemory
) -> None:
    store = AgentRepository(database, AGENT)
    await lived(store, memory, ALICE)
    await lived(store, memory, BOB)
    await talked(AgentRepository(database, OTHER), ALICE, "elsewhere", 1)
    shown = json.loads(json.dumps(await export_person(store, memory, f"{ALICE}/phone", clock=lambda: NOW)))
    assert BOB not in json.dumps(shown)
    head = {name: shown[name] for name in ("schema", "version", "agent", "person", "exported_at")}
    assert head == {
        "schema": SCHEMA,
        "version": VERSION,
        "agent": AGENT,
        "person": ALICE,
        "exported_at": "2026-01-02T03:04:05Z",
    }
    conversations = {entry["conversation_id"]: entry for entry in shown["conversations"]}
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
    assert session == (await store.find_conversations([f"{ALICE}/long"]))[f"{ALICE}/long"].session_id
    assert conversations[f"{ALICE}/short"]["turns"] == [{"of": ALICE, "number": 0, "meta": {"feedback": ["👍"]}}]
    assert (shown["variables"], shown["preferences"]) == ({"name": ALICE}, {"language": "de", "streaming": False})
    assert shown["memories"] == {
        f"{ALICE}/short": [{"content": f"is {ALICE}", "timestamp": "2026-01-02T03:04:05.000Z"}],
        f"{ALICE}_{AGENT}": [{"content": "was told in a turn that never ended", "timestamp": "2026-01-02T03:04:05.000Z"}],
    }
    document = {"name": f"note of {ALICE}", "added_at": "2026-01-02T03:04:05Z", "text": f"knows {ALICE}\nand more"}
    assert shown["documents"] == [{"person": ALICE, **document}, {"conversation": f"{ALICE}/long", **document}]
    assert [(entry["action"], entry["resource"]) for entry in shown["audit"]] == [("tell", ALICE)]
    *closed, waiting = shown["requests"]
    assert len(closed) == 1202
    assert all(request == {"received_at": "2026-01-02T03:04:05Z", "state": "closed"} for request in closed)
    assert waiting == {
        "received_at": "2026-01-02T03:04:05Z",
        "state": "received",
        "request": {"payload": {"query": "waits"}},
    }


async def test_what_is_forgotten_was_shown_before_and_nothing_is_shown_after(
    database: Database, memory: AgentInteractionMemory
) -> None:
    store = AgentRepository(database, AGENT)
    await lived(store, memory, ALICE)
    shown = await export_person(store, memory, ALICE)
    counted = {
        "conversation_ids": {entry["conversation_id"] for entry in shown["conversations"]},
        "interactions": sum(len(entry["turns"]) for entry in shown["conversations"]),
        "variables": sum(len(entry["variables"]) for entry in (*shown["conversations"], shown)),
        "requests": sum(request["state"] != "closed" for request in shown["requests"]),
        "memories": len(shown["memories"]),
        "preferences": int(bool(shown["preferences"])),
        "documents": len(shown["documents"]),
        "audit_entries": len(shown["audit"]),
    }
    assert all(counted.values())
    gone = asdict(await erase_person(store, memory, ALICE))
    assert {**gone, "conversation_ids": set(gone["conversation_ids"])} == counted
    kinds = ("conversations", "variables", "preferences", "memories", "documents", "audit", "requests")
    empty = await export_person(store, memory, ALICE)
    assert not any(empty[kind] for kind in kinds)
    assert set(empty) - set(kinds) == {"schema", "version", "agent", "person", "exported_at"}


async def test_whoever_has_only_said_what_they_prefer_is_known_and_can_be_forgotten(
    database: Database, memory: AgentInteractionMemory
) -> None:
    store = AgentRepository(database, AGENT)
    await store.save_variable(PREFERENCES_SCOPE, ALICE, PREFERENCES_SCOPE, Preferences(thoughts=True).to_json())
    assert await store.list_people() == [ALICE]
    assert (await export_person(store, None, ALICE))["preferences"] == {"thoughts": True}
    gone = await erase_person(store, memory, ALICE)
    assert (gone.preferences, gone.is_empty, await store.list_people()) == (1, False, [])


@pytest.mark.parametrize("body", ["[" * 100_000, '{"n": ' + "9" * 5000 + "}", "no JSON"])
async def test_a_turn_that_cannot_be_read_is_shown_as_it_is_stored(database: Database, body: str) -> None:
    store = AgentRepository(database, AGENT)
    row = replace(await talked(store, ALICE, "t", 1), turns=2)
    inbox, _, _ = store.inbox.receive(uuid4().bytes, ALICE, "{}", NOW)
    await store.inbox.finish(inbox, row, TurnRecord("x", NOW, body), None)
    shown: dict[str, Any] = await export_person(store, None, ALICE)
    assert [turn if isinstance(turn, str) else turn["number"] for turn in shown["conversations"][0]["turns"]] == [0, body]
