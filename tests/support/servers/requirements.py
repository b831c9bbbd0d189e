"""Programs that tests need besides Python: where they are, and the rule for those that are missing.

A test that needs one has the mark `servers`. `SPADE_COREASON_HIDE_SERVERS=1` makes all of them missing, as on a fresh machine.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

REMEDY = "`make servers` enables this test"
PROGRAMS = (
    "prosody",
    "prosodyctl",
    "ejabberdctl",
    "erl",
    "nginx",
    "go-sendxmpp",
    "profanity",
    "tmux",
    "initdb",
    "psql",
    "pg_ctlcluster",
    "pgbouncer",
    "ip",
    "valgrind",
    "prometheus",
    "chromium",
    "systemd-analyze",
)
"""The programs of `make servers` and `make browser` that tests look for."""
_DIRECTORIES = ("/usr/sbin", "/usr/lib/postgresql/*/bin")
"""Where Debian has some of them, the newest version last. The PATH of a user who is not root does not lead there."""
_SWITCH = "SPADE_COREASON_HIDE_SERVERS"
_running: list[pytest.Item] = []


def find_program(name: str) -> str | None:
    """Return the path of a program, or None if it is missing."""
    if (found := shutil.which(name)) is not None or os.environ.get(_SWITCH) == "1":
        return found
    elsewhere = (path for pattern in _DIRECTORIES for path in Path("/").glob(pattern[1:]))
    return shutil.which(name, path=os.pathsep.join(map(str, sorted(elsewhere, key=_version_of, reverse=True))))


def _version_of(directory: Path) -> int:
    return max((int(part) for part in directory.parts if part.isdecimal()), default=0)


def hide_programs() -> None:
    """If the switch is set, lead the PATH of all processes that are started from here past the programs.

    A directory with one of them becomes a directory of links to all others.
    """
    if os.environ.get(_SWITCH) != "1":
        return
    directories = []
    for directory in map(Path, os.environ["PATH"].split(os.pathsep)):
        is_readable = os.access(directory, os.R_OK | os.X_OK)  # the PATH of root may lead where others may not look
        if is_readable and any((directory / name).exists() for name in PROGRAMS):
            links = Path(tempfile.gettempdir(), f"spade-coreason-{os.getuid()}-without-servers", *directory.parts[1:])
            links.mkdir(parents=True, exist_ok=True)
            for path in directory.iterdir():
                if path.name not in PROGRAMS and not (link := links / path.name).exists():
                    link.unlink(missing_ok=True)
                    link.symlink_to(path)
            directory = links
        directories.append(str(directory))
    os.environ["PATH"] = os.pathsep.join(directories)


def note_running(item: pytest.Item) -> None:
    """Remember the test that runs, for `require`."""
    _running[:] = [item]


def require(name: str, is_installed: bool, remedy: str = REMEDY) -> None:
    """Skip the test if a program is missing. In CI, or with SPADE_COREASON_REQUIRE_SERVERS=1, fail it instead.

    Fail a test without the mark `servers` or `release` in any case: it belongs to those that every machine can run.
    """
    if _running and not {"servers", "release"} & {mark.name for mark in _running[0].iter_markers()}:
        pytest.fail(f"this test needs {name}: give it the mark `servers`", pytrace=False)
    if is_installed:
        return
    reason = f"{name} is not installed; {remedy}"
    if os.environ.get("CI", "").lower() in ("1", "true") or os.environ.get("SPADE_COREASON_REQUIRE_SERVERS") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def missing_programs(skipped: Iterable[pytest.TestReport]) -> list[str]:
    """Return a line for each missing program, with the number of tests skipped for it."""
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped if isinstance(report.longrepr, tuple))
    return [
        f"{count} skipped: {reason.replace(REMEDY, '`make servers` enables them')}"
        for reason, count in sorted(reasons.items())
        if reason.endswith(REMEDY)
    ]
