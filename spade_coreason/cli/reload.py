"""`--reload`: a parent process watches the project, and replaces the process of the platform after a change.

The parent holds what must not end in between: the locks of the data and the local server. After a change it starts a child,
which imports and builds all agents but does not go online yet. If that succeeds, the old child answers what it has begun and
ends, and the new one takes over. If it fails, the child has printed the problem, and the old one goes on.

Parent and child are connected by a socket pair: the child writes `ready`, the parent answers with the names of the changed
files. The child ends when the parent does, because the socket is closed then.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..domain.environment.installation import install_hint
from ..exceptions import CoReasonError, ServerError, StoreError
from .context import run_async
from .errors import EXIT_INTERRUPTED
from .foreground import STOPPING, run_agents, serve
from .terminal.console import print_line, warn

if TYPE_CHECKING:
    from ..app import Platform, Supervision
    from ..config import Settings
    from ..xmpp import LocalServer

RELOAD_VARIABLE = "SPADE_COREASON_RELOAD"
SUFFIXES = (".py", ".yaml", ".yml", ".json", ".toml")
"""The files whose changes count. Those below the data directory do not."""
_READY = b"ready\n"
_MAX_NAMED_FILES = 3
_DEBOUNCE_MS = 200


def reload_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option `--reload` to a command, as `is_reloading`."""
    help_text = "Start again after each change of a file of the project. For development; needs watchfiles."
    return click.option("--reload", "is_reloading", is_flag=True, help=help_text)(function)


def run_or_reload(
    settings: Settings,
    on_online: Callable[[Platform], None],
    *,
    is_reloading: bool,
    files: Iterable[Path] = (),
    is_strict: bool = True,
) -> None:
    """Run the platform until SIGINT or SIGTERM: in this process, or with `is_reloading` in children of it.

    In the parent, `files` are watched beside the project. `on_online` is called when all agents are online at the first time.
    """
    handover = Handover.from_environment() if is_reloading else None
    if is_reloading and handover is None:
        if run_async(supervise(settings, files)):
            raise click.Abort  # the child has told it
    elif handover is None:
        run_agents(serve(settings, on_online, is_strict=is_strict))
    else:
        build_all_agents(settings, is_strict=is_strict)
        changed = handover.take_over()
        report = on_online if handover.is_first else lambda platform: print_line(f"Reloaded: {changed}.")
        run_agents(_serve_as_child(handover, serve(settings, report, is_strict=is_strict, supervision=handover.supervision)))
        return  # the parent reports the end
    print_line("Stopped.")


# The child


async def _serve_as_child(handover: Handover, serving: Coroutine[Any, Any, None]) -> None:
    handover.end_with_parent()
    await serving


@dataclass(frozen=True, slots=True)
class Handover:
    """The side of the child: what the parent holds for it, and the socket to the parent."""

    supervision: Supervision
    is_first: bool
    _socket: socket.socket

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Handover | None:
        """Return the handover of this process, or None if no parent has started it."""
        text = environ.get(RELOAD_VARIABLE)
        if text is None:
            return None
        from ..app import Supervision
        from ..xmpp import load_local_server

        fields = json.loads(text)
        server = None if fields["server"] is None else load_local_server(fields["server"])
        return cls(Supervision(server), fields["is_first"], socket.socket(fileno=fields["socket"]))

    def take_over(self) -> str:
        """Tell the parent that the platform can start, and wait until it may. Return the names of the changed files.

        Ends the process if the parent has ended, or does not need it any more.
        """
        self._socket.sendall(_READY)
        changed = self._socket.recv(4096)
        if not changed:
            sys.exit(0)
        return changed.decode().strip()

    def end_with_parent(self) -> None:
        """Stop this process, as SIGTERM does, when the parent ends. Call it in the event loop."""
        asyncio.get_running_loop().add_reader(self._socket, self._on_parent_ended)

    def _on_parent_ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        os.kill(os.getpid(), signal.SIGTERM)


