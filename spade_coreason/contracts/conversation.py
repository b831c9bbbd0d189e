"""Where a conversation is (seed: Memory API, Memory Lifecycle)."""

from __future__ import annotations

from enum import StrEnum

from .base import CoReasonBaseModel, UtcDatetime


class ConversationState(StrEnum):
    """The states of a conversation."""

    ACTIVE = "active"
    COMPLETED = "completed"
    ERROR = "error"
    TIMEOUT = "timeout"
    MAX_INTERACTIONS_REACHED = "max_interactions_reached"


class ConversationRecord(CoReasonBaseModel):
    """The seed's record of a conversation, with exactly its keys. Times are UTC."""

    conversation_id: str
    state: ConversationState
    interaction_count: int
    max_interactions: int
    created_at: UtcDatetime
    last_interaction: UtcDatetime
