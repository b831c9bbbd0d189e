"""Who somebody is (seed: Active Memory Interface, `SessionHandle.identity`)."""

from __future__ import annotations

from .base import CoReasonBaseModel


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