def build_all_agents(settings: Settings, *, is_strict: bool) -> None:
    """Import and build all agents, as `check` does. Raise ConfigError if one cannot be built.

    Raise StoreError for stored data that cannot be read if `is_strict`. Otherwise only its agent stays offline.
    """
    from .dry_run import build_unstarted_agent

    for number in range(len(settings.agents)):
        try:
            build_unstarted_agent(settings, number)
        except StoreError:
            if is_strict:
                raise


# The parent


async def supervise(settings: Settings, files: Iterable[Path] = ()) -> bool:
    """Run the platform in a child process until SIGINT or SIGTERM, and replace it after each change.

    Return True if a second signal has ended it before its answers were finished.

    `files` are watched beside the project: configuration and manifests. Raise CoReasonError if watchfiles is missing, the
    local server cannot start or ends, or another process owns the data.
    """
    from ..app import lock_data, start_local_server

    _require_watchfiles()
    ignored = settings.data_dir.resolve()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM):
            stack.callback(loop.remove_signal_handler, number)  # last: no further signal cuts the end off
        lock_data(settings, stack)
        server = None
        if settings.server.mode != "external":
            server, notice = await start_local_server(settings, stack)
            if notice:
                warn(notice)
        stack.callback((settings.data_dir / "run.json").unlink, missing_ok=True)
        reloader = _Reloader(server, stop)
        stack.push_async_callback(reloader.stop)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, reloader.on_signal)
        watching = loop.create_task(reloader.watch_server())
        stack.callback(watching.cancel)
        changes = _watch(_watched_paths(settings, files), ignored, stop)
        changed: list[str] | None = []
        while changed is not None:
            following = asyncio.ensure_future(anext(changes, None))  # so that no change is missed while a child starts
            try:
                await reloader.replace(changed)
                changed = await following
            finally:
                following.cancel()
    if reloader.problem is not None:
        raise reloader.problem
    return reloader.is_forced


def _require_watchfiles() -> None:
    if importlib.util.find_spec("watchfiles") is None:
        raise CoReasonError(f"--reload needs watchfiles: {install_hint('reload')}")


def _watched_paths(settings: Settings, files: Iterable[Path]) -> list[Path]:
    """Return the project and the directories of the other files. A directory, because editors replace files."""
    directories = {settings.project.resolve(), *(file.resolve().parent for file in files)}
    return sorted(path for path in directories if not any(other in path.parents for other in directories))


async def _watch(paths: Iterable[Path], ignored: Path, stop: asyncio.Event) -> AsyncGenerator[list[str]]:
    """Yield the names of changed files, until `stop` is set."""
    from watchfiles import DefaultFilter, awatch

    is_relevant = DefaultFilter(ignore_paths=[ignored])
    async for changed in awatch(
        *paths,
        watch_filter=lambda change, path: path.endswith(SUFFIXES) and is_relevant(change, path),
        stop_event=stop,
        debounce=_DEBOUNCE_MS,
    ):
        yield sorted({Path(path).name for _, path in changed})


