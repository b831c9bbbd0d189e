"""Settings of the C library's memory allocation for a process that only hosts agents."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_M_MMAP_THRESHOLD = -3  # mallopt(3)
_LARGE_BYTES = 512 * 1024


def tune_malloc() -> None:
    """Return the memory of large objects, such as long messages, to the system as soon as they are freed.

    By default glibc keeps it, once it has freed one object of that size. Other C libraries are left as they are. The setting
    affects the whole process, so only the project's own programs call this.
    """
    with suppress(AttributeError, OSError):  # no mallopt, or no C library to be found by name
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
