"""Settings of the C library's memory allocation for a process that only hosts agents."""

from __future__ import annotations

import asyncio
import ctypes
import os
from contextlib import suppress
from pathlib import Path

_M_MMAP_THRESHOLD = -3  # mallopt(3)
_LARGE_BYTES = 512 * 1024
_TRIM_INTERVAL_S = 5.0
_TRIM_GROWTH_BYTES = 16 * 2**20
_STATM = Path("/proc/self/statm")


def tune_malloc() -> None:
    """Return the memory of large objects, such as long messages, to the system as soon as they are freed.

    By default glibc keeps it, once it has freed one object of that size. Other C libraries are left as they are. The setting
    affects the whole process, so only the project's own programs call this.
    """
    with suppress(AttributeError, OSError):  # no mallopt, or no C library to be found by name
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


async def trim_malloc_periodically(interval_s: float = _TRIM_INTERVAL_S) -> None:
    """Return freed memory of the heap to the system, whenever the process has grown by 16 MiB. Runs until cancelled.

    glibc gives back only the end of its heap. After many objects of medium size, such as pieces of files, most of it stays.
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
