"""Measures of work that a busy machine does not change: call counts, or CPU time beside a control in the same run."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def count_calls() -> Iterator[Counter[str]]:
    """Count the Python and C functions that this thread calls, by name."""
    counts: Counter[str] = Counter()

    def note(frame: FrameType, event: str, function: Any) -> None:
        if event == "call":
            counts[frame.f_code.co_name] += 1
        elif event == "c_call":
            counts[function.__name__] += 1

    sys.setprofile(note)
    try:
        yield counts
    finally:
        sys.setprofile(None)


def measure_cpu_s(work: Callable[[], object], times: int = 3) -> float:
    """Return the CPU seconds of this thread for the work, the best of several runs; compare it with a control only."""
    durations = []
    for _ in range(times):
        begin = time.thread_time()
        work()
        durations.append(time.thread_time() - begin)
    return min(durations)
