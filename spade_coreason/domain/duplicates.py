"""The rule by which a message is a copy of an earlier one with the same id and content: no clock, no I/O.

An id alone proves nothing: many clients number their messages from 1 at each start.
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic_core import from_json, to_json

MIN_ORIGIN_ID_CHARACTERS = 16
"""The length from which an origin id counts as unique. Shorter ones may be numbers, like the ids of stanzas."""

CLOCK_MARGIN = 60_000_000
"""The largest difference between the clock of a server and ours, in microseconds."""

_DUMPED = 3
"""The number of the fields of `Evidence` that are stored: the first ones."""


class Evidence(NamedTuple):
    """The origin of a message, as it says itself. Times are microseconds since 1970."""

    server_id: str = ""
    """The id that the server of the agent, or the room, gave to the message (XEP-0359); "" without one."""
    origin_id: str = ""
    """The unique id that its sender gave it (XEP-0359); "" without one."""
    stored_at: int | None = None
    """The earliest time at which it was stored on its way (XEP-0203), by the clock that says so; None for a live message."""
    acknowledged: tuple[int, int] = (0, 0)
    """A time (from, to) in which everything that was received has been acknowledged for good. None of it comes again."""
    is_replay: bool = False
    """True if the server repeats it because it was received and not acknowledged (XEP-0198)."""

    def dump(self) -> str:
        """Return the part that `load` reads, as text; "" for nearly every message."""
        known = self[:_DUMPED]
        return to_json(known).decode() if known != NO_EVIDENCE[:_DUMPED] else ""

    @classmethod
    def load(cls, text: str) -> Evidence:
        """Read the text that `dump` has returned. What only a newer version writes is ignored."""
        return cls(*from_json(text)[:_DUMPED]) if text else NO_EVIDENCE


NO_EVIDENCE = Evidence()


def is_copy(later: Evidence, earlier: Evidence, earlier_received_at: int) -> bool:
    """Return True if of two messages with the same id and content the later one is a copy of the earlier one."""
    if later.origin_id and later.origin_id == earlier.origin_id:
        return True
    if later.server_id and earlier.server_id:
        return later.server_id == earlier.server_id
    if later.is_replay:
        return True
    if later.stored_at is None:
        return False
    if earlier.stored_at is not None:
        return later.stored_at == earlier.stored_at
    if later.acknowledged[0] <= earlier_received_at < later.acknowledged[1]:
        return False
    return earlier_received_at >= later.stored_at - CLOCK_MARGIN
