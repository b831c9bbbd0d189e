"""Measures of work that a busy machine does not change: call counts, or CPU time beside a control in the same run."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from cProfile import Profile
from types import CodeType


@contextmanager
def count_calls() -> Iterator[Counter[str]]:
    """Count the Python and C functions that this thread calls, by name. The counts are there at the end of the block."""
    counts: Counter[str] = Counter()
    profiler = Profile()
    profiler.enable()
    try:
        yield counts
    finally:
        profiler.disable()
        for entry in profiler.getstats():
            counts[_name(entry.code)] += entry.callcount


def _name(code: CodeType | str) -> str:
    """Return the name of a function. Those in C are called `<built-in method posix.stat>` or `<method 'read' of …>`."""
    if isinstance(code, CodeType):
        return code.co_name
    found = re.search(r"(\w+)(?:>|' of )", code)
    return found[1] if found else code


def measure_cpu_s(work: Callable[[], object], times: int = 3) -> float:
    """Return the CPU seconds of this thread for the work, the best of several runs; compare it with a control only."""
    durations = []
    for _ in range(times):
        begin = time.thread_time()
        work()
        durations.append(time.thread_time() - begin)
    return min(durations)
