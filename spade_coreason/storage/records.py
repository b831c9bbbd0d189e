"""What is stored of an agent, as values: a conversation, a turn, a variable, a request, and what was deleted."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from ..contracts import ConversationRecord, ConversationState
from ..domain.conversation import ConversationStatus
from ..domain.value import value
from .schema import conversations, from_micros, to_micros


@value
class StoredConversation:
    """A conversation and its session, as stored. Turns are numbered from 1; the window begins with `window_start`."""

    id: int
    conversation_id: str
    owner: str
    session_id: str
    status: ConversationStatus
    max_interactions: int
    window_start: int = 1
    turns: int = 0

    def with_status(self, status: ConversationStatus) -> StoredConversation:
        """The same conversation, which is somewhere else now."""
        return self.with_turns(status, self.max_interactions, self.window_start, self.turns)

    def with_turns(
        self, status: ConversationStatus, max_interactions: int, window_start: int, turns: int
    ) -> StoredConversation:
        """The same after a turn; in half the time of `replace`."""
        return StoredConversation(
            self.id, self.conversation_id, self.owner, self.session_id, status, max_interactions, window_start, turns
        )

    @property
    def contract_record(self) -> ConversationRecord:
        """The seed's record."""
        life = self.status
        return ConversationRecord(
            conversation_id=self.conversation_id,
            state=life.state,
            interaction_count=life.interaction_count,
            max_interactions=self.max_interactions,
            created_at=life.created_at,
            last_interaction=life.last_interaction,
        )


@value
class TurnRecord:
    """A finished turn, ready to be stored."""

    interaction_id: str
    timestamp: datetime
    body: str


class Variable(NamedTuple):
    """A variable of a conversation (its id is the holder) or of a person (their bare JID is). `value` is JSON."""

    scope: str
    holder: str
    name: str
    value: str


class LoadedConversation(NamedTuple):
    """What is stored for a message: who has its possible conversation ids, and all that the sender's own conversation holds.

    `history` are the turns in the window as JSON, oldest first. Variables and preferences are JSON texts by name.
    """

    conversations: dict[str, StoredConversation]
    history: list[str]
    conversation_variables: dict[str, str]
    person_variables: dict[str, str]
    preferences: dict[str, str]


class InboxRecord(NamedTuple):
    """A message that was received: `state` 0 received, 1 answered, 2 closed. Of a closed one nothing but that is kept."""

    received_at: datetime
    state: int
    request: str | None
    answer: str | None


class PendingRequest(NamedTuple):
    """A request that is not closed: received, or answered with its answer."""

    inbox_row: int
    key: bytes
    request: str | None
    answer: str | None


@dataclass(frozen=True, slots=True)
class DeletionReport:
    """What was deleted."""

    conversation_ids: tuple[str, ...]
    interactions: int
    variables: int
    requests: int
    preferences: int = 0
    """1 where the person had said some, else 0."""
    documents: int = 0
    audit_entries: int = 0


def conversation_columns(agent: str, record: StoredConversation) -> tuple[Any, ...]:
    """The columns of a conversation, as `SAVE_CONVERSATION` wants them."""
    life = record.status
    return (
        record.id,
        agent,
        record.conversation_id,
        record.owner,
        record.session_id,
        str(life.state),  # a third of the time that an Enum takes to say its value
        life.interaction_count,
        record.max_interactions,
        to_micros(life.created_at),
        to_micros(life.last_interaction),
        life.failures,
        0 if life.quiet_until is None else to_micros(life.quiet_until),  # as an int it is bound in a tenth of the time of None
        record.window_start,
        record.turns,
    )


ConversationColumns = namedtuple("FoundColumns", conversations.c.keys())  # type: ignore[misc]  # what `FIND_CONVERSATIONS` gives, in its order


def conversation_from_row(row: Any) -> StoredConversation:
    """A conversation from its columns."""
    life = ConversationStatus(
        ConversationState(row.state),
        row.interaction_count,
        from_micros(row.created_at),
        from_micros(row.last_interaction),
        row.failures,
        from_micros(row.quiet_until) if row.quiet_until else None,
    )
    return StoredConversation(
        row.id, row.conversation_id, row.owner, row.session_id, life, row.max_interactions, row.window_start, row.turns
    )
