"""The timeouts and intervals of an XMPP connection."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConnectionTimings:
    """Timeouts and intervals in seconds. No configuration sets them: the defaults suit production, and tests shorten them."""

    keepalive_interval_s: float = 120.0
    """The silence after which a server is asked for an acknowledgement. The system's own keepalive (TCP) is more frequent."""
    response_timeout_s: float = 30.0
    """The wait for a reply from a server that was asked. Then the connection is cut."""
    renewal_delay_s: float = 5.0
    """The delay before a new session after a received message could not be stored."""
    stable_session_s: float = 10.0
    """A session that ends sooner makes the next delay before a reconnection longer."""
    resumption_wait_s: float = 3.0
    """The wait of a resumption for messages that are being stored. The rest is delivered again, and recognised by its ids."""
    archive_position_interval_s: float = 5.0
    """The shortest interval between two writes of the position in the archive."""
    presence_interval_s: float = 5.0
    """The shortest interval between two automatic changes of the presence."""


DEFAULT_TIMINGS = ConnectionTimings()
