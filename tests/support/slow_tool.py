"""A tool that never returns the first time, so that a platform can be stopped or killed in the middle of it."""

from __future__ import annotations

import threading
from pathlib import Path


def note(path: str) -> str:
    """Write a line into a file; the first call never returns."""
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    Path(path).write_text("\n".join([*lines, "called"]))
    if not lines:
        threading.Event().wait()
    return "noted"
