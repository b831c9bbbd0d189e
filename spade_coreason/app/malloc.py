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
_TRIM_GROWTH_BYTES = 16 * 2**20
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
    """Return freed memory of the heap to the system, whenever the process has grown by 16 MiB. Runs until cancelled.

    glibc itself returns only the end of its heap. After many objects of medium size, such as pieces of files, most of it stays.
    Does nothing where there is no glibc or no /proc.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
        size = _resident_bytes()
    except (AttributeError, OSError):
        return
    while True:
        await asyncio.sleep(interval_s)
        if _resident_bytes() >= size + _TRIM_GROWTH_BYTES:
            await asyncio.to_thread(trim, 0)
            size = _resident_bytes()


def _resident_bytes() -> int:
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
