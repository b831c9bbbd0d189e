"""The state of other processes (Linux)."""

from __future__ import annotations

import os
from pathlib import Path


def find_state(pid: int) -> str | None:
    """Return the state of a process as one letter, such as R (running) or S (sleeping); None if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def is_running(pid: int) -> bool:
    """Return False also for a process that has ended and that nobody awaits."""
    return find_state(pid) not in (None, "Z")


def read_cpu_s(pid: int) -> float:
    """Return the CPU time of a process in seconds, in steps of the system's clock."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def schema_programs() -> list[int]:
    """List the programs of this process that check JSON Schemas."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            command = (path / "cmdline").read_text(errors="replace")  # others may have any bytes
        except OSError:  # it has just ended
            continue
        if parent == os.getpid() and "json_schema_main.py" in command:
            found.append(int(path.name))
    return found
