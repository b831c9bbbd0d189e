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
from .markdown import styled
from .rendering import block_text
from .room_presence import Seen, joining, leaving, read_presence, unlocking
from .rooms import (
    Invitation,
    Reference,
    Utterance,
    private_request,
    question_to,
    read_invitation,
    read_reference,
    read_utterance,
    room_request,
)
from .voices import Voice, displayed, malformed_answer, notice, receipt, request_stanza, voice_for
from .xml import printable, summary

__all__ = [
    "RESERVED",
    "Bounce",
    "Completed",
    "Decoded",
    "Failed",
    "Incoming",
    "Invitation",
    "Malformed",
    "Reaction",
    "Reference",
    "Refused",
    "Reply",
    "Retraction",
    "Said",
    "Seen",
    "StreamAborted",
    "StreamChunk",
    "StreamEnded",
    "StreamStarted",
    "TurnEvent",
    "Utterance",
    "Voice",
    "block_text",
    "decode",
    "displayed",
    "is_link",
    "joining",
    "leaving",
    "malformed_answer",
    "name_in",
    "notice",
    "owner_of",
    "plain_name",
    "printable",
    "private_request",
    "question_to",
    "read_invitation",
    "read_presence",
    "read_reference",
    "read_utterance",
    "receipt",
    "request_stanza",
    "room_request",
    "styled",
    "summary",
    "unlocking",
    "voice_for",
]
