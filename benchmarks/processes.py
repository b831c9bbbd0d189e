"""What a process and its descendants have used, as Linux counts it in `/proc`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def read_cpu_s(pid: int) -> float:
    """Return the seconds of CPU, user and system, also of those that have ended."""
    return sum(map(int, (value for each in list_tree(pid) for value in _read_stat(each)[11:15]))) / os.sysconf("SC_CLK_TCK")


def read_memory_kib(pid: int) -> int:
    """Return the memory in KiB: the proportional set."""
    lines = (line for each in list_tree(pid) for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines())
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def list_tree(pid: int) -> Iterator[int]:
    """Return the process and its living descendants."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has just ended
                parents[int(entry.name)] = int(_read_stat(int(entry.name))[1])
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return iter(found)


def _read_stat(pid: int) -> list[str]:
    """Return the fields of `stat` from the third on: the names of programs may have spaces."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
