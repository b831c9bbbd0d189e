"""Conversations and turns to store, without a runner."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from spade_coreason.contracts import ConversationState, Interaction
from spade_coreason.domain.callers import HIDDEN_PERSON
from spade_coreason.domain.conversation import ConversationStatus
from spade_coreason.domain.identifiers import derive_session_id
from spade_coreason.storage.backends.database import Database
from spade_coreason.storage.records import StoredConversation, TurnRecord, Variable
from spade_coreason.storage.repository import AgentRepository
from tests.support.databases import SAME_STANZA

AGENT, OTHER_AGENT = "notes@localhost", "echo@localhost"
ALICE, BOB, CAROL = "alice@localhost", "bob@localhost", "carol@localhost"
# People whose JIDs look like Alice's.
MALICE, ALICE_ELSEWHERE = "malice@localhost", "alice@localhost.example"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NOT_REMEMBERED = (
    "I cannot store anything at the moment, so your message is not stored yet."
    " I answer as soon as I can. If you get no answer, please ask again."
)
"""The reply to a person whose turn could not be stored."""


async def open_repository(database: Database, agent: str = AGENT) -> AgentRepository:
    """Return the repository of an agent that is open, so that its requests can be stored."""
    repository = AgentRepository(database, agent)
    await repository.inbox.open()
    return repository


def new_conversation(repository: AgentRepository, name: str = "t", owner: str = ALICE, **fields: Any) -> StoredConversation:
    status = ConversationStatus(ConversationState.ACTIVE, 0, NOW, NOW)
    session = str(derive_session_id(repository.agent, owner, name))
    return replace(StoredConversation(repository.database.row_ids.next(), name, owner, session, status, 100), **fields)


async def receive_request(
    repository: AgentRepository, owner: str = ALICE, request: str = '{"secret": 1}', key: bytes = b""
) -> int:
    row, is_new, _ = repository.inbox.receive(key or uuid4().bytes, owner, request, NOW, evidence=SAME_STANZA)
    assert await is_new
    return row


async def store_turn(
    repository: AgentRepository,
    record: StoredConversation,
    *variables: Variable,
    answer: str | None = None,
    root: str | None = None,
) -> StoredConversation:
    """Store one more turn of a conversation. `root` is the person behind it, if an agent has passed on their request."""
    record = replace(record, turns=record.turns + 1)
    behind = {} if root is None else {"meta": {"channel": "program", "root_sender": root}, "output": {}, "lineage": {}}
    body = json.dumps({"n": record.turns, "of": record.owner, **behind})
    await repository.inbox.finish(
        await receive_request(repository, record.owner),
        record,
        TurnRecord(f"{record.owner} {record.turns}", NOW, body, "" if root is None else root or HIDDEN_PERSON),
        answer,
        variables,
    )
    return record


def query_of(turn: Interaction) -> str:
    """Return the text of a person's turn."""
    assert isinstance(turn.input, dict)
    text = turn.input["query"]
    assert isinstance(text, str)
    return text
