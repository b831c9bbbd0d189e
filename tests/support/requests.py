"""Requests as they come to the runner, without a stanza."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from spade_coreason.domain.channel_kinds import PERSON, ChannelKind
from spade_coreason.domain.messages import InboundRequest


def build_incoming(
    text: str,
    owner: str,
    kind: ChannelKind = PERSON,
    *,
    stanza_id: str | None = None,
    thread: str | None = "t",
    device: str = "x",
    **fields: Any,
) -> InboundRequest:
    """Make the request of a sender (a bare JID) with a text, by default with a new id. `fields` are others of the request."""
    sender, given_id = f"{owner}/{device}", str(uuid4()) if stanza_id is None else stanza_id
    return InboundRequest(kind, sender, given_id, thread, {"query": text}, fields.pop("content", text), owner=owner, **fields)
