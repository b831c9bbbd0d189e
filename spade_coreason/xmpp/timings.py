"""How long one XMPP connection waits, and when it tries again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConnectionTimings:
    """Waits that no configuration sets, all in seconds; the defaults are right in production, and tests shorten them."""

    pulse_s: float = 60.0
    """An idle server is asked for a sign of life at this interval."""
    silence_s: float = 30.0
    """A server that was asked and says nothing for this long is given up."""
    renew_s: float = 5.0
    """After something that came in could not be stored, a new session begins."""
    steady_s: float = 10.0
    """A session that ends sooner makes the next wait longer."""
    durable_s: float = 3.0
    """A resumption waits this long for what is being stored; what takes longer comes again, and is known by its id."""
    archive_place_s: float = 5.0
    """The place in the archive is stored at this interval at most."""
    presence_s: float = 5.0
    """The presence changes by itself at this interval at most."""


USUAL = ConnectionTimings()
