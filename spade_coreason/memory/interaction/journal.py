"""The journal of a memory file: what was added since the file was written, a line of JSON each, with a checksum. Pure.

The first line says whose it is and has an id of this journal. A line `folded` says that the file with this SHA-256 holds
everything above it: where the memory file is that one, a fold was interrupted, and what stands above counts no more.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic_core import to_json

from .format import STRING, Memories, text

_ADDED = re.compile(
    rb'(\{"conversation_id":(%b),"content":(%b),"timestamp":(%b)),"crc32":"([0-9a-f]{8})"\}\n' % (STRING, STRING, STRING)
)
_OTHER = re.compile(rb'(\{"(agent_id|folded)":(%b)(?:,"journal":%b)?),"crc32":"([0-9a-f]{8})"\}\n' % (STRING, STRING))

_ANY = re.compile(rb'(\{[^\n]*),"crc32":"([0-9a-f]{8})"\}\n')


def added(conversation_id: str, content: str, timestamp: str) -> bytes:
    """The line of an addition."""
    return _line({"conversation_id": conversation_id, "content": content, "timestamp": timestamp})


def head(agent_id: str, journal_id: str) -> bytes:
    """The first line of a journal."""
    return _line({"agent_id": agent_id, "journal": journal_id})


def folded(digest: str) -> bytes:
    """The line that stands there before the file with this digest (SHA-256, hexadecimal) takes its place."""
    return _line({"folded": digest})


def _line(record: Mapping[str, str]) -> bytes:
    body = to_json(record)[:-1]
    return b'%b,"crc32":"%08x"}\n' % (body, zlib.crc32(body))


@dataclass(slots=True)
class Read:
    """What was read: the additions that count, and up to where the lines are whole."""

    end: int = 0
    head: bytes = b""
    memories: Memories = field(default_factory=dict)
    is_folded: bool = False
    """Whether the memory file already holds what stands above one of the lines."""


def read(data: bytes, agent_id: str, digest: str | None = None) -> Read:
    """Reads a journal; `digest` is that of the memory file, needed where a line says `folded`.

    A last line that is not whole is left out: `end` lies before it. ValueError for anything else that is not as it was
    written; its text goes on where the journal's name ends.
    """
    first = _OTHER.match(data)
    if first is None or not _is_whole(first[1], first[4]):
        return _broken(data, Read())
    if first[2] != b"agent_id" or text(first[3]) != agent_id:
        raise ValueError(f"is no journal of the agent {agent_id!r}")
    return _lines(data, Read(first.end(), first[0]), digest)


def read_on(data: bytes) -> Read:
    """Reads what was added behind the lines that are known; the memory file is the same still."""
    return _lines(data, Read(), None)


def _lines(data: bytes, found: Read, digest: str | None) -> Read:
    names: dict[bytes, str] = {}
    match, size = _ADDED.match, len(data)
    while found.end < size:
        line = match(data, found.end)
        if line is not None:
            body, name, content, timestamp, checksum = line.groups()
            if not _is_whole(body, checksum):
                return _broken(data, found)
            if (conversation_id := names.get(name)) is None:
                conversation_id = names[name] = text(name)
            if (lines := found.memories.get(conversation_id)) is None:
                lines = found.memories[conversation_id] = bytearray()
            lines += b'{"content":%b,"timestamp":%b}\n' % (content, timestamp)
        else:
            line = _OTHER.match(data, found.end)
            if line is None or line[2] != b"folded" or not _is_whole(line[1], line[4]):
                return _broken(data, found)
            if text(line[3]) == digest:
                found.memories, found.is_folded = {}, True
        found.end = line.end()
    return found


def _is_whole(body: bytes, checksum: bytes) -> bool:
    return b"%08x" % zlib.crc32(body) == checksum


def _broken(data: bytes, found: Read) -> Read:
    """What is not whole is what a killed process left if nothing whole follows, and damage if something does."""
    next_line = data.find(b"\n", found.end) + 1
    unknown = _ANY.fullmatch(data, found.end, next_line)
    if unknown is not None and _is_whole(unknown[1], unknown[2]):
        raise ValueError(f"has a line of another version at byte {found.end}; update spade-coreason")
    if next_line and any(
        _is_whole(line[1], line[line.re.groups]) for pattern in (_ADDED, _OTHER) for line in pattern.finditer(data, next_line)
    ):
        raise ValueError(f"is damaged at byte {found.end}, in the line that begins there")
    return found
