"""A tiny program that runs a server and ends it when whoever started it is gone, even by `kill -9`.

    python lifeline.py LOG PROGRAM ARGUMENT…

Its standard input is a pipe of which the starter holds the other end: end of file means that the starter is gone, or wants
the server to stop. Its first line of output is the server's process id; its exit status is the server's. The server has a
process group of its own, of which nothing is left in the end. LOG takes the server's output and is the lock: while an
earlier server is still ending, the next one with the same LOG waits. On Linux the server is told to end also where this
program is killed itself. Standard library only, and run as a file: it starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from types import FrameType

TERM_GRACE_MS = 3_000
"""A server that has not ended this long after SIGTERM is killed: together well under five seconds."""
LOCK_RETRY_MS = 50
PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    log_path, *command = arguments
    starter = os.getppid()
    wake, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, _on_signal)
    signal.signal(signal.SIGTERM, _on_signal)  # whoever ends us ends the server
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "wb", buffering=0) as log:
        if not _acquire_lock(log.fileno()):
            return 0
        try:
            server = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0, preexec_fn=_die_with_parent()
            )
        except OSError as error:
            log.write(f"{command[0]}: {error.strerror}\n".encode())
            return 127
    try:
        print(server.pid, flush=True)
        _wait_until_stopped(server, starter, wake)
        return _stop_server(server)
    finally:
        with contextlib.suppress(ProcessLookupError):  # forked workers, should the server have left any
            os.killpg(server.pid, signal.SIGKILL)


def _die_with_parent() -> Callable[[], None] | None:
    """What the server does before it is one: asks the kernel for SIGTERM when we are gone (prctl(2), PR_SET_PDEATHSIG)."""
    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):  # no Linux
        return None
    watcher = os.getpid()

    def begin() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != watcher:  # it was gone before
            os._exit(1)

    return begin


def _acquire_lock(log_descriptor: int) -> bool:
    """Waits for the lock, which the server shares with us. False: the starter gave up first."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    while True:
        try:
            fcntl.flock(log_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if poll.poll(LOCK_RETRY_MS):
                return False


def _wait_until_stopped(server: subprocess.Popen[bytes], parent_pid: int, wake_descriptor: int) -> None:
    """Returns when the server has ended, the starter is gone, or somebody told us to stop."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(wake_descriptor, select.POLLIN)
    watch = -1
    # A process that the starter forked may hold its end of the pipe after the starter's death; the pid tells even then.
    with contextlib.suppress(AttributeError, OSError):
        watch = os.pidfd_open(parent_pid)
        poll.register(watch, select.POLLIN)
    if os.getppid() != parent_pid:
        return
    while server.poll() is None:
        for descriptor, _ in poll.poll():
            if descriptor == watch or (descriptor == 0 and not os.read(0, 1024)):
                return
            if descriptor == wake_descriptor and signal.SIGTERM in os.read(wake_descriptor, 1024):
                return


def _stop_server(server: subprocess.Popen[bytes]) -> int:
    """Stops what still runs of the server's group, politely first."""
    if server.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(TERM_GRACE_MS / 1_000)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
    return server.wait()


def _on_signal(number: int, frame: FrameType | None) -> None:
    """Nothing to do: the signal's number is in the wake-up pipe."""


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.exit(code if code >= 0 else 128 - code)
