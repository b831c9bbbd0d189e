"""Conversations and turns to store, without a runner."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from spade_coreason import ConversationState
from spade_coreason.contracts import Interaction
from spade_coreason.domain.conversation import Life
from spade_coreason.domain.identifiers import session_id
from spade_coreason.domain.value import replace
from spade_coreason.storage.records import ConversationRow, Turn, Variable
from spade_coreason.storage.repository import AgentStore

AGENT, OTHER_AGENT = "notes@localhost", "echo@localhost"
ALICE, BOB, CAROL = "alice@localhost", "bob@localhost", "carol@localhost"
# Whose JIDs look like Alice's.
MALICE, ALICE_ELSEWHERE = "malice@localhost", "alice@localhost.example"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NOT_REMEMBERED = (
    "I cannot store anything at the moment, so what you just said is not remembered yet."
    " I answer as soon as I can; if you hear nothing, please ask again."
)
"""What a person hears whose turn could not be stored."""


def conversation(store: AgentStore, name: str = "t", owner: str = ALICE, **fields: Any) -> ConversationRow:
    life = Life(ConversationState.ACTIVE, 0, NOW, NOW)
    session = str(session_id(store.agent, owner, name))
    return replace(ConversationRow(store.new_conversation_row(), name, owner, session, life, 100), **fields)


async def received(store: AgentStore, owner: str = ALICE, request: str = '{"secret": 1}', key: bytes = b"") -> int:
    row, is_new, _ = store.inbox.receive(key or uuid4().bytes, owner, request, NOW)
    assert await is_new
    return row


async def turn(store: AgentStore, row: ConversationRow, *written: Variable, answer: str | None = None) -> ConversationRow:
    """One turn more of a conversation."""
    row = replace(row, turns=row.turns + 1)
    body = json.dumps({"n": row.turns, "of": row.owner})
    await store.inbox.finish(
        await received(store, row.owner), row, Turn(f"{row.owner} {row.turns}", NOW, body), answer, written
    )
    return row


def query_of(turn: Interaction) -> str:
    """The text of a person's turn."""
    assert isinstance(turn.input, dict)
    text = turn.input["query"]
    assert isinstance(text, str)
    return text
