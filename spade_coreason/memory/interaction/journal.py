"""The journal of a memory file: later additions, one line of JSON each, with a checksum. Pure functions, no I/O.

The first line names the agent. Each other line has an entry and its place among the entries of its conversation, from 0.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

from pydantic_core import to_json

from .format import JSON_STRING, decode_string

_CHECKSUM = rb',"crc32":"([0-9a-f]{8})"\}\n'
_LINE = re.compile(
    rb'(\{"at":(\d+),"conversation_id":(%b),("content":%b,"timestamp":%b))%b'
    % (JSON_STRING, JSON_STRING, JSON_STRING, _CHECKSUM)
)
_ANY_LINE = re.compile(rb"(?m)^(\{[^\n]*)" + _CHECKSUM)


def encode_head(agent_id: str) -> bytes:
    """Encode the first line of a journal."""
    return _encode_line(b'{"journal_of":%b' % to_json(agent_id))


def encode_addition(conversation_id: str, place: int, line: bytes) -> bytes:
    """Encode the line of an addition. `line` is that of `format.encode_entry`."""
    return _encode_line(b'{"at":%d,"conversation_id":%b,%b' % (place, to_json(conversation_id), line[1:-2]))


def _encode_line(body: bytes) -> bytes:
    return b'%b,"crc32":"%08x"}\n' % (body, zlib.crc32(body))


def parse_lines(data: bytes, end: int) -> Iterator[tuple[str, int, bytes, int]]:
    """Yield conversation, place and line of each addition, and the position after it. `end` is the position of the first.

    Raise ValueError as `check_rest` does.
    """
    names: dict[bytes, str] = {}
    while (match := _LINE.match(data, end)) is not None:
        body, place, name, entry, checksum = match.groups()
        if not is_intact(body, checksum):
            break
        if (conversation_id := names.get(name)) is None:
            conversation_id = names[name] = decode_string(name)
        end = match.end()
        yield conversation_id, int(place), b"{%b}\n" % entry, end
    check_rest(data, end)


def is_intact(body: bytes, checksum: bytes) -> bool:
    """Return True if a line has the checksum of its text before it."""
    return b"%08x" % zlib.crc32(body) == checksum


def check_rest(data: bytes, end: int) -> None:
    """Raise ValueError unless what begins at `end` is an interrupted write: no complete line, and none after it.

    The message continues a sentence that begins with the journal's name.
    """
    found = next((line.start() for line in _ANY_LINE.finditer(data, end) if is_intact(*line.groups())), None)
    if found is not None and found > end:
        raise ValueError(f"is damaged at byte {end}, in the line that begins there")
    if found is not None:
        raise ValueError(
            f"has a line of another version at byte {end}; update spade-coreason"
            if end
            else "is of another agent, or of a later version of spade-coreason"
        )
