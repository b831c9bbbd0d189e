"""Batches: several messages of ours to one recipient, as one message with a JSON array of all their CloudEvents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .elements import ANSWER_MARKER_XML
from .namespaces import JSON_NAMESPACE
from .xml import escape_attribute

BATCH_START = f"'><json xmlns='{JSON_NAMESPACE}'>["
"""The text that each message for a recipient that reads batches has, and no message for people."""
_ARRAY_END = "]</json>"


class BatchPart(NamedTuple):
    """The part of a message that goes into a batch."""

    stanza_id: str
    """The id of the message, as XML."""
    events: str
    """Its CloudEvents as XML, with commas between them."""
    is_reply: bool


def read_batch_part(stanza: str) -> BatchPart | None:
    """Return the part of a message that goes into a batch. None if its recipient may not read batches.

    A message for a recipient that reads them has an array already, be it of one event.
    """
    opening, start, rest = stanza.partition(BATCH_START)
    events, end, tail = rest.partition(_ARRAY_END)
    if not start or not end:
        return None
    return BatchPart(opening.rpartition("'")[2], events, ANSWER_MARKER_XML in tail)


def build_batch(to: str, parts: Sequence[BatchPart]) -> str:
    """Build the message for all parts, which are all of replies or all of requests.

    Its id is the ids of all requests with spaces between them, so that a bounce names them all; for replies it is the last id.
    """
    is_reply = parts[-1].is_reply
    stanza_id = parts[-1].stanza_id if is_reply else " ".join([part.stanza_id for part in parts])
    events = ",".join([part.events for part in parts])
    tail = ANSWER_MARKER_XML if is_reply else ""
    return f"<message to='{escape_attribute(to)}' id='{stanza_id}{BATCH_START}{events}{_ARRAY_END}{tail}</message>"
