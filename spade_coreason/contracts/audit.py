"""Entries of an audit trail, each with the hash of the one before it (seed: Agent Behavior Protocols, `EventSink.audit`)."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from uuid import UUID, uuid4

from pydantic import Field
from pydantic_core import from_json

from .base import CoReasonBaseModel, UtcDatetime
from .times import utc_now

GENESIS_HASH = "0" * 64
"""The `previous_hash` of the first entry of a trail."""


def compute_integrity_hash(entry: dict[str, Any]) -> str:
    """Compute the hash of an entry given as a JSON object, without regard to the `integrity_hash` in it.

    It is SHA-256 over the entry's JSON in UTF-8, with sorted keys and no spaces, as 64 hex digits.
    """
    rest = {name: value for name, value in entry.items() if name != "integrity_hash"}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


class AuditEntry(CoReasonBaseModel):
    """One action in an audit trail: an actor, an action, the resource it concerned and its outcome.

    `integrity_hash` is SHA-256 over the canonical JSON of the other fields, as 64 hex digits; `sealed()` fills it in.
    `previous_hash` is the hash of the entry before, or `GENESIS_HASH` for the first. `timestamp` is UTC.
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
        """Compute the hash that this entry must have."""
        # Through the JSON that is stored, so that the hash of an entry is the same when it is read again.
        return compute_integrity_hash(from_json(self.model_dump_json()))

    def sealed(self) -> AuditEntry:
        """Return the same entry with its hash filled in."""
        return self.model_copy(update={"integrity_hash": self.compute_hash()})

    @property
    def is_intact(self) -> bool:
        """True if nothing has changed since the entry was sealed."""
        return self.integrity_hash == self.compute_hash()
