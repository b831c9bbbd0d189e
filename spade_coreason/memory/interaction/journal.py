"""The journal of a memory file: later additions, one line of JSON each, with a checksum. Pure functions, no I/O.

The first line names the agent and the id of this journal. A fold line (`encode_fold`) holds the SHA-256 of a file that
contains everything above the line. If the memory file has this SHA-256, a fold was interrupted, and the lines above are
ignored.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic_core import to_json

from .format import JSON_STRING, LinesByConversation, decode_string

_ADDITION_LINE = re.compile(
    rb'(\{"conversation_id":(%b),"content":(%b),"timestamp":(%b)),"crc32":"([0-9a-f]{8})"\}\n'
    % (JSON_STRING, JSON_STRING, JSON_STRING)
)
_HEAD_OR_FOLD_LINE = re.compile(
    rb'(\{"(agent_id|folded)":(%b)(?:,"journal":%b)?),"crc32":"([0-9a-f]{8})"\}\n' % (JSON_STRING, JSON_STRING)
)

_ANY_LINE = re.compile(rb'(\{[^\n]*),"crc32":"([0-9a-f]{8})"\}\n')


def encode_addition(conversation_id: str, content: str, timestamp: str) -> bytes:
    """Encode the line of an addition."""
    return _encode_line({"conversation_id": conversation_id, "content": content, "timestamp": timestamp})


def encode_head(agent_id: str, journal_id: str) -> bytes:
    """Encode the first line of a journal."""
    return _encode_line({"agent_id": agent_id, "journal": journal_id})


def encode_fold(digest: str) -> bytes:
    """Encode the fold line, written before the file with this digest (SHA-256, hexadecimal) becomes the memory file."""
    return _encode_line({"folded": digest})


def _encode_line(record: Mapping[str, str]) -> bytes:
    body = to_json(record)[:-1]
    return b'%b,"crc32":"%08x"}\n' % (body, zlib.crc32(body))


@dataclass(slots=True)
class ParsedJournal:
    """The valid additions of a journal, and the position up to which its lines are complete."""

    end: int = 0
    head: bytes = b""
    lines_by_conversation: LinesByConversation = field(default_factory=dict)
    is_folded: bool = False
    """True if the memory file already contains the additions above a fold line."""


def parse_journal(data: bytes, agent_id: str, digest: str | None = None) -> ParsedJournal:
    """Parse a journal. `digest` is that of the memory file; it is needed if the journal has a fold line.

    An incomplete last line is left out, and `end` is the position before it. Raises ValueError for any other damage; the
    message continues a sentence that begins with the journal's name.
    """
    first = _HEAD_OR_FOLD_LINE.match(data)
    if first is None or not _is_checksum_right(first[1], first[4]):
        return _check_remainder(data, ParsedJournal())
    if first[2] != b"agent_id" or decode_string(first[3]) != agent_id:
        raise ValueError(f"is not the journal of the agent {agent_id!r}")
    return _parse_lines(data, ParsedJournal(first.end(), first[0]), digest)


def parse_appended(data: bytes) -> ParsedJournal:
    """Parse the lines after those that were read before. The memory file must be unchanged."""
    return _parse_lines(data, ParsedJournal(), None)


def _parse_lines(data: bytes, parsed: ParsedJournal, digest: str | None) -> ParsedJournal:
    names: dict[bytes, str] = {}
    match, size = _ADDITION_LINE.match, len(data)
    while parsed.end < size:
        line = match(data, parsed.end)
        if line is not None:
            body, name, content, timestamp, checksum = line.groups()
            if not _is_checksum_right(body, checksum):
                return _check_remainder(data, parsed)
            if (conversation_id := names.get(name)) is None:
                conversation_id = names[name] = decode_string(name)
            if (lines := parsed.lines_by_conversation.get(conversation_id)) is None:
                lines = parsed.lines_by_conversation[conversation_id] = bytearray()
            lines += b'{"content":%b,"timestamp":%b}\n' % (content, timestamp)
        else:
            line = _HEAD_OR_FOLD_LINE.match(data, parsed.end)
            if line is None or line[2] != b"folded" or not _is_checksum_right(line[1], line[4]):
                return _check_remainder(data, parsed)
            if decode_string(line[3]) == digest:
                parsed.lines_by_conversation, parsed.is_folded = {}, True
        parsed.end = line.end()
    return parsed


def _is_checksum_right(body: bytes, checksum: bytes) -> bool:
    return b"%08x" % zlib.crc32(body) == checksum


def _check_remainder(data: bytes, parsed: ParsedJournal) -> ParsedJournal:
    """Return `parsed` if the rest of `data` is an interrupted write; raise ValueError if it is damage.

    A killed process leaves an incomplete line with no complete line after it.
    """
    next_line = data.find(b"\n", parsed.end) + 1
    unknown = _ANY_LINE.fullmatch(data, parsed.end, next_line)
    if unknown is not None and _is_checksum_right(unknown[1], unknown[2]):
        raise ValueError(f"has a line of another version at byte {parsed.end}; update spade-coreason")
    if next_line and any(
        _is_checksum_right(line[1], line[line.re.groups])
        for pattern in (_ADDITION_LINE, _HEAD_OR_FOLD_LINE)
        for line in pattern.finditer(data, next_line)
    ):
        raise ValueError(f"is damaged at byte {parsed.end}, in the line that begins there")
    return parsed
