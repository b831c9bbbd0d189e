"""The envelope of a request, with its lineage (seed: Session Management, Agent Request)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Self
from uuid import UUID, uuid4

from pydantic import Field

from .base import CoReasonBaseModel, UtcDatetime, utc_now


class Identity(CoReasonBaseModel):
    """A person or an agent. `id` is a bare JID here, `role` "user" or "agent"."""

    id: str
    name: str
    role: str | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.id})"

    @classmethod
    def anonymous(cls) -> Identity:
        """Nobody in particular."""
        return cls(id="anonymous", name="Anonymous User", role="user")


_LINEAGE = frozenset({"session_id", "root_request_id", "parent_request_id"})


class ClientCapabilities(CoReasonBaseModel):
    """What the other side can show."""

    supported_events: list[str] = Field(default_factory=list)
    prefers_markdown: bool = True
    image_resolution: str | None = None


class AgentRequest(CoReasonBaseModel):
    """One request to an agent.

    `payload` is free; of a person's message it is `{"query": text}`. Without a root the request is its own root; a parent
    without a root is a `ValueError`. Times are UTC.
    """

    request_id: UUID = Field(default_factory=uuid4)
    session_id: UUID
    root_request_id: UUID | None = None
    parent_request_id: UUID | None = None
    created_at: UtcDatetime = Field(default_factory=utc_now)
    payload: dict[str, Any]
    capabilities: ClientCapabilities | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)

    # One is made for every message; this costs less than a validator of the whole model.
    def model_post_init(self, context: Any, /) -> None:
        """Completes the lineage, or says that it is broken."""
        if self.root_request_id is None:
            if self.parent_request_id is not None:
                raise ValueError("Broken Trace: Root ID missing while Parent ID is present")
            self.__dict__["root_request_id"] = self.request_id

    @property
    def timestamp(self) -> datetime:
        """The same as `created_at`."""
        return self.created_at

    def create_child(self, payload: dict[str, Any], **fields: Any) -> Self:
        """A request made on behalf of this one: same session and root, this one as its parent.

        `fields` are further ones of the child (`metadata`, …); those of its lineage are a `TypeError`.
        """
        if given := sorted(_LINEAGE & fields.keys()):
            raise TypeError(f"a child takes its {' and '.join(given)} from its parent; leave it out")
        return type(self)(
            session_id=self.session_id,
            root_request_id=self.root_request_id,
            parent_request_id=self.request_id,
            payload=payload,
            **fields,
        )
