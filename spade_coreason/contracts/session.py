"""The passive state of a session: immutable, every change a new value (seed: Session Management)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from pydantic import Field, JsonValue

from .base import CoReasonBaseModel, utc_now
from .memory import MemoryStrategy


class LineageMetadata(CoReasonBaseModel):
    """Where a turn comes from."""

    root_request_id: str | None = None
    parent_interaction_id: str | None = None


class AttachedFile(CoReasonBaseModel):
    """A file that belongs to a part of an input."""

    id: str
    mime_type: str | None = None


class ContentPart(CoReasonBaseModel):
    """One part of an input: text, files, or both."""

    text: str | None = None
    attachments: list[AttachedFile] = []


class MultiModalInput(CoReasonBaseModel):
    """An input of several parts."""

    parts: list[ContentPart]


class Interaction(CoReasonBaseModel):
    """One turn: what was asked and what was answered."""

    interaction_id: UUID = Field(default_factory=uuid4)
    timestamp: datetime = Field(default_factory=utc_now)
    input: MultiModalInput | JsonValue
    output: dict[str, Any] = Field(default_factory=dict)
    events: list[Any] = Field(default_factory=list)
    meta: dict[str, Any] = Field(default_factory=dict)
    lineage: LineageMetadata | None = None

    @property
    def id(self) -> UUID:
        """The same as `interaction_id`."""
        return self.interaction_id


class SessionState(CoReasonBaseModel):
    """What is known of a session. Never changed: `add_interaction` and `prune` return new states."""

    id: str = Field(default_factory=lambda: str(uuid4()))
    agent_id: str
    user_id: str
    created_at: datetime = Field(default_factory=utc_now)
    updated_at: datetime = Field(default_factory=utc_now)
    history: list[Interaction] = Field(default_factory=list)
    variables: dict[str, Any] = Field(default_factory=dict)

    def add_interaction(self, interaction: Interaction) -> SessionState:
        """A new state with one turn more."""
        return self._with_history([*self.history, interaction])

    def prune(self, strategy: MemoryStrategy, limit: int) -> SessionState:
        """A new state with the history that `strategy` keeps; deterministic (seed: Memory Governance).

        ALL returns this object; SLIDING_WINDOW keeps `history[-limit:]`, nothing for a limit of 0 or less. The strategies
        that need a tokenizer, a model or an index are applied by the engine and change nothing here.
        """
        if strategy is not MemoryStrategy.SLIDING_WINDOW:
            return self
        return self._with_history(self.history[-limit:] if limit > 0 else [])

    def _with_history(self, history: list[Interaction]) -> SessionState:
        # Strictly later, also where the clock did not move between two changes.
        updated_at = max(utc_now(), self.updated_at + timedelta(microseconds=1))
        return self.model_copy(update={"history": history, "updated_at": updated_at})
