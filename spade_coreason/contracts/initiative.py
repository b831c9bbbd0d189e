"""The initiative of an agent, as authors read it: notifications and schedules."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, TypeAlias

Missed: TypeAlias = Literal["once", "skip"]
"""The rule for times that were missed: they run once as soon as the agent can, or not at all.

They were missed while the platform was down, the agent was paused, or an earlier turn had not ended.
"""


class NotificationState(StrEnum):
    """The state of a notification."""

    WAITING = "waiting"
    """It is stored, and not sent yet."""
    SENT = "sent"
    """The server of the agent has it (XEP-0198). Without stream management: it was written to the connection."""
    BOUNCED = "bounced"
    """It came back: the server of the person, or the room, refuses it. That may be after `SENT`."""
    FAILED = "failed"
    """It came back five times with an error that asks to try again later, or it cannot be shown."""
    REFUSED = "refused"
    """The person has no access, has switched notifications off, or had `notifications.per_day` of them."""


@dataclass(frozen=True, slots=True)
class Notification:
    """A text or blocks that an agent sends without being asked: to whom, and what became of it.

    It can be read for seven days after `changed_at`.
    """

    id: str
    """The id: a UUID as text. The ids of its messages begin with it."""
    person: str
    """The bare JID of the person or the room."""
    thread: str | None
    """The thread of the conversation in which it appears."""
    state: NotificationState
    reason: str
    """One line: why it is in its state, and what to do; "" if it waits or is sent."""
    attempts: int
    """The number of times that it was sent."""
    created_at: datetime
    due_at: datetime
    """The time at which it is sent, while it waits."""
    changed_at: datetime
    """The time at which it came into its state."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule: what is due when, and in which conversation."""

    id: str
    """The id: a UUID as text."""
    kind: str
    """The kind: "every" (`@every`), "reminder" (`session.remind`) or "job" (`session.later`)."""
    owner: str
    """The bare JID of the person, the room or the agent in whose conversation it is due."""
    thread: str | None
    """The thread of that conversation."""
    payload: dict[str, Any]
    """The payload of its requests."""
    cron: str
    """The times at which it repeats; "" for a time that comes once."""
    zone: str
    """The time zone of `cron`, an IANA name."""
    missed: Missed
    state: str
    """The state: "waiting" or "suspended"."""
    reason: str
    """One line: why it is suspended, and what to do."""
    created_at: datetime
    due_at: datetime
    """The time at which it is due next."""
