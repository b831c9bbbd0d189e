"""A tiny program that runs a server and stops it when the starter's process ends, even by `kill -9`.

    python lifeline.py LOG PROGRAM ARGUMENT…

Its standard input is a pipe from the starter: end of file means that the starter has ended, or wants the server to stop. Its
first line of output is the server's process id, and its exit status is the server's. The server has a process group of its
own, and no process of that group is left at the end. LOG receives the server's output and is the lock: while an earlier
server is still stopping, the next one with the same LOG waits. On Linux the server also gets SIGTERM if this program is
killed itself. It uses the standard library only and runs as a file, so it starts in milliseconds.
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
"""A server that has not ended this long after SIGTERM is killed. Stopping takes well under five seconds in total."""
LOCK_RETRY_MS = 50
PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Run the server until it or its starter ends. `arguments` are the log and the server's command; return its exit status."""
    log_path, *command = arguments
    starter_pid = os.getppid()
    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write)
    signal.signal(signal.SIGCHLD, _on_signal)
    signal.signal(signal.SIGTERM, _on_signal)  # stopping this program stops the server
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600), "wb", buffering=0) as log:
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
        _wait_until_stopped(server, starter_pid, wakeup_read)
        return _stop_server(server)
    finally:
        with contextlib.suppress(ProcessLookupError):  # workers that the server forked and did not stop
            os.killpg(server.pid, signal.SIGKILL)


def _die_with_parent() -> Callable[[], None] | None:
    """Return a function for the server's process: it requests SIGTERM for when this program ends (prctl(2), PR_SET_PDEATHSIG).

    None if the system has no such call. The function runs before the server's program.
    """
    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):  # not Linux
        return None
    lifeline_pid = os.getpid()

    def request_sigterm() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != lifeline_pid:  # this program ended before the call
            os._exit(1)

    return request_sigterm


def _acquire_lock(log_descriptor: int) -> bool:
    """Wait for the lock, which the server inherits. Return False if the starter closed the pipe first."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    while True:
        try:
            fcntl.flock(log_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if poll.poll(LOCK_RETRY_MS):
                return False


def _wait_until_stopped(server: subprocess.Popen[bytes], starter_pid: int, wakeup_fd: int) -> None:
    """Wait until the server has ended, the starter has ended or closed the pipe, or this program gets SIGTERM."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(wakeup_fd, select.POLLIN)
    starter_fd = -1
    # A process that the starter forked may keep the pipe open after the starter has ended. The pidfd still reports the end.
    with contextlib.suppress(AttributeError, OSError):
        starter_fd = os.pidfd_open(starter_pid)
        poll.register(starter_fd, select.POLLIN)
    if os.getppid() != starter_pid:
        return
    while server.poll() is None:
        for descriptor, _ in poll.poll():
            if descriptor == starter_fd or (descriptor == 0 and not os.read(0, 1024)):
                return
            if descriptor == wakeup_fd and signal.SIGTERM in os.read(wakeup_fd, 1024):
                return


def _stop_server(server: subprocess.Popen[bytes]) -> int:
    """Stop the server's process group with SIGTERM, then with SIGKILL. Return the server's exit status."""
    if server.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(TERM_GRACE_MS / 1_000)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
    return server.wait()


def _on_signal(number: int, frame: FrameType | None) -> None:
    """Do nothing: the signal's number is in the wake-up pipe."""


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.exit(code if code >= 0 else 128 - code)
