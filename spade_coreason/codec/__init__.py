"""Stanza to request, events to stanza: pure, in both directions."""

from .attachments import is_link, name_in, plain_name
from .events import (
    Completed,
    Failed,
    Refused,
    Said,
    StreamAborted,
    StreamChunk,
    StreamEnded,
    StreamStarted,
    TurnEvent,
)
from .incoming import RESERVED, Bounce, Decoded, Incoming, Malformed, Reaction, Reply, Retraction, decode, owner_of
from .voices import Voice, displayed, malformed_answer, receipt, request_stanza, voice_for
from .xml import printable

__all__ = [
    "RESERVED",
    "Bounce",
    "Completed",
    "Decoded",
    "Failed",
    "Incoming",
    "Malformed",
    "Reaction",
    "Refused",
    "Reply",
    "Retraction",
    "Said",
    "StreamAborted",
    "StreamChunk",
    "StreamEnded",
    "StreamStarted",
    "TurnEvent",
    "Voice",
    "decode",
    "displayed",
    "is_link",
    "malformed_answer",
    "name_in",
    "owner_of",
    "plain_name",
    "printable",
    "receipt",
    "request_stanza",
    "voice_for",
]
