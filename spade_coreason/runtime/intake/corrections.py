"""Corrections of questions (XEP-0308): which version is the latest, and by which ids it is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...domain.messages import InboundRequest


def inherit(correction: InboundRequest, earlier: InboundRequest) -> InboundRequest:
    """Return a correction with what it has from the version that it replaces: the first ids, and the thread if it has none.

    Clients name the first version in every correction, as XEP-0308 demands, or the version before. So a correction is known
    by the ids of both.
    """
    first_ids = (earlier.replaces or earlier.message_ids)[-2:]
    ids = tuple(dict.fromkeys((*correction.replaces, *first_ids)))
    return replace(correction, replaces=ids, thread=correction.thread or earlier.thread)


def find_replaced(requests: Mapping[int, InboundRequest]) -> set[int]:
    """Return the rows of the requests that a later one replaces. `requests` are those of one agent by row, oldest first."""
    latest: dict[tuple[str, str, str], int] = {}
    replaced = set()
    for row, request in requests.items():
        for message_id in request.replaces:
            earlier = latest.get((request.owner, request.author, message_id))
            if earlier is not None:
                replaced.add(earlier)
        for message_id in request.message_ids:
            latest[request.owner, request.author, message_id] = row
    return replaced
