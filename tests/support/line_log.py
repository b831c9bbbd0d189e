"""Logs that a process writes until it is killed, and another one reads meanwhile: a line is a JSON array."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def append_line(log: Path, *values: Any) -> None:
    """Append a line. It is on its way to the disk when this returns, whatever happens to the process."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        # Where a line crosses a page, a kill can cut it off, and a reader sees its first half alone. The line break before
        # it keeps the next line apart from such a half.
        os.write(descriptor, f"\n{json.dumps(values)}\n".encode())
    finally:
        os.close(descriptor)


def read_lines(log: Path) -> list[list[Any]]:
    """Return the complete lines."""
    text = log.read_text() if log.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines() if line.endswith("]")]
