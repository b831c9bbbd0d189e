"""Import every module of the package and print its effects on the process and its surroundings as JSON.

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
"""Modules that are run, not imported: by `python -m` and by Alembic."""


def process_state() -> dict[str, Any]:
    """Return the state that an import must not change."""
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


def module_names(package: str) -> list[str]:
    """List the modules of the package that are meant to be imported."""
    directory = importlib.import_module(package).__path__
    found = [module.name for module in pkgutil.walk_packages(directory, f"{package}.")]
    return [name for name in found if not set(name.split(".")) & set(PROGRAMS)]


if __name__ == "__main__":
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # `tests/conftest.py` says why
    policy = asyncio.get_event_loop_policy()  # the first call makes it
    before = process_state()
    names = module_names(*sys.argv[1:] or ["spade_coreason"])
    for name in names:
        importlib.import_module(name)
    after = process_state()
    changed = {what: [before[what], after[what]] for what in before if before[what] != after[what]}
    print(json.dumps({"modules": names, "changed": changed}))
