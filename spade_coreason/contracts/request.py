"""A request with its lineage and its sender (seed: Session Management, Agent Request)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Self
from uuid import UUID, uuid4

from pydantic import Field, model_validator

from .base import CoReasonBaseModel, UtcDatetime
from .times import utc_now


class Identity(CoReasonBaseModel):
    """A person or an agent. In this project `id` is a bare JID, and `role` is "user" or "agent"."""

    id: str
    name: str
    role: str | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.id})"

    @classmethod
    def anonymous(cls) -> Identity:
        """Return the identity of an unknown user."""
        return cls(id="anonymous", name="Anonymous User", role="user")


_LINEAGE = frozenset({"session_id", "root_request_id", "parent_request_id"})


class ClientCapabilities(CoReasonBaseModel):
    """The features that the sender of a request can display."""

    supported_events: list[str] = Field(default_factory=list)
    prefers_markdown: bool = True
    image_resolution: str | None = None


class AgentRequest(CoReasonBaseModel):
    """One request to an agent.

    `payload` is any JSON object; for a person's message it is `{"query": text}`. A request without a root is its own root.
    A parent without a root is a ValueError. Times are UTC.
    """

    request_id: UUID = Field(default_factory=uuid4)
    session_id: UUID
    root_request_id: UUID | None = None
    parent_request_id: UUID | None = None
    created_at: UtcDatetime = Field(default_factory=utc_now)
    payload: dict[str, Any]
    capabilities: ClientCapabilities | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _require_session(cls, values: Any) -> Any:
        if isinstance(values, dict) and "session_id" not in values:
            raise ValueError(
                "session_id is missing; to ask an agent, pass the payload itself, a mapping, in place of a request"
            )
        return values

    # A request is built for every message, and this costs less than a validator of the whole model.
    def model_post_init(self, context: Any, /) -> None:
        """Complete the lineage. Raise ValueError if it has a parent without a root."""
        if self.root_request_id is None:
            if self.parent_request_id is not None:
                raise ValueError("Broken Trace: Root ID missing while Parent ID is present")
            self.__dict__["root_request_id"] = self.request_id

    @property
    def timestamp(self) -> datetime:
        """The time of the request in UTC, the same as `created_at`."""
        return self.created_at

    def create_child(self, payload: dict[str, Any], **fields: Any) -> Self:
        """Build a request on behalf of this one: same session and root, with this one as its parent.

        `fields` are further fields of the child (`metadata`, …). Raise TypeError for fields of its lineage.
        """
        if given := sorted(_LINEAGE & fields.keys()):
            raise TypeError(f"a child takes its {' and '.join(given)} from its parent; do not pass it")
        return type(self)(
            session_id=self.session_id,
            root_request_id=self.root_request_id,
            parent_request_id=self.request_id,
            payload=payload,
            **fields,
        )
