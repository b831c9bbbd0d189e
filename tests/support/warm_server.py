"""A process that has imported the package, and forks for each command of a test instead of starting Python anew.

It runs as `python -c SOURCE FD`, so that it adds no module. A request on the socket FD is a JSON object with the three standard
streams and the descriptors of `pass_fds`. The answer is the pid of the new process, and then `ready`, once that is a child of
the nearest subreaper (prctl(2)).

`python -c SOURCE FD LISTENER` also accepts connections at the socket LISTENER, each with one such request. A number is a signal
for the new process, which is killed at the end of the connection. The answer is its exit code.
"""

import atexit
import codecs
import contextlib
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import termios
import time

LEFT_OUT = (
    "spade_coreason.agents",
    "spade_coreason.storage.migrations.",
    "spade_coreason.__main__",
)
FURTHER = (
    "aiosqlite",
    "asyncpg",
    "jinja2_time",
    "openai",
    "pytest",
    "spade_coreason.xmpp.servers.embedded_main",
    "sqlalchemy.dialects.sqlite.aiosqlite",
    "sqlalchemy.dialects.postgresql.asyncpg",
)
MAX_DESCRIPTORS = 8


def import_all() -> None:
    """Import what a command could import; `tests/test_import_side_effects.py` shows that this does nothing else."""
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # `tests/conftest.py` says why
    import spade_coreason
    from spade_coreason.memory.tokens import counter_for

    names = [module.name for module in pkgutil.walk_packages(spade_coreason.__path__, "spade_coreason.")]
    for name in [name for name in names if not name.startswith(LEFT_OUT) and not name.endswith("_main")]:
        importlib.import_module(name)
    for name in FURTHER:
        importlib.import_module(name)
    counter_for("auto")  # its vocabulary takes longer to load than to fork


def serve(requests: socket.socket, listener: socket.socket) -> tuple[dict, list[int]]:  # type: ignore[type-arg]  # JSON
    """Fork for each request. Return in the new process, with its request and its descriptors."""
    while True:
        ready, _, _ = select.select([requests, listener], [], [])
        if listener in ready:
            connection, _ = listener.accept()
            if os.fork() == 0:
                requests.close()
                listener.close()
                return fork_and_watch(connection)
            connection.close()
            reap()
            continue
        data, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, MAX_DESCRIPTORS)
        if not data:
            os._exit(0)  # the tests have ended
        if (between := os.fork()) == 0:
            between = os.getpid()
            if (pid := os.fork()) == 0:
                requests.close()
                listener.close()
                while os.getppid() == between:
                    time.sleep(0.0005)  # there is no event for another parent
                return json.loads(data), descriptors
            requests.send(str(pid).encode())
            os._exit(0)  # this gives the new process its other parent
        os.waitpid(between, 0)
        requests.send(b"ready")
        for descriptor in descriptors:
            os.close(descriptor)


def fork_and_watch(connection: socket.socket) -> tuple[dict, list[int]]:  # type: ignore[type-arg]  # JSON
    """Fork for the request of a connection. Return in the new process. End this one when that has ended."""
    data, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, MAX_DESCRIPTORS)
    if not data:
        os._exit(0)
    if (pid := os.fork()) == 0:
        connection.close()
        return json.loads(data), descriptors
    for descriptor in descriptors:
        os.close(descriptor)
    ended = os.pidfd_open(pid)
    while ended not in select.select([connection.fileno(), ended], [], [])[0]:
        os.kill(pid, int(connection.recv(100) or signal.SIGKILL))
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def reap() -> None:
    """Collect the children that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def become_new(request: dict, descriptors: list[int]) -> None:  # type: ignore[type-arg]  # JSON
    """Make of this process what Python would be at the begin of the request's program."""
    numbers = [0, 1, 2, *request["pass_fds"]]
    first_free = max(numbers + descriptors) + 1
    spare = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, first_free) for descriptor in descriptors]
    os.closerange(3, first_free)
    for number, descriptor in zip(numbers, spare, strict=True):
        os.dup2(descriptor, number)
    os.closerange(first_free, max(spare) + 1)
    if request["start_new_session"]:
        os.setsid()
    if request["controls_terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    for number, is_ignored in request["signals"].items():
        handler = signal.default_int_handler if int(number) == signal.SIGINT else signal.SIG_DFL
        signal.signal(int(number), signal.SIG_IGN if is_ignored else handler)
    sys.dont_write_bytecode = bool(request["env"].get("PYTHONDONTWRITEBYTECODE"))
    encoding, _, errors = request["env"].get("PYTHONIOENCODING", "").partition(":")
    is_buffered = not request["env"].get("PYTHONUNBUFFERED")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        file = io.TextIOWrapper(
            open(number, "wb" if number else "rb", -1 if is_buffered or not number else 0, closefd=False),  # noqa: SIM115
            encoding=codecs.lookup(encoding or getattr(sys, name).encoding).name,
            errors=(errors or (encoding and "strict") if name != "stderr" else "") or getattr(sys, name).errors,
            newline="\n" if number else None,
            line_buffering=is_buffered and (name == "stderr" or os.isatty(number)),
            write_through=not is_buffered,
        )
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)
    sys.argv[:] = ["-c", *request["arguments"]]
    importlib.invalidate_caches()


ends_with: list[int] = []


def end() -> None:
    """Spare the end of thousands of modules, after all other functions for the end."""
    if ends_with:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ends_with[0])


atexit.register(end)
requests, listener = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
gc.disable()  # to look for garbage takes a quarter of the time of the imports
import_all()
gc.freeze()
gc.enable()
request, descriptors = serve(requests, listener)
become_new(request, descriptors)
try:
    exec(request["code"], {"__name__": "__main__", "__builtins__": __builtins__})
except SystemExit as exit:
    if isinstance(exit.code, int):
        ends_with.append(exit.code)
    raise
