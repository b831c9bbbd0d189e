"""A tool that takes for ever the first time: what a platform is stopped or killed in."""

from __future__ import annotations

import threading
from pathlib import Path


def note(path: str) -> str:
    """Writes a line into a file; the first one never returns."""
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    Path(path).write_text("\n".join([*lines, "called"]))
    if not lines:
        threading.Event().wait()
    return "noted"
