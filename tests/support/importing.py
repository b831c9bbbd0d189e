"""Import every module of the package and print what that changed in the process and around it, as JSON.

Run as a program, in an empty directory that is its working, home and temporary directory at once.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import locale
import logging
import os
import pkgutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

PROGRAMS = ("__main__", "migrations")
"""Run, not imported: by `python -m`, and by Alembic."""


def state() -> dict[str, Any]:
    """What an import may not change."""
    root = logging.getLogger()
    return {
        "files": sorted(str(path.relative_to(Path.cwd())) for path in Path.cwd().rglob("*")),
        "environment": dict(os.environ),
        "root logger": [str(one) for one in (*root.filters, *root.handlers, logging.getLevelName(root.level))],
        "signal handlers": {int(number): str(signal.getsignal(number)) for number in signal.valid_signals()},
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "event loop policy": str(asyncio.get_event_loop_policy()),
        "working directory": os.getcwd(),
        "recursion limit": sys.getrecursionlimit(),
        "garbage collector": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()],
        "hooks": [str(one) for one in (sys.excepthook, sys.unraisablehook, threading.excepthook, sys.displayhook)],
        "path": sys.path[:],
        "locale": locale.setlocale(locale.LC_ALL),
    }


def modules(package: str) -> list[str]:
    """Every module of the package that is there to be imported."""
    directory = importlib.import_module(package).__path__
    found = [one.name for one in pkgutil.walk_packages(directory, f"{package}.")]
    return [name for name in found if not set(name.split(".")) & set(PROGRAMS)]


if __name__ == "__main__":
    policy = asyncio.get_event_loop_policy()  # the first call makes it
    before = state()
    names = modules(*sys.argv[1:] or ["spade_coreason"])
    for name in names:
        importlib.import_module(name)
    after = state()
    changed = {what: [before[what], after[what]] for what in before if before[what] != after[what]}
    print(json.dumps({"modules": names, "changed": changed}))
