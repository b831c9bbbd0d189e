"""The passive state of a session: immutable, so that every change is a new value (seed: Session Management)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Self
from uuid import UUID, uuid4

from pydantic import BeforeValidator, Field, JsonValue, ValidationError

from .base import CoReasonBaseModel, UtcDatetime
from .memory import MemoryStrategy
from .times import utc_now


class ConversationState(StrEnum):
    """The state of a conversation. All states but ACTIVE end an episode."""

    ACTIVE = "active"
    COMPLETED = "completed"
    ERROR = "error"
    TIMEOUT = "timeout"
    MAX_INTERACTIONS_REACHED = "max_interactions_reached"


class ConversationRecord(CoReasonBaseModel):
    """The seed's record of a conversation, with exactly the seed's keys. Times are UTC."""

    conversation_id: str
    state: ConversationState
    interaction_count: int
    max_interactions: int
    created_at: UtcDatetime
    last_interaction: UtcDatetime


class LineageMetadata(CoReasonBaseModel):
    """The origin of a turn: its root request and its parent interaction."""

    root_request_id: str | None = None
    parent_interaction_id: str | None = None


class AttachedFile(CoReasonBaseModel):
    """A file that belongs to a part of an input."""

    id: str
    mime_type: str | None = None


class ContentPart(CoReasonBaseModel):
    """One part of an input: text, files, or both."""

    text: str | None = None
    attachments: list[AttachedFile] = Field(default_factory=list)


class MultiModalInput(CoReasonBaseModel):
    """An input of several parts."""

    parts: list[ContentPart]


def _parse_multi_modal(value: Any) -> Any:
    # An agent's payload may have "parts" of its own. It is read as MultiModalInput only if nothing of it changes or gets lost.
    if not isinstance(value, dict) or value.keys() != {"parts"}:
        return value
    try:
        parsed = MultiModalInput.model_validate(value)
    except ValidationError:
        return value
    return parsed if value in (parsed.dump(), parsed.model_dump()) else value


class Interaction(CoReasonBaseModel):
    """The record of one turn: its request and its reply. `input` is any JSON value, or a MultiModalInput.

    A notification and a summary answer no request: their `input` is None. A dump leaves it out, as all that is None.
    """

    interaction_id: UUID = Field(default_factory=uuid4)
    timestamp: UtcDatetime = Field(default_factory=utc_now)
    input: Annotated[JsonValue | MultiModalInput, Field(union_mode="left_to_right"), BeforeValidator(_parse_multi_modal)] = None
    output: dict[str, Any] = Field(default_factory=dict)
    events: list[Any] = Field(default_factory=list)
    meta: dict[str, Any] = Field(default_factory=dict)
    lineage: LineageMetadata | None = None

    @property
    def id(self) -> UUID:
        """The id of the interaction, the same as `interaction_id`."""
        return self.interaction_id


class SessionState(CoReasonBaseModel):
    """The state of a session: its history, oldest turn first, and its variables. Times are UTC.

    A state never changes: `add_interaction` and `prune` return new states.
    """

    id: str = Field(default_factory=lambda: str(uuid4()))
    agent_id: str
    user_id: str
    created_at: UtcDatetime = Field(default_factory=utc_now)
    updated_at: UtcDatetime = Field(default_factory=utc_now)
    history: list[Interaction] = Field(default_factory=list)
    variables: dict[str, Any] = Field(default_factory=dict)

    def add_interaction(self, interaction: Interaction) -> Self:
        """Return a new state with this turn added at the end."""
        return self._with_history([*self.history, interaction])

    def prune(self, strategy: MemoryStrategy, limit: int) -> Self:
        """Return a new state with the turns that `strategy` leaves in the history (seed: Memory Governance).

        SLIDING_WINDOW leaves `history[-limit:]`, or nothing for a limit of 0 or less. All other strategies return this
        object: the runtime applies those that need a tokenizer, a model or an index. The result is deterministic. Raise
        ValueError if `strategy` is a text that names no strategy.
        """
        if MemoryStrategy(strategy) is not MemoryStrategy.SLIDING_WINDOW:
            return self
        return self._with_history(self.history[-limit:] if limit > 0 else self.history[:0])

    def _with_history(self, history: Sequence[Interaction]) -> Self:
        updated_at = utc_now()
        if updated_at <= self.updated_at:  # the clock stood still between two changes, or moved back
            updated_at = self.updated_at + timedelta(microseconds=1)
        # Turns are frozen and may be shared. A dict is not frozen, and a change in one state must not appear in another.
        changed = {"history": history, "updated_at": updated_at, "variables": dict(self.variables)}
        return self.model_copy(update=changed)
