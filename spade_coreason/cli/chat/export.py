"""The file that a chat writes for `/export`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator
from datetime import date
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from ...domain.identifiers import EXPORT_SCHEMA
from ...domain.texts.text import FENCE

if TYPE_CHECKING:
    from ...runtime import PeerEvent

EXPORT_COMMAND = "/export"
_MAX_NAME_CHARACTERS = 100


class ExportReader:
    """Reader of the reply to `/export`. Iterate over its events: those that hold the export are left out."""

    def __init__(self, events: AsyncIterator[PeerEvent]) -> None:
        self._events = events
        self.text: str | None = None
        """The export as JSON, when all events have been read; None if the reply holds none, or a link to one."""

    async def __aiter__(self) -> AsyncIterator[PeerEvent]:
        withheld: list[PeerEvent] = []
        parts: list[str] = []
        async for event in self._events:
            if (part := _read_block(event)) is not None:
                withheld.append(event)
                parts.append(part)
                continue
            if event.type == "request.completed" and withheld:
                self.text = _check_export("\n".join(parts))
                for other in withheld if self.text is None else ():
                    yield other
            yield event


def write_export(agent: str, text: str) -> Path:
    """Write an export to a new file in the current directory. Only its owner may read it. `agent` is the agent's name."""
    name = re.sub(r"[^\w.-]", "_", agent)[:_MAX_NAME_CHARACTERS]
    stem = f"export-{name}-{date.today():%Y-%m-%d}"
    for number in count(1):
        path = Path(f"{stem}.json" if number == 1 else f"{stem}-{number}.json")
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{text}\n")
        break
    return path


def _read_block(event: PeerEvent) -> str | None:
    """Return the text of an event that is one block of code."""
    content = event.data.get("content")
    if event.type != "block.markdown" or not isinstance(content, str):
        return None
    is_block = content.startswith(f"{FENCE}\n") and content.endswith(f"\n{FENCE}")
    return content[len(FENCE) + 1 : -len(FENCE) - 1] if is_block else None


def _check_export(text: str) -> str | None:
    try:
        value = json.loads(text)
        text.encode()
    except (ValueError, RecursionError):
        return None
    return text if isinstance(value, dict) and value.get("schema") == EXPORT_SCHEMA else None
