"""The evidence that tells a message from another one with the same id and content (XEP-0203, XEP-0359)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple
from xml.etree.ElementTree import Element

from ...domain.duplicates import MIN_ORIGIN_ID_CHARACTERS, Evidence
from ...domain.jid import jid_domain
from ...domain.messages import MAX_ID_CHARACTERS
from .namespaces import DELAY, ORIGIN_ID, STANZA_ID

EVIDENCE_TAGS = frozenset({DELAY, ORIGIN_ID, STANZA_ID})
"""The elements that are evidence. Without one of them there is none."""

_KNOWN_CLOCK_MARGIN = 2_000_000
"""Some servers say their time in whole seconds."""

_FOREIGN_CLOCK_MARGIN = 60_000_000


class Receiver(NamedTuple):
    """The account to which messages come: its bare JID, and how far the clock of its server is ahead of ours."""

    jid: str = ""
    clock_offset: int | None = None
    """In microseconds; None if the server has not said its time."""


ANY_RECEIVER = Receiver()


def assigned_id(message: Element, by: str) -> str:
    """Return the id that `by` (a bare JID: our account, or a room) has assigned to a message; "" without one.

    The last one counts. A sender can write others before it, and a server without an archive leaves them there.
    """
    last = ""
    for entry in message.iterfind(STANZA_ID):
        if entry.get("by") == by:
            last = entry.get("id", "")
    return last if len(last) <= MAX_ID_CHARACTERS else ""


def read_evidence(message: Element, receiver: Receiver) -> Evidence:
    """Read the evidence of a message to `receiver`: our account, or a room."""
    origin_id = message.find(ORIGIN_ID)
    unique_id = origin_id.get("id", "") if origin_id is not None else ""
    delayed_since, earliest_reception = None, 0
    for delay in message.iterfind(DELAY):
        time = read_delay(delay)
        if time is not None and (delayed_since is None or time < delayed_since):
            delayed_since, earliest_reception = time, time - _FOREIGN_CLOCK_MARGIN
            source, domain = delay.get("from"), jid_domain(receiver.jid)
            if receiver.clock_offset is not None and (source is None or jid_domain(source) == domain):
                earliest_reception = time - receiver.clock_offset - _KNOWN_CLOCK_MARGIN
    return Evidence(
        assigned_id(message, receiver.jid),
        unique_id if MIN_ORIGIN_ID_CHARACTERS <= len(unique_id) <= MAX_ID_CHARACTERS else "",
        delayed_since,
        earliest_reception,
    )


def read_delay(delay: Element) -> int | None:
    """Read the time of a `<delay/>` (XEP-0203), in microseconds since 1970. None if it has none."""
    return read_time(delay.get("stamp", ""))


def read_time(text: str) -> int | None:
    """Read a date with a time (XEP-0082), in microseconds since 1970. None if it is none."""
    try:
        stamp = datetime.fromisoformat(text)
        return round((stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp() * 1_000_000)
    except (ValueError, OverflowError):
        return None
