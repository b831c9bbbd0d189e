"""`spade-coreason`, or one operation on stored data, in a process that kills itself within an operation.

It runs as `python -m tests.support.killed_process CALLS COMMAND …` or `… CALLS --stored CONFIGURATION OPERATION ARGUMENTS`. The
instant is a call of a function, the one with the number CALLS since the operation began, in any thread.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from spade_coreason.app.stored_host import open_stored_host
from spade_coreason.config import load_settings
from spade_coreason.operations.definition import Actor, Call, CallerKind, Operation
from spade_coreason.operations.table import OPERATIONS

PROGRAM = [sys.executable, "-m", "tests.support.killed_process"]
"""What runs it, in the directory of the project."""
BEGIN = signal.SIGUSR1
"""The signal after which a platform looks for the beginning of an operation."""
TESTER = Actor(CallerKind.MACHINE_USER, "user tester")
_OPERATION_CODE = Operation.__call__.__code__


class CallCounter:
    """The number of function calls since an operation began, as a profile function. At `kill_at` the process ends."""

    def __init__(self, kill_at: int) -> None:
        self.count = 0
        self._has_begun = False
        self._kill_at = kill_at

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "c_call"):
            return
        self._has_begun = self._has_begun or frame.f_code is _OPERATION_CODE
        self.count += self._has_begun
        if self.count and self.count == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


async def perform_stored(configuration: Path, name: str, arguments: str, kill_at: int = 0) -> int:
    """Perform an operation on stored data, and return the number of function calls that it took."""
    operation, counter = OPERATIONS[name], CallCounter(kill_at)
    settings = load_settings(configuration, configuration.parent, {}, logs_in=False)
    with _profiling_threads(counter):
        async with open_stored_host(settings, [], is_exclusive=True) as host:
            call = Call(host, TESTER)
            sys.setprofile(counter)
            try:
                await operation(call, operation.read_arguments(json.loads(arguments)))
            finally:
                sys.setprofile(None)
    return counter.count


@contextmanager
def _profiling_threads(counter: CallCounter) -> Iterator[None]:
    """Count also in the threads that begin in the block."""
    threading.setprofile(counter)
    try:
        yield
    finally:
        threading.setprofile(None)


def main() -> None:
    """Run what the arguments say."""
    kill_at = int(sys.argv.pop(1))
    if sys.argv[1] == "--stored":
        configuration, name, arguments = sys.argv[2:]
        asyncio.run(perform_stored(Path(configuration), name, arguments, kill_at))
        return
    from spade_coreason.cli import main as run

    counter = CallCounter(kill_at)
    signal.signal(BEGIN, lambda number, frame: sys.setprofile(counter))
    with _profiling_threads(counter):
        run()


if __name__ == "__main__":
    main()
