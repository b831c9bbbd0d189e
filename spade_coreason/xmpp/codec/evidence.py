"""The evidence that tells a message from another one with the same id and content (XEP-0203, XEP-0359)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple
from xml.etree.ElementTree import Element

from ...domain.duplicates import MIN_ORIGIN_ID_CHARACTERS, Evidence
from ...domain.messages import MAX_ID_CHARACTERS
from .namespaces import DELAY, ORIGIN_ID, STANZA_ID

EVIDENCE_TAGS = frozenset({DELAY, ORIGIN_ID, STANZA_ID})
"""The elements that are evidence. Without one of them there is none."""


class Receiver(NamedTuple):
    """The account to which messages come."""

    jid: str = ""
    """Its bare JID."""
    acknowledged: tuple[int, int] = (0, 0)
    """A time (from, to) in which everything that was received has been acknowledged for good: the last session before a clean
    stop. Microseconds since 1970.
    """


ANY_RECEIVER = Receiver()


def read_id(element: Element | None) -> str:
    """Return the `id` of an element of a message; "" without one, or if it is too long."""
    found = element.get("id", "") if element is not None else ""
    return found if len(found) <= MAX_ID_CHARACTERS else ""


def assigned_id(message: Element, by: str) -> str:
    """Return the id that `by` (a bare JID: our account, or a room) has assigned to a message; "" without one.

    The last one counts. A sender can write others before it, and a server without an archive leaves them there.
    """
    last = None
    for entry in message.iterfind(STANZA_ID):
        if entry.get("by") == by:
            last = entry
    return read_id(last)


def read_evidence(message: Element, receiver: Receiver) -> Evidence:
    """Read the evidence of a message to `receiver`: our account, or a room."""
    origin_id = read_id(message.find(ORIGIN_ID))
    stored_at = min((time for delay in message.iterfind(DELAY) if (time := read_delay(delay)) is not None), default=None)
    server_id = assigned_id(message, receiver.jid)
    return Evidence(
        server_id,
        origin_id if len(origin_id) >= MIN_ORIGIN_ID_CHARACTERS else "",
        stored_at,
        receiver.acknowledged if stored_at is not None and not server_id else (0, 0),  # an archive has them all
    )


def read_delay(delay: Element) -> int | None:
    """Read the time of a `<delay/>` (XEP-0203), in microseconds since 1970. None if it has none."""
    try:
        stamp = datetime.fromisoformat(delay.get("stamp", ""))
        return round((stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp() * 1_000_000)
    except (ValueError, OverflowError):
        return None
