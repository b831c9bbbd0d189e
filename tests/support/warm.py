"""Processes of Python without the time for imports: forked from one that has imported the package."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, AnyStr

_SOURCE = Path(__file__).with_name("warm_server.py")
_PYTHON_START = Path(__file__).with_name("python_start")
NAME_VARIABLE = "WARM_SERVER"
"""The variable with the name of the socket at which the embedded server is forked. Without it, Python starts anew for it."""
_PR_SET_CHILD_SUBREAPER = 36
_FOR_THE_START = ("PYTHON", "LC_", "LANG", "LD_")
"""Variables that Python reads when it starts; a process for which they differ is started anew."""
_FOLLOWED = ("PYTHONUNBUFFERED", "PYTHONIOENCODING", "PYTHONDONTWRITEBYTECODE")
"""Those that the forked process follows too."""
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""The signals that a new process ignores if its parent does."""
_RUN_MODULE = "import runpy; runpy.run_module({!r}, run_name='__main__', alter_sys=True)"
_lock = threading.Lock()


class WarmProcess(subprocess.Popen[AnyStr]):
    """A `Popen` for `[sys.executable, "-c", …]` and `[sys.executable, "-m", …]`: a child of this process like any other.

    With `controls_terminal`, its standard input becomes its controlling terminal.
    """

    def __init__(self, command: Sequence[str], *, controls_terminal: bool = False, **options: Any) -> None:
        assert command[0] == sys.executable
        assert command[1] in ("-c", "-m")
        self._code = command[2] if command[1] == "-c" else _RUN_MODULE.format(command[2])
        self._controls_terminal = controls_terminal
        if controls_terminal:
            options |= {"start_new_session": True, "preexec_fn": lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)}
        super().__init__(command, **options)

    def _execute_child(self, command: Sequence[str], *arguments: Any) -> None:
        _, _, _, _, cwd, env, _, _, _, *pipes = arguments[:15]
        descriptors: Sequence[int] = arguments[3]  # pass_fds
        environment = dict(os.environ if env is None else env)
        if _read_at_start(environment) != _read_at_start(_environment()):
            super()._execute_child(command, *arguments)  # type: ignore[misc]  # it is not in the stubs
            return
        stdin, _, _, stdout, _, stderr = pipes
        request = {
            "code": self._code,
            "arguments": command[3:],
            "cwd": str(Path(cwd or ".").absolute()),
            "env": environment,
            "signals": {number: signal.getsignal(number) is signal.SIG_IGN for number in _SIGNALS},
            "start_new_session": arguments[20],
            "controls_terminal": self._controls_terminal,
            "pass_fds": descriptors,
        }
        standard: list[int] = [number if stream == -1 else stream for number, stream in enumerate((stdin, stdout, stderr))]
        self.pid = _fork(request, [*standard, *descriptors])
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]  # it is not in the stubs


def _fork(request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
    """Return the pid of a new child of this process."""
    with _lock:
        requests = _start_server()
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # the child of the child of a child becomes ours
        try:
            socket.send_fds(requests, [json.dumps(request).encode()], descriptors)
            pid, ready = requests.recv(100), requests.recv(100)
        finally:
            prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    assert ready == b"ready", "the process with the imports has ended"
    return int(pid)


@cache
def _start_server() -> socket.socket:
    requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{os.environ[NAME_VARIABLE]}")
        listener.listen()
        descriptors = theirs.fileno(), listener.fileno()
        subprocess.Popen(
            [sys.executable, "-c", _SOURCE.read_text(encoding="utf-8"), *map(str, descriptors)],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd="/",  # no module of a test's own directory is imported
            start_new_session=True,
            env=_environment(),
        )
    return requests


@cache
def _environment() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if not name.startswith(("SPADE_COREASON_", "OPENAI_"))}


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in environment.items() if name.startswith(_FOR_THE_START) and name not in _FOLLOWED}


os.environ[NAME_VARIABLE] = f"spade-coreason-tests-{os.getpid()}"
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_PYTHON_START), os.environ.get("PYTHONPATH"))))
_environment()  # before a test changes it
