"""Validation of values against a JSON Schema, in limited time and memory, with the mistake in one sentence.

Others write schemas and values: an ordinary `pattern` may backtrack for hours, and references may multiply without end.
Nothing in Python ends that, so a program of its own does the work (`json_schema_main.py`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

log = logging.getLogger(__name__)

MAX_CPU_S = 2
"""Seconds of processor time for one validation."""
MAX_MEMORY_MB = 256
"""Megabytes of memory for one validation, with the values."""
_MAX_PROGRAMS = 4
_PROGRAM = Path(__file__).with_name("json_schema_main.py")

_threads = ThreadPoolExecutor(_MAX_PROGRAMS, "json-schema")
_busy_programs = threading.BoundedSemaphore(_MAX_PROGRAMS)
_locks = WeakValueDictionary[str, asyncio.Lock]()
"""A lock for each owner of checks."""
_idle_programs: list[subprocess.Popen[bytes]] = []
os.register_at_fork(after_in_child=_idle_programs.clear)  # the parent reads their answers


def find_problem(value: Any, schema: Mapping[str, Any], root: str = "payload") -> str | None:
    """Return the most telling mistake with its place in the value, or None. A mistake in the schema itself is one too.

    `root` is the name of the whole value. A value that cannot be checked within `MAX_CPU_S` and `MAX_MEMORY_MB` does not fit.
    The call blocks until the answer is there.
    """
    return _find_problems([value], schema, root)[0]


async def find_problems(values: Sequence[Any], schema: Mapping[str, Any], root: str = "payload") -> list[str | None]:
    """Return the mistake in each value, as `find_problem` does. The limits are for all values together."""
    return await asyncio.get_running_loop().run_in_executor(_threads, _find_problems, values, schema, root)


async def check_for(owner: str, check: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that checks values in a thread. Checks of one owner run in turn, so that those of others do not wait."""
    async with _locks.setdefault(owner, asyncio.Lock()):
        return await asyncio.get_running_loop().run_in_executor(_threads, check, *arguments)


def _find_problems(values: Sequence[Any], schema: Mapping[str, Any], root: str) -> list[str | None]:
    try:
        request = json.dumps({"values": list(values), "schema": schema, "root": root}, default=str)
    except (TypeError, ValueError, RecursionError) as error:
        return [f"{root}: it cannot be written as JSON ({error})"] * len(values)
    try:
        with _busy_programs:
            answer = _ask(request.encode() + b"\n")
    except OSError as error:
        log.error("the program that checks JSON Schemas does not run: %s", error)
        return [f"{root}: it could not be checked against its JSON Schema"] * len(values)
    problems: list[str | None] | None = json.loads(answer)
    if problems is None:
        problem = f"{root}: it cannot be checked against its JSON Schema within {MAX_CPU_S} s and {MAX_MEMORY_MB} MB"
        return [problem] * len(values)
    return problems


def _ask(request: bytes) -> bytes:
    """Send a request to an idle program, else to a new one, and return the answer. Raise OSError if a new one ends."""
    while True:
        try:
            program, is_new = _idle_programs.pop(), False
        except IndexError:
            program, is_new = _start_program(), True
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            program.stdin.write(request)
            program.stdin.flush()
            answer = program.stdout.readline()
        except OSError:  # it has ended
            answer = b""
        if answer:
            _idle_programs.append(program)
            return answer
        program.kill()
        program.communicate()
        if is_new:
            raise OSError(f"it ended with exit code {program.returncode}")


def _start_program() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-W", "ignore", str(_PROGRAM), str(MAX_CPU_S), str(MAX_MEMORY_MB * 1_048_576)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C is for the platform; it ends with its input
    )
