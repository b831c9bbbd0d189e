"""The name and the text of an agent's memory file (seed: Memory API, Storage Format): pure functions, no I/O."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, TypeAlias, TypedDict

from pydantic_core import to_json


class Entry(TypedDict):
    """One thing remembered. `timestamp` is UTC with milliseconds: 2025-01-09T10:30:00.000Z."""

    content: str
    timestamp: str


Interactions: TypeAlias = Mapping[str, list[Entry]]
"""The entries by conversation, both in the order in which they came."""

LONGEST_NAME = 195  # file systems take 255 bytes; the rest is for suffixes
ESCAPED = re.compile(r"[^a-z0-9@._-]|^\.")


def file_name(agent_id: str) -> str:
    """The name of an agent's file, a different one for every agent, also where upper and lower case are the same.

    A JID in lower case keeps its looks: `notes@example.org.json`. Everything else is percent-encoded in lower case;
    what gets too long is cut and ends in `~` and a SHA-256 of the whole, which no short name contains.
    """
    name = ESCAPED.sub(lambda found: "".join(f"%{byte:02x}" for byte in found[0].encode()), agent_id)
    if len(name) > LONGEST_NAME:
        digest = hashlib.sha256(agent_id.encode()).hexdigest()
        name = f"{name[: LONGEST_NAME - len(digest) - 1]}~{digest}"
    return f"{name}.json"


def new_document(agent_id: str) -> dict[str, Any]:
    """The document of an agent that remembers nothing."""
    return {"agent_id": agent_id, "interactions": {}}


def dump(document: Mapping[str, Any]) -> bytes:
    """The document as it stands in the file."""
    try:
        # The same text as from json.dumps, whose indenting runs in Python and takes many times as long.
        return to_json(document, indent=4, inf_nan_mode="constants") + b"\n"
    except ValueError:
        # Half characters cannot be remembered here, but another program's file may have them, escaped: they stay so.
        return json.dumps(document, ensure_ascii=False, indent=4).encode("utf-8", "backslashreplace") + b"\n"


def parse(data: bytes, agent_id: str) -> dict[str, Any]:
    """The document in a file of this agent, with everything that others have added to it.

    ValueError for anything else; its text goes on where the file's name ends.
    """
    try:
        document = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise ValueError("is empty" if not data.strip() else f"is not complete JSON ({error})") from error
    problem = _problem(document, agent_id)
    if problem:
        raise ValueError(problem)
    checked: dict[str, Any] = document
    return checked


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):  # the first of the two would be lost silently
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} stands there twice")
    return found


def _problem(document: object, agent_id: str) -> str | None:
    """Why a document is no memory of this agent, or None."""
    if not isinstance(document, dict):
        return "holds no JSON object"
    if document.get("agent_id") != agent_id:
        return f"belongs to the agent {document.get('agent_id')!r}, not to {agent_id!r}"
    interactions = document.get("interactions")
    if not isinstance(interactions, dict):
        return 'has no object "interactions"'
    for conversation_id, entries in interactions.items():
        if not isinstance(entries, list):
            return f"has no list of entries for the conversation {conversation_id!r}"
        for number, entry in enumerate(entries, 1):
            for key in Entry.__annotations__:
                if not (isinstance(entry, dict) and isinstance(entry.get(key), str)):
                    return f"has no {key} in entry {number} of the conversation {conversation_id!r}"
    return None
