"""Journals of the form before `journal`, whose lines have no places. They are only read, and this module may go one day.

The first line names the agent and the id of the journal. A fold line holds the SHA-256 of a memory file that contains
everything above the line.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from .format import JSON_STRING, LinesByConversation, decode_string
from .journal import check_rest, is_intact

_LINE = re.compile(
    rb'(\{(?:"agent_id":(%b),"journal":%b|"conversation_id":(%b),("content":%b,"timestamp":%b)|"folded":"(\w+)"))'
    rb',"crc32":"([0-9a-f]{8})"\}\n' % ((JSON_STRING,) * 5)
)


def parse_legacy(data: bytes, agent_id: str, file: Path) -> tuple[int, LinesByConversation]:
    """Return the position after the last complete line, and the additions that are not in the memory file.

    The position is 0 if there is no complete line. Raise ValueError if the journal is damaged, or another agent's.
    """
    lines: LinesByConversation = {}
    end = 0
    while (match := _LINE.match(data, end)) is not None and is_intact(match[1], match[6]) and bool(end) == (match[2] is None):
        _, agent, name, entry, digest, _ = match.groups()
        if agent and decode_string(agent) != agent_id:
            raise ValueError(f"is not the journal of the agent {agent_id!r}")
        if name:
            lines.setdefault(decode_string(name), bytearray()).extend(b"{%b}\n" % entry)
        elif digest and file.exists() and hashlib.sha256(file.read_bytes()).hexdigest().encode() == digest:
            lines.clear()
        end = match.end()
    check_rest(data, end)
    return end, lines
