"""Stanza to request, events to stanza: pure, in both directions."""

from .archive import Archived, Page, archive_id, archive_query, is_sent_to, newest_query, read_archived, read_page
from .asides import displayed, notice, receipt
from .attachments import is_link, name_in, plain_name
from .cloud_events import request_stanza, retraction_stanza
from .decoding import decode
from .events import (
    Completed,
    Failed,
    Refused,
    Said,
    SaidText,
    StreamAborted,
    StreamChunk,
    StreamEnded,
    StreamStarted,
    TurnEvent,
    named,
)
from .incoming import COMMAND, RESERVED, Bounce, Decoded, Incoming, Malformed, Reaction, Reply, Retraction, owner_of
from .manner import Manner
from .markdown import styled
from .program_voice import malformed_answer
from .rendering import block_text
from .room_presence import Seen, joining, leaving, read_presence, self_ping, unlocking
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
from .voices import Voice, voice_for
from .xml import printable, summary

__all__ = [
    "COMMAND",
    "RESERVED",
    "Archived",
    "Bounce",
    "Completed",
    "Decoded",
    "Failed",
    "Incoming",
    "Invitation",
    "Malformed",
    "Manner",
    "Page",
    "Reaction",
    "Reference",
    "Refused",
    "Reply",
    "Retraction",
    "Said",
    "SaidText",
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
    "block_text",
    "decode",
    "displayed",
    "is_link",
    "is_sent_to",
    "joining",
    "leaving",
    "malformed_answer",
    "name_in",
    "named",
    "newest_query",
    "notice",
    "owner_of",
    "plain_name",
    "printable",
    "private_request",
    "question_to",
    "read_archived",
    "read_invitation",
    "read_page",
    "read_presence",
    "read_reference",
    "read_utterance",
    "receipt",
    "request_stanza",
    "retraction_stanza",
    "room_request",
    "self_ping",
    "styled",
    "summary",
    "unlocking",
    "voice_for",
]
