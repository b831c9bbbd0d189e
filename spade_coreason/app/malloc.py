"""Settings of the C library's memory allocation for a process that only hosts agents."""

from __future__ import annotations

import asyncio
import ctypes
import os
from contextlib import suppress
from pathlib import Path

_M_TRIM_THRESHOLD = -1  # mallopt(3)
_M_MMAP_THRESHOLD = -3
_HEAP_BYTES = 4 * 2**20
"""Objects up to this size are in the heap."""
_KEPT_BYTES = 64 * 2**20
_TRIM_INTERVAL_S = 5.0
_MAX_TRIM_INTERVAL_S = 60.0
_TRIM_GROWTH_BYTES = 16 * 2**20
_CHANGE_BYTES = 2**20
"""A process that has changed its size by less is idle, and is looked at less often."""
_STATM = Path("/proc/self/statm")


def tune_malloc() -> None:
    """Keep the memory of freed objects of up to 4 MiB for the next ones, until `trim_malloc_periodically` returns it.

    By default glibc asks the system for memory for each large object, for example a long message and each of its copies. For
    messages of 1 MB that is a third of their CPU time. Other C libraries are left as they are. The setting affects the whole
    process, so only the project's own programs call this.
    """
    with suppress(AttributeError, OSError):  # no mallopt, or no C library to be found by name
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _HEAP_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


async def trim_malloc_periodically(interval_s: float = _TRIM_INTERVAL_S) -> None:
    """Return freed memory of the heap to the system while the process is 16 MiB larger than now. Runs until cancelled.

    glibc itself returns only the end of its heap. After many objects of medium size, such as pieces of files, most of it stays.
    The interval grows to a minute while nothing changes. Does nothing where there is no glibc or no /proc.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
        smallest = after = _resident_bytes()
    except (AttributeError, OSError):
        return
    wait_s = interval_s
    while True:
        await asyncio.sleep(wait_s)
        before = _resident_bytes()
        wait_s = interval_s if abs(before - after) > _CHANGE_BYTES else min(2 * wait_s, max(interval_s, _MAX_TRIM_INTERVAL_S))
        if before >= smallest + _TRIM_GROWTH_BYTES:
            await asyncio.to_thread(trim, 0)
            before = _resident_bytes()
        after = before


def _resident_bytes() -> int:
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
