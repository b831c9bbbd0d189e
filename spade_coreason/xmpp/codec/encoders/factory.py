"""The encoder for the channel of a request."""

from __future__ import annotations

from uuid import UUID

from ....domain.messages import InboundRequest
from ....runtime import PLAIN_PRESENTATION, PresentationOptions
from .base import ReplyEncoder
from .chat import ChatEncoder, GroupchatEncoder
from .program import CloudEventEncoder
from .spade import SpadeEncoder


def encoder_for(
    incoming: InboundRequest, key: UUID, agent: str, stanza_bytes: int, options: PresentationOptions = PLAIN_PRESENTATION
) -> ReplyEncoder:
    """Return the encoder for replies to `incoming`, which was sent to the bare JID `agent`.

    None of its stanzas exceeds `stanza_bytes`. `options` apply to replies to a person.
    """
    if incoming.channel == "program":
        return CloudEventEncoder(incoming, key, agent, stanza_bytes)
    if incoming.channel == "spade":
        return SpadeEncoder(incoming, key, stanza_bytes)
    if incoming.channel == "room":
        return GroupchatEncoder(incoming, key, stanza_bytes)
    return ChatEncoder(incoming, key, stanza_bytes, options)
