"""A command that is forked from a process with the imports is what a new Python would be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from spade_coreason.xmpp.servers.embedded import EMBEDDED_PROGRAM, run_embedded_server
from spade_coreason.xmpp.servers.server import LocalServer
from tests.support.processes import is_running
from tests.support.wait import TIMEOUT_S, eventually
from tests.support.warm import NAME_VARIABLE, WarmProcess

DESCRIBE = """
import asyncio, atexit, json, os, signal, sys, threading
print(json.dumps({
    "arguments": sys.argv,
    "directory": os.getcwd(),
    "environment": dict(os.environ),
    "path": sys.path,
    "parent": os.getppid(),
    "descriptors": sorted(os.listdir("/proc/self/fd"))[:4],
    "streams": [
        (s.encoding, s.errors, s.line_buffering, s.write_through, type(s.buffer).__name__, s.isatty())
        for s in (sys.stdin, sys.stdout, sys.stderr)
    ],
    "signals": {number: str(signal.getsignal(number)) for number in signal.valid_signals()},
    "writes_bytecode": not sys.dont_write_bytecode,
    "threads": len(threading.enumerate()),
    "policy": str(type(asyncio.get_event_loop_policy())),
    "name": __name__,
    "input": sys.stdin.read(),
}))
print("no end of line", end="", file=sys.stderr)
atexit.register(print, "last")
"""
COLD = {"PYTHONNODEBUGRANGES": "1"}
"""A variable that is read when Python starts."""


def run(code: str, directory: Path, further: dict[str, str]) -> tuple[int, str, str]:
    environment = {**os.environ, "HERE": "1", **further}
    pipe = subprocess.PIPE
    options: dict[str, Any] = {"cwd": directory, "env": environment, "stdin": pipe, "stdout": pipe, "stderr": pipe}
    with WarmProcess[str]([sys.executable, "-c", code, "an argument"], text=True, **options) as process:
        out, err = process.communicate("a line\nand grün", TIMEOUT_S)
    return process.returncode, out, err


@pytest.mark.parametrize(
    "further",
    [
        {"PYTHONUNBUFFERED": ""},
        {"PYTHONUNBUFFERED": "1"},
        {"PYTHONDONTWRITEBYTECODE": "1"},
        {"PYTHONIOENCODING": "latin-1"},
        {"PYTHONIOENCODING": "ascii:replace"},
    ],
    ids=str,
)
def test_it_is_the_same_as_a_new_process(tmp_path: Path, further: dict[str, str]) -> None:
    warm, cold = run(DESCRIBE, tmp_path, further), run(DESCRIBE, tmp_path, further | COLD)
    described, expected = json.loads(warm[1].splitlines()[0]), json.loads(cold[1].splitlines()[0])
    for name in COLD:
        del expected["environment"][name]
    assert described == expected
    assert described["parent"] == os.getpid()
    assert (warm[0], warm[1].splitlines()[1:], warm[2]) == (cold[0], ["last"], "no end of line")


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_it_ignores_the_signals_that_its_parent_ignores_then(tmp_path: Path, handler: signal.Handlers) -> None:
    code = "import signal; print(signal.getsignal(signal.SIGHUP))"
    before = signal.signal(signal.SIGHUP, handler)
    try:
        assert [run(code, tmp_path, further)[1] for further in ({}, COLD)] == [f"{handler!s}\n"] * 2
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    "code",
    [
        "raise SystemExit(3)",
        "raise SystemExit('a reason')",
        "raise SystemExit",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import signal; signal.raise_signal(signal.SIGINT)",
    ],
)
def test_it_ends_as_a_new_process_does(tmp_path: Path, code: str) -> None:
    warm, cold = run(code, tmp_path, {}), run(code, tmp_path, COLD)
    assert warm[:2] == cold[:2]
    assert warm[2].splitlines()[-1:] == cold[2].splitlines()[-1:]


def test_it_has_the_imports_and_a_new_process_has_not(tmp_path: Path) -> None:
    code = "import sys; print('spade_coreason.xmpp.host' in sys.modules)"
    assert [run(code, tmp_path, further)[1] for further in ({}, COLD)] == ["True\n", "False\n"]


def test_it_has_the_descriptors_that_are_passed_under_their_numbers_and_no_others() -> None:
    code = "import os, sys; os.write(int(sys.argv[1]), str(sorted(map(int, os.listdir('/proc/self/fd')))).encode())"
    here, passed, kept = *os.pipe(), os.dup(0)
    with WarmProcess[bytes]([sys.executable, "-c", code, str(passed)], pass_fds=[passed]) as process:
        assert process.wait(TIMEOUT_S) == 0
    os.close(passed)
    with open(here, "rb") as result:
        descriptors = json.loads(result.read())
    os.close(kept)
    assert descriptors[:3] == [0, 1, 2]
    assert passed in descriptors
    assert len(descriptors) == 5  # and the directory itself


def test_a_kill_ends_it_and_what_it_started_is_no_child_of_the_tests(tmp_path: Path) -> None:
    code = "import os, time; child = os.fork(); child and os.write(1, b'%d\\n' % child); time.sleep(3600)"
    process = WarmProcess[bytes]([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    try:
        child = int(process.stdout.readline())
        assert os.getsid(child) == process.pid
        process.kill()
        assert process.wait(TIMEOUT_S) == -signal.SIGKILL
        assert is_running(child)
        assert int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1]) != os.getpid()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()


# The embedded server


def listening_process(server: LocalServer) -> int:
    """Return the process id of the one that listens on the port of a server."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    [inode] = [line[9] for line in lines if line[1].endswith(f":{server.port:04X}") and line[3] == "0A"]
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if os.readlink(path) == f"socket:[{inode}]":
                return int(path.parts[2])
    raise AssertionError("nobody listens")


def has_imports(pid: int) -> bool:
    """Return True if a process was forked from the one with the imports."""
    return b"embedded_main.py" not in Path(f"/proc/{pid}/cmdline").read_bytes()


async def test_the_embedded_server_is_forked_and_ends_with_its_block(tmp_path: Path) -> None:
    assert run("", tmp_path, {})[0] == 0  # the process with the imports is there
    async with run_embedded_server(tmp_path) as server:
        pid = listening_process(server)
        assert has_imports(pid)
        assert os.readlink(f"/proc/{pid}/cwd") == str(tmp_path)
    assert not is_running(pid)


async def test_the_embedded_server_starts_anew_without_a_process_with_the_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NAME_VARIABLE, "no such process")
    async with run_embedded_server(tmp_path) as server:
        assert not has_imports(listening_process(server))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_signal_ends_the_embedded_server_and_the_one_that_started_it_hears_which(
    tmp_path: Path, number: signal.Signals
) -> None:
    assert run("", tmp_path, {})[0] == 0
    async with run_embedded_server(tmp_path) as server:
        assert server.process is not None
        pid = listening_process(server)
        os.kill(server.process.pid, number)
        assert (await server.process.wait_until_ended()).startswith(f"the embedded server ended by signal {number:d}")
        await eventually(lambda: not is_running(pid))


def test_an_embedded_server_that_cannot_start_ends_with_its_exit_code(tmp_path: Path) -> None:
    assert run("", tmp_path, {})[0] == 0
    command = [sys.executable, "-P", str(EMBEDDED_PROGRAM), "too few arguments"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "ValueError: not enough values to unpack (expected 3, got 1)")
