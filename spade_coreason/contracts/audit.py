"""One entry of an audit trail, which names the one before it (seed: Agent Behavior Protocols, `EventSink.audit`)."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from uuid import UUID, uuid4

from pydantic import Field
from pydantic_core import from_json

from .base import CoReasonBaseModel, UtcDatetime, utc_now

GENESIS_HASH = "0" * 64


def compute_integrity_hash(entry: dict[str, Any]) -> str:
    """What an entry, as its JSON, must have: SHA-256 in hex over the rest as JSON in UTF-8, with sorted keys and no spaces."""
    rest = {name: value for name, value in entry.items() if name != "integrity_hash"}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


class AuditEntry(CoReasonBaseModel):
    """Who did what to what. `compute_integrity_hash` is SHA-256 over the canonical JSON of the rest, 64 hex digits.

    `sealed()` gives an entry its hash. `previous_hash` is that of the entry before, `GENESIS_HASH` for the first.
    """

    id: UUID = Field(default_factory=uuid4)
    request_id: UUID | None = None
    root_request_id: UUID | None = None
    timestamp: UtcDatetime = Field(default_factory=utc_now)
    actor: str
    action: str
    resource: str
    outcome: str
    safety_metadata: dict[str, Any] | None = None
    previous_hash: str = GENESIS_HASH
    integrity_hash: str = ""

    def compute_hash(self) -> str:
        """The hash that this entry must have."""
        # Through the JSON that is stored, so that the hash of an entry is the same when it is read again.
        return compute_integrity_hash(from_json(self.model_dump_json()))

    def sealed(self) -> AuditEntry:
        """The same entry with its hash."""
        return self.model_copy(update={"integrity_hash": self.compute_hash()})

    @property
    def is_intact(self) -> bool:
        """Whether nothing was changed since it was sealed."""
        return self.integrity_hash == self.compute_hash()
