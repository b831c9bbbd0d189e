"""How much work something does, told so that a busy machine changes nothing: counted, or beside a control of the same run."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def calls() -> Iterator[Counter[str]]:
    """Count by name the functions, of Python and of C, that this thread calls."""
    made: Counter[str] = Counter()

    def note(frame: FrameType, event: str, function: Any) -> None:
        if event == "call":
            made[frame.f_code.co_name] += 1
        elif event == "c_call":
            made[function.__name__] += 1

    sys.setprofile(note)
    try:
        yield made
    finally:
        sys.setprofile(None)


def cpu_s(work: Callable[[], object], times: int = 3) -> float:
    """Seconds of the processor that this thread needs for it, the best of several times: only good beside a control."""
    taken = []
    for _ in range(times):
        begin = time.thread_time()
        work()
        taken.append(time.thread_time() - begin)
    return min(taken)
