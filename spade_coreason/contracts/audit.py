"""One entry of an audit trail, which names the one before it."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from pydantic import Field

from .base import CoReasonBaseModel, utc_now

GENESIS_HASH = "0" * 64


class AuditEntry(CoReasonBaseModel):
    """Who did what to what. `integrity_hash` is SHA-256 over the canonical JSON of the rest."""

    id: UUID = Field(default_factory=uuid4)
    request_id: UUID | None = None
    root_request_id: UUID | None = None
    timestamp: datetime = Field(default_factory=utc_now)
    actor: str
    action: str
    resource: str
    outcome: str
    safety_metadata: dict[str, Any] | None = None
    previous_hash: str = GENESIS_HASH
    integrity_hash: str = ""

    def compute_hash(self) -> str:
        """The hash that this entry must have."""
        rest = self.model_dump(mode="json", exclude={"integrity_hash"})
        canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def sealed(self) -> AuditEntry:
        """The same entry with its hash."""
        return self.model_copy(update={"integrity_hash": self.compute_hash()})

    @property
    def is_intact(self) -> bool:
        """Whether nothing was changed since it was sealed."""
        return self.integrity_hash == self.compute_hash()
