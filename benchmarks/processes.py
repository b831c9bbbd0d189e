"""What a process and its descendants have used, as Linux counts it in `/proc`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path


def read_cpu_s(pid: int) -> float:
    """Return the seconds of CPU, user and system, also of those that have ended."""
    return sum(sum(map(int, fields[11:15])) for fields in _read_tree(pid).values()) / os.sysconf("SC_CLK_TCK")


def read_memory_kib(pid: int) -> int:
    """Return the memory in KiB: the proportional set."""
    lines: list[str] = []
    for each in _read_tree(pid):
        with suppress(OSError):  # it has just ended
            lines += Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def _read_tree(pid: int) -> Mapping[int, Sequence[str]]:
    """Return the fields of `stat` from the third on, of the process and its living descendants."""
    fields: dict[int, list[str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has just ended
                fields[int(entry.name)] = (entry / "stat").read_text().rpartition(")")[2].split()  # names may have spaces
    found = [pid]
    for each in found:
        found += [child for child, values in fields.items() if int(values[1]) == each]
    return {each: fields[each] for each in found}
