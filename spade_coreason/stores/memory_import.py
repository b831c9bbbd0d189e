"""The interaction memories that spade_llm 0.3.0 wrote: their names and their timestamps. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import BinaryIO

from .memory_format import Memories, entries, line, parse, timestamp

LONGEST_NAME = 255


def spade_llm_name(agent_id: str) -> str | None:
    """What spade_llm calls an agent's file, if that is a name; several agents may have the same."""
    name = agent_id.replace("@", "_").replace("/", "_") + "_interactions.json"
    return None if "\0" in name or len(name.encode()) > LONGEST_NAME else name


def parse_spade_llm(file: BinaryIO, agent_id: str) -> Memories:
    """The memories in a file that spade_llm wrote on this machine; its timestamps, in local time and without a zone, in UTC.

    ValueError as from `parse`.
    """
    _, memories = parse(file, agent_id)
    return {
        name: bytearray().join(line({**entry, "timestamp": _in_utc(entry["timestamp"])}) for entry in entries(lines))
        for name, lines in memories.items()
    }


def _in_utc(written: str) -> str:
    try:
        return timestamp(datetime.fromisoformat(written))
    except ValueError:  # somebody else wrote it; it stays as it is
        return written
