"""Operations on an interaction memory in processes that end before a system call of them.

`python -m tests.memory.interaction.killed_operations` forks such a process for each line of its input, `[DIRECTORY, OPERATION,
STEP]` in JSON, and writes its exit code. It is small: a fork of the tests themselves, with their thousands of modules, takes
ten times as long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from spade_coreason.memory.interaction.file import MemoryLimits
from spade_coreason.memory.interaction.store import AgentInteractionMemory

AGENT = "support_agent@example.com"
OPERATIONS: dict[str, Callable[[AgentInteractionMemory], object]] = {
    "add": lambda memory: memory.add_information("c", "new"),
    "flush": lambda memory: memory.flush(),
    "clear": lambda memory: memory.clear_conversations("ce"),
    "clear what is in the file": lambda memory: memory.clear_conversation("e"),
    "remove": lambda memory: memory.remove_information("c", "in the file", "one"),
    "merge": lambda memory: memory.merge({"c": bytearray(b'{"content":"new","timestamp":""}\n')}),
}
RunOperation = Callable[[Path, str, int], int]


@contextmanager
def start_killed_operations() -> Iterator[RunOperation]:
    """Start the program; yield a function that runs an operation until a step, and returns 9, or 0 if it was complete."""
    command, pipe = [sys.executable, "-m", __name__], subprocess.PIPE
    with subprocess.Popen(command, cwd=Path(__file__).parents[3], stdin=pipe, stdout=pipe, text=True, bufsize=1) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        stdin, stdout = program.stdin, program.stdout

        def run(directory: Path, operation: str, step: int) -> int:
            stdin.write(f"{json.dumps([str(directory), operation, step])}\n")
            return int(stdout.readline())

        yield run


def _run(directory: str, operation: str, step: int) -> None:
    """End the process before a system call of an operation, by its number."""
    memory, steps = AgentInteractionMemory(AGENT, directory, limits=MemoryLimits(journal_bytes=500)), count()

    def hook(_frame: object, event: str, function: Any) -> None:
        module = getattr(function, "__module__", None) or type(getattr(function, "__self__", None)).__module__
        if event == "c_call" and module in ("posix", "fcntl", "_io") and next(steps) == step:
            os._exit(9)

    sys.setprofile(hook)
    OPERATIONS[operation](memory)
    sys.setprofile(None)


def _main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _run(*json.loads(line))
                code = 0
            finally:
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    _main()
