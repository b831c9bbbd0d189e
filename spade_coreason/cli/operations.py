"""Calls of operations by commands: of the running platform where that has to do them, else of the stored data."""

from __future__ import annotations

import getpass
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import click

from ..domain.jid import bare_jid, parse_jid
from ..domain.texts.terminal_text import escape_label
from ..exceptions import ConfigError
from .account import find_running_directory, no_platform_error
from .completion import complete_agents, read_local_accounts
from .errors import EXIT_INTERRUPTED
from .settings import load_storage_settings
from .terminal.console import format_path, print_line

if TYPE_CHECKING:
    import asyncio

    from ..config import Settings
    from ..operations.definition import Arguments, Operation
    from ..operations.host import OperationHost

    A = TypeVar("A", bound=Arguments)
R = TypeVar("R")

OnProgress = Callable[[int, int], object]

yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


agent_option = click.option(
    "--agent",
    metavar="JID",
    shell_complete=complete_agents,
    help="The agent: its JID, or its name alone.  [default: all agents, or the only one if the command takes one]",
)


def parse_person(person: str, option: str = "--person") -> str:
    """Parse the value of an option into the bare JID under which the data of a person is stored. Raise ConfigError."""
    return bare_jid(parse_address(person, option))


def parse_address(address: str, option: str) -> str:
    """Parse the value of an option into a JID, as it is stored. Raise ConfigError."""
    try:
        return parse_jid(address)
    except ValueError as error:
        raise ConfigError(option, str(error)) from error


class PlatformAccess(Protocol):
    """The platform of a command: the running one, or its stored data."""

    data_dir: Path
    is_empty: bool
    """True if it is known that nothing was ever stored."""
    was_interrupted: bool
    """True if Ctrl-C came during the last operation."""

    def perform(self, operation: Operation[A, R], arguments: A, on_progress: OnProgress = lambda done, total: None) -> R:
        """Perform an operation, and return its result.

        The first Ctrl-C ends a long one after its current part, and the second at once. Raise the error of the operation, at
        the options of the command.
        """
        ...


class _RunningPlatform:
    is_empty = False
    was_interrupted = False

    def __init__(self, data_dir: Path, run_dir: Path) -> None:
        self.data_dir = data_dir
        self._run_dir = run_dir

    def perform(self, operation: Operation[A, R], arguments: A, on_progress: OnProgress = lambda done, total: None) -> R:
        from ..operations.rpc.client import call_platform

        with at_options():
            result, self.was_interrupted = call_platform(self._run_dir, operation, arguments, on_progress=on_progress)
        return _unless_interrupted(result, self.was_interrupted)


class _StoredPlatform:
    def __init__(self, data_dir: Path, runner: asyncio.Runner, host: OperationHost) -> None:
        self.data_dir = data_dir
        self.is_empty = host.database is None
        self.is_running = host.is_running
        self.was_interrupted = False
        self._runner = runner
        self._host = host

    def perform(self, operation: Operation[A, R], arguments: A, on_progress: OnProgress = lambda done, total: None) -> R:
        import asyncio

        from ..concurrency import handle_signals
        from ..operations.definition import Actor, Call, CallerKind

        call = Call(self._host, Actor(CallerKind.MACHINE_USER, f"user {getpass.getuser()}"), on_progress)

        async def work() -> R:
            task = asyncio.current_task()

            def on_interrupt() -> None:
                if call.is_stopped and task is not None:
                    task.cancel()
                call.stop()

            is_main = threading.current_thread() is threading.main_thread()  # only there are signals received
            with handle_signals([signal.SIGINT] if is_main else [], on_interrupt):
                return await operation(call, arguments)

        try:
            with at_options():
                result = self._runner.run(work())
        except asyncio.CancelledError:
            raise click.Abort from None
        self.was_interrupted = call.is_stopped
        return _unless_interrupted(result, call.is_stopped)


def _unless_interrupted(result: R, was_interrupted: bool) -> R:
    """Return a result, unless Ctrl-C came during an operation that cannot be stopped: the command ends then."""
    if was_interrupted and not hasattr(result, "is_complete"):
        raise click.Abort
    return result


@contextmanager
def open_platform(
    file: Path | None,
    data: Path | None,
    *,
    changes: bool = False,
    prefers_running: bool = False,
    creates_directory: bool = False,
) -> Iterator[PlatformAccess]:
    """Open the platform of `-c FILE` and `--data DIR` for operations.

    Operations that change nothing read the stored data, also while the platform runs. With `changes` the running platform
    performs all of them, as with `prefers_running`. If none runs, this process owns the data, or DataDirectoryInUseError is
    raised. Data that several workers share is not owned: the worker on this machine performs the operations, or if none runs
    here, this process asks the others.
    """
    settings = load_storage_settings(file, data)
    if is_given("data") and not settings.data_dir.is_dir() and not creates_directory:
        raise ConfigError("--data", f"the directory {settings.data_dir} does not exist; name the data directory of a platform")
    if (changes or prefers_running) and (served := _find_served_directory(settings.data_dir)) is not None:
        yield _RunningPlatform(settings.data_dir, served)
        return
    with _open_stored(settings, is_exclusive=changes, creates_directory=creates_directory, joins=prefers_running) as platform:
        yield platform