class _Reloader:
    """The children of the parent process: the platform that serves, and the one that is about to take over."""

    def __init__(self, server: LocalServer | None, stop: asyncio.Event) -> None:
        self._server = server
        self._stop = stop
        self._serving: _ReloadChild | None = None
        self._next: _ReloadChild | None = None
        self._reports: asyncio.Task[None] | None = None
        self.problem: CoReasonError | None = None
        """The reason why the parent has to end, if it is not a signal."""
        self.is_forced = False
        """True if a child was interrupted, and so could not finish its answers."""

    async def replace(self, changed: Sequence[str]) -> None:
        """Start a child, and let it take over if it can. `changed` are the names of the changed files, for people."""
        self._next = child = await _ReloadChild.start(self._server, is_first=self._serving is None)
        is_ready = await child.wait_until_ready()
        if is_ready and self._serving is not None and not self._stop.is_set():
            await self._serving.stop()
        if not is_ready or self._stop.is_set():
            await child.stop()
            self._next = None
            if not self._stop.is_set():
                self._tell_what_runs()
            return
        self._serving, self._next = child, None
        child.let_start(_name_files(changed))
        self._reports = asyncio.create_task(self._report_end(child))

    def _tell_what_runs(self) -> None:
        if self._serving is None or self._serving.has_ended:
            _tell("Nothing runs. The next change is tried.")
        else:
            _tell("The code of before the change goes on.")

    async def _report_end(self, child: _ReloadChild) -> None:
        """Tell that a platform has ended by itself, for example because a login is refused."""
        if await child.has_ended_by_itself():
            _tell("The platform has ended. The next change is tried.")

    async def watch_server(self) -> None:
        """Wait until the local server ends, which ends the parent too."""
        if self._server is not None:
            self.problem = ServerError(f"the {self._server.kind} server ended: {await self._server.wait_until_ended()}")
            self._stop.set()

    def on_signal(self) -> None:
        """Stop; at the second signal, at once."""
        is_first = not self._stop.is_set()
        self._stop.set()
        for child in (self._serving, self._next):
            if child is not None and not is_first:
                child.send_signal(signal.SIGINT)
            elif child is not None:
                child.begin_to_stop()
        if is_first:
            print_line(STOPPING)  # last: nobody may read it any more

    async def stop(self) -> None:
        """Stop the platform. Answers in flight are finished."""
        for child in (self._serving, self._next):
            if child is not None:
                await child.stop()
                self.is_forced |= child.was_interrupted


class _ReloadChild:
    """A process of the platform. It starts when `let_start` is called."""

    def __init__(self, process: asyncio.subprocess.Process, connection: socket.socket) -> None:
        self._process = process
        self._connection = connection
        self._is_stopping = False

    @classmethod
    async def start(cls, server: LocalServer | None, *, is_first: bool) -> _ReloadChild:
        """Start the same command again, as a child."""
        from ..xmpp import dump_local_server

        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        fields = {
            "server": None if server is None else dump_local_server(server),
            "is_first": is_first,
            "socket": theirs.fileno(),
        }
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "spade_coreason",
                *sys.argv[1:],
                stdin=subprocess.DEVNULL,
                env={**os.environ, RELOAD_VARIABLE: json.dumps(fields)},
                pass_fds=[theirs.fileno()],
                process_group=0,  # a Ctrl-C reaches the parent only, which stops its children
            )
        return cls(process, ours)

    @property
    def has_ended(self) -> bool:
        """True once the process has ended."""
        return self._process.returncode is not None

    @property
    def was_interrupted(self) -> bool:
        """True if the process has ended because of SIGINT."""
        return self._process.returncode in (EXIT_INTERRUPTED, -signal.SIGINT)

    async def wait_until_ready(self) -> bool:
        """Wait until the process could start the platform. Return False if it ends before, with the reason printed."""
        return await asyncio.get_running_loop().sock_recv(self._connection, len(_READY)) == _READY

    def let_start(self, changed: str) -> None:
        """Let the process start the platform. `changed` are the changed files, for people."""
        self._connection.send(f"{changed}\n".encode())

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def begin_to_stop(self) -> None:
        """Send SIGTERM to the process, once."""
        if not self._is_stopping:
            self._is_stopping = True
            self.send_signal(signal.SIGTERM)

    async def has_ended_by_itself(self) -> bool:
        """Wait for the end of the process. Return False if it was told to stop."""
        await self._process.wait()
        return not self._is_stopping

    async def stop(self) -> None:
        """Stop the process and wait for its end."""
        self.begin_to_stop()
        await self._process.wait()
        self._connection.close()


def _tell(line: str) -> None:
    print_line(line, stream=sys.stderr)


def _name_files(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMED_FILES])
    return f"{shown} and {len(names) - _MAX_NAMED_FILES} more" if len(names) > _MAX_NAMED_FILES else shown
