"""Stanza to request, events to stanza: pure, in both directions."""

from .archive import Archived, Page, archive_id, archive_query, is_sent_to, newest_query, read_archived, read_page
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
from .room_presence import Seen, joining, leaving, read_presence, self_ping, unlocking
from .rooms import Invitation, Utterance, private_request, question_to, read_invitation, read_utterance, room_request
from .voices import Voice, displayed, malformed_answer, receipt, request_stanza, voice_for
from .xml import printable

__all__ = [
    "RESERVED",
    "Archived",
    "Bounce",
    "Completed",
    "Decoded",
    "Failed",
    "Incoming",
    "Invitation",
    "Malformed",
    "Page",
    "Reaction",
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
    "archive_id",
    "archive_query",
    "decode",
    "displayed",
    "is_link",
    "is_sent_to",
    "joining",
    "leaving",
    "malformed_answer",
    "name_in",
    "newest_query",
    "owner_of",
    "plain_name",
    "printable",
    "private_request",
    "question_to",
    "read_archived",
    "read_invitation",
    "read_page",
    "read_presence",
    "read_utterance",
    "receipt",
    "request_stanza",
    "room_request",
    "self_ping",
    "unlocking",
    "voice_for",
]
