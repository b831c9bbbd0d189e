"""Questions to people, as authors read them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class QuestionState(StrEnum):
    """The state of a question or an approval."""

    OPEN = "open"
    """It waits for an answer."""
    ANSWERED = "answered"
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    """No one answered in time."""
    ENDED = "ended"
    """The request that asked was taken back."""


@dataclass(frozen=True, slots=True)
class PersonAnswer:
    """The answer of a person to `Response.ask_person`."""

    text: str
    """The answer as text: a choice as it was offered, or what the person wrote."""
    person: str
    """The bare JID of the person who answered."""
    answered_at: datetime
    value: Any = None
    """The answer as a JSON value that fits the schema; None without a schema."""