def _find_served_directory(data_dir: Path) -> Path | None:
    """Return the directory of a platform that uses a data directory and answers operations: of the first worker, if several."""
    from ..config import is_platform_running, list_worker_directories
    from ..operations.rpc.unix_socket import PLATFORM_SOCKET

    directories = [data_dir, *list_worker_directories(data_dir)]
    return next((one for one in directories if (one / PLATFORM_SOCKET).exists() and is_platform_running(one)), None)


@contextmanager
def _open_stored(settings: Settings, **kind: bool) -> Iterator[_StoredPlatform]:
    import asyncio

    from ..app import open_command_host

    host = open_command_host(settings, read_local_accounts(settings.data_dir), **kind)
    with asyncio.Runner() as runner:
        opened = runner.run(host.__aenter__())
        try:
            yield _StoredPlatform(settings.data_dir, runner, opened)
        finally:
            runner.run(host.__aexit__(None, None, None))


class _SharedPlatform:
    """Several workers, none of which runs on this machine."""

    is_empty = False
    was_interrupted = False

    def __init__(self, settings: Settings) -> None:
        self.data_dir = settings.data_dir
        self._settings = settings

    def perform(self, operation: Operation[A, R], arguments: A, on_progress: OnProgress = lambda done, total: None) -> R:
        with _open_stored(self._settings, joins=True) as platform:
            if not platform.is_running:
                raise no_platform_error(self.data_dir, "and no worker on another machine; start one (`spade-coreason up`)")
            return platform.perform(operation, arguments, on_progress)


def require_running(file: Path | None, data: Path | None, *, of_machine: bool = False) -> PlatformAccess:
    """Return the running platform of `-c FILE` and `--data DIR`. Raise ServerError if none runs.

    Without a worker on this machine it is that of all workers, unless `of_machine` asks for one here.
    """
    from ..config import is_platform_running

    directory = find_running_directory(file, data)
    if is_platform_running(directory):
        return _RunningPlatform(directory, directory)
    from ..app import is_shared

    remedy = "start one (`spade-coreason up`), or name another data directory with --data"
    try:
        settings = load_storage_settings(file, data)
    except ConfigError as error:  # clients of a platform on this machine need its data directory only
        raise no_platform_error(
            directory, f"workers on other machines are not found without the configuration: {error}"
        ) from error
    if is_shared(settings):
        if not of_machine:
            return _SharedPlatform(settings)
        remedy = "of several workers, this command reaches one on its own machine: name its data directory with --data"
    raise no_platform_error(directory, remedy)


def describe_none(platform: PlatformAccess, things: str) -> str:
    """Return the line that there are no such things, which also says if nothing was ever stored."""
    where = format_path(platform.data_dir)
    return f"No {things}: nothing is stored in {where} yet." if platform.is_empty else f"No {things}."


@contextmanager
def at_options() -> Iterator[None]:
    """Set the place of a wrong argument to the option or argument of the command that has it."""
    try:
        yield
    except ConfigError as error:
        for parameter in click.get_current_context().command.params:
            if error.place and error.place in (parameter.name, (parameter.metavar or "").strip("[]").lower()):
                is_option = parameter.param_type_name == "option"
                error.place = parameter.opts[0] if is_option else (parameter.metavar or str(parameter.name)).strip("[]").upper()
                break
        raise


def is_given(option: str) -> bool:
    """Return True if an option of the command that runs was written on the command line."""
    return click.get_current_context().get_parameter_source(option) is click.core.ParameterSource.COMMANDLINE


def refuse_options(names: Collection[str], why: str) -> None:
    """Raise ConfigError for the first of some options that was written on the command line."""
    for name in filter(is_given, names):
        raise ConfigError(f"--{name.replace('_', '-')}", why)


def confirm(action: str, is_confirmed: bool) -> None:
    """Ask the person at the terminal to confirm the action. Without a terminal, require `--yes`."""
    if is_confirmed:
        return
    if not sys.stdin.isatty():
        raise ConfigError("--yes", f"is missing; it is needed to {action} without a terminal")
    click.confirm(escape_label(f"{action[:1].upper()}{action[1:]}?"), abort=True, err=True)


def print_stopped() -> int:
    """Say that the work was stopped and how to finish it. Return the exit code of the command."""
    print_line("Stopped. What is done stays; run the same command again for the rest.", stream=sys.stderr)
    return EXIT_INTERRUPTED
