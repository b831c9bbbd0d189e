"""Everything that one agent keeps about a person, as one JSON object: what `forget_person` would delete."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Any

from ..contracts.base import in_json, utc_now
from ..domain.preferences import PREFERENCES, Preferences
from ..storage import AgentStore, ConversationRow, InboxRow, Shelf
from .forget import held_of
from .interaction.store import AgentInteractionMemory

SCHEMA = "ai.coreason.export"
VERSION = 1

_STATES = ("received", "answered", "closed")


async def export_person(
    store: AgentStore,
    memory: AgentInteractionMemory | None,
    owner: str,
    *,
    clock: Callable[[], datetime] = utc_now,
) -> dict[str, Any]:
    """What the agent keeps about a person (a bare JID), ready for `json.dumps`. Times are RFC 3339 in UTC.

    - `schema`, `version`, `agent`, `person`, `exported_at`
    - `conversations`, the newest first: the record, `variables`, and all `turns` as they are stored, the oldest first; what the
      person felt about an answer is in its turn, `meta.feedback`
    - `variables` for all conversations, and `preferences`
    - `memories`: the pieces of the interaction memory, by conversation id
    - `documents`: what the agent knows of them or of one of their conversations alone, turns in its knowledge included
    - `audit`: what the agent did for them, as its audit trail has it
    - `requests`: the messages of the last seven days; the text of those only that are not finished, of others there is none
    """
    owner, rows, names = await held_of(store, owner)
    known = await memory.aget_entries() if memory is not None else {}
    preferences = Preferences.of(await store.variables(PREFERENCES, owner))
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "agent": store.agent,
        "person": owner,
        "exported_at": in_json(clock()),
        "conversations": [await _conversation(store, row) for row in rows],
        "variables": await _variables(store, "person", owner),
        "preferences": {name: value for name, value in asdict(preferences).items() if value is not None},
        "memories": {
            name: [{"content": content, "timestamp": time} for content, time in known[name]] for name in names if name in known
        },
        "documents": await _documents(store, owner, names),
        "audit": [row.entry for row in await store.trail.newest(person=owner)],
        "requests": [_request(row) for row in await store.inbox.received_from(owner)],
    }


async def _conversation(store: AgentStore, row: ConversationRow) -> dict[str, Any]:
    life = row.life
    return {
        "conversation_id": row.conversation_id,
        "session_id": row.session_id,
        "state": life.state.value,
        "interaction_count": life.interaction_count,
        "max_interactions": row.max_interactions,
        "created_at": in_json(life.created_at),
        "last_interaction": in_json(life.last_interaction),
        "variables": await _variables(store, "conversation", row.conversation_id),
        "turns": [_read(turn) async for turn in store.all_turns(row.id)],
    }


async def _variables(store: AgentStore, scope: str, holder: str) -> dict[str, Any]:
    return {name: _read(value) for name, value in (await store.variables(scope, holder)).items()}


async def _documents(store: AgentStore, owner: str, names: list[str]) -> list[dict[str, Any]]:
    shelves = [Shelf("person", owner), *(Shelf("conversation", name) for name in names)]
    return [
        {shelf.scope: shelf.holder, "name": name, "added_at": in_json(added_at), "text": text}
        for shelf, name, added_at, text in await store.knowledge.texts(shelves)
    ]


def _request(row: InboxRow) -> dict[str, Any]:
    request: dict[str, Any] = {"received_at": in_json(row.received_at), "state": _STATES[row.state]}
    for name, text in (("request", row.request), ("answer", row.answer)):
        if text is not None:
            request[name] = _read(text)
    return request


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # deeper, or with longer numbers, than can be read: it is theirs all the same
        return text
