"""The journal of a memory file: what was added since the file was written, a line of JSON each, with a checksum. Pure.

The first line says whose it is and has an id of this journal. A line `encode_fold` says that the file with this SHA-256 holds
everything above it: where the memory file is that one, a fold was interrupted, and what stands above counts no more.
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
    """The line of an addition."""
    return _encode_line({"conversation_id": conversation_id, "content": content, "timestamp": timestamp})


def encode_head(agent_id: str, journal_id: str) -> bytes:
    """The first line of a journal."""
    return _encode_line({"agent_id": agent_id, "journal": journal_id})


def encode_fold(digest: str) -> bytes:
    """The line that stands there before the file with this digest (SHA-256, hexadecimal) takes its place."""
    return _encode_line({"folded": digest})


def _encode_line(record: Mapping[str, str]) -> bytes:
    body = to_json(record)[:-1]
    return b'%b,"crc32":"%08x"}\n' % (body, zlib.crc32(body))


@dataclass(slots=True)
class ParsedJournal:
    """What was read: the additions that count, and up to where the lines are whole."""

    end: int = 0
    head: bytes = b""
    lines_by_conversation: LinesByConversation = field(default_factory=dict)
    is_folded: bool = False
    """Whether the memory file already holds what stands above one of the lines."""


def parse_journal(data: bytes, agent_id: str, digest: str | None = None) -> ParsedJournal:
    """Reads a journal; `digest` is that of the memory file, needed where a line says `encode_fold`.

    A last line that is not whole is left out: `end` lies before it. ValueError for anything else that is not as it was
    written; its text goes on where the journal's name ends.
    """
    first = _HEAD_OR_FOLD_LINE.match(data)
    if first is None or not _is_checksum_right(first[1], first[4]):
        return _check_remainder(data, ParsedJournal())
    if first[2] != b"agent_id" or decode_string(first[3]) != agent_id:
        raise ValueError(f"is no journal of the agent {agent_id!r}")
    return _parse_lines(data, ParsedJournal(first.end(), first[0]), digest)


def parse_appended(data: bytes) -> ParsedJournal:
    """Reads what was added behind the lines that are known; the memory file is the same still."""
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
    """What is not whole is what a killed process left if nothing whole follows, and damage if something does."""
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
