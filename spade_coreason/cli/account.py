"""The address of an agent and the account that asks it, from a running platform or from options."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..config import RunFile, is_platform_running, list_worker_directories, read_run_file
from ..domain.jid import bare_jid, jid_domain
from ..domain.texts.terminal_text import escape_label
from ..exceptions import ConfigError, PeerUnavailableError, ServerError
from ..operations.host import describe_agents
from .beginning import is_platform_beginning
from .context import current_options
from .settings import PLATFORM_FILE, config_option, find_data_directories
from .terminal.console import format_path, print_line

if TYPE_CHECKING:
    from ..config import ServerSettings
    from ..xmpp import AgentClient

PASSWORD_VARIABLE = "SPADE_COREASON_PASSWORD"
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_POLL_S = 0.05
_LOCAL_DOMAIN = "localhost"
"""The domain of all local servers."""


def data_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option `--data DIR`."""
    return click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="SPADE_COREASON_DATA_DIR",
        metavar="DIR",
        help="The data directory of the platform.  [default: data_dir of the configuration, else ./data]",
    )(function)


def account_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of commands that ask agents."""
    for option in reversed(
        (
            click.option(
                "--jid", "own_jid", metavar="JID", help="Your own account.  [default: the guest account of the platform]"
            ),
            click.option("--host", help="The host of your server.  [default: found through the domain of your JID]"),
            click.option("--port", type=click.IntRange(1, 65535), help="The port of your server.  [default: 5222]"),
            click.option(
                "--ca-file",
                type=_FILE,
                metavar="FILE",
                help="A PEM file with the authority that signed the server's certificate.",
            ),
            click.option("--no-verify", is_flag=True, help="Do not verify the server's certificate."),
            click.option(
                "--password-file",
                type=_FILE,
                metavar="FILE",
                help=f"A file with your password.  [default: the environment variable {PASSWORD_VARIABLE}, else a prompt]",
            ),
        )
    ):
        function = option(function)
    return config_option()(data_option(function))


@dataclass(frozen=True, slots=True)
class Account:
    """An account on a server.

    `agents` maps the JIDs of the known agents there to their descriptions. `is_complete` is True if there are no others.
    """

    jid: str
    password: str = field(repr=False)
    host: str | None = None
    port: int | None = None
    ca_file: Path | None = None
    verify: bool = True
    requires_tls: bool = True
    is_embedded: bool = False
    agents: Mapping[str, str] = field(default_factory=dict)
    is_complete: bool = False
    hint: str = ""
    """A reason why no agent may answer, if one is known."""
    data_dir: Path | None = None
    """The data directory of the running platform of these agents; None if it is not known."""

    def build_client(self, timeout_s: float = 10.0, on_text: Callable[[str, str], object] | None = None) -> AgentClient:
        """Build a client with this account, for use in `async with`; it connects within that time.

        `on_text` gets what agents write without being asked: their JID and a text.
        """
        from ..xmpp import AgentClient, ServerEndpoint

        # About one connection in fifty to the embedded server hangs at its start.
        limit_s, attempts = (min(3.0, timeout_s), 5) if self.is_embedded else (min(10.0, timeout_s), 1)
        endpoint = ServerEndpoint(self.host, self.port, self.verify, self.ca_file, limit_s, attempts, self.requires_tls)
        return AgentClient(self.jid, self.password, endpoint, on_text=on_text)

    def explain_silence(self, jid: str) -> str:
        """Return a reason why an agent does not answer; empty if none is known."""
        from ..operations.definition import NoArguments
        from ..operations.platform import show_status
        from ..operations.rpc.client import call_platform

        try:
            is_running = self.data_dir is not None and is_platform_running(self.data_dir)
            status = call_platform(self.data_dir, show_status, NoArguments())[0] if self.data_dir and is_running else None
        except ServerError:
            return self.hint
        is_paused = status is not None and any(agent.jid == bare_jid(jid) and agent.is_paused for agent in status.agents)
        if not is_paused:
            return self.hint
        agent = bare_jid(jid)
        return f"{agent} is paused; it answers after `spade-coreason resume {agent}`, or when an operator sends it /resume"

    def resolve_jid(self, agent: str) -> str:
        """Return the JID of an agent; a name alone is on the account's own domain.

        Raise PeerUnavailableError at once if it is known that there is no such agent.
        """
        from ..domain.callers import refuse_caller
        from ..domain.jid import parse_jid

        try:
            jid = parse_jid(refuse_caller(agent) if "@" in agent else f"{agent}@{jid_domain(self.jid)}")
        except ValueError as error:
            raise ConfigError("JID", str(error)) from error
        if self.is_complete and jid_domain(jid) == jid_domain(self.jid) and bare_jid(jid) not in self.agents:
            raise PeerUnavailableError(jid, f"does not exist on this platform; {describe_agents(tuple(self.agents))}")
        return jid


def resolve_account(
    file: Path | None,
    data: Path | None,
    own_jid: str | None,
    host: str | None,
    port: int | None,
    ca_file: Path | None,
    no_verify: bool,
    password_file: Path | None,
    *,
    timeout_s: float,
) -> Account:
    """Return the account that the options name; without `--jid`, the guest of the platform that uses the data directory.

    Wait up to `timeout_s` for a platform that is starting.
    """
    deadline = time.monotonic() + timeout_s
    jid = None if own_jid is None else _parse_own_jid(own_jid)
    if host is None:
        _wait_for_beginning_platform(file, data, jid, deadline)
    directory = find_running_directory(file, data)
    running = read_run_file(directory)
    is_local = host is None and (jid is None or jid_domain(jid) == _LOCAL_DOMAIN)
    if running is None and is_local and is_platform_running(directory):
        running = _wait_for_start(directory, timeout_s, deadline)
    if jid is None:
        values = {
            "--host": host,
            "--port": port,
            "--ca-file": ca_file,
            "--no-verify": no_verify,
            "--password-file": password_file,
        }
        if ineffective := [option for option, value in values.items() if value]:
            raise ConfigError(
                ineffective[0], "needs --jid JID, your own account; without it, the guest account of the local platform is used"
            )
        return _guest_account(running, directory)
    agents: Mapping[str, str] = {}
    hint, data_dir, requires_tls = "", None, True
    if running is not None and host is None and jid_domain(jid) == running.domain:
        agents = _agent_descriptions(running)
        data_dir = directory
        host, port = running.host, port or running.port
        ca_file = ca_file or (Path(running.ca_file) if running.ca_file else None)
        no_verify = no_verify or not running.verify
        requires_tls = running.requires_tls
    elif host is None and (server := _configured_server(file, jid)) is not None:
        host, port = server.host, port or server.port
        ca_file = ca_file or server.tls.ca_file
        no_verify = no_verify or not server.tls.verify
        requires_tls = server.tls.required
        hint = f"no platform is running on {format_path(directory)}"
    password = None if password_file is not None or data_dir is None else _local_password(data_dir, jid)
    return Account(
        jid,
        password or read_password(jid, password_file),
        host,
        port,
        ca_file,
        verify=not no_verify,
        requires_tls=requires_tls,
        agents=agents,
        hint=hint,
        data_dir=data_dir,
    )


def _local_password(directory: Path, jid: str) -> str | None:
    """Return the password of a person on the local server of a platform (`server.people`), or None."""
    try:
        passwords = json.loads((directory / "people.json").read_bytes())
    except (OSError, ValueError):
        return None
    return passwords.get(jid) if isinstance(passwords, dict) else None


def _parse_own_jid(text: str) -> str:
    from ..domain.callers import refuse_caller
    from ..domain.jid import parse_jid

    try:
        return parse_jid(refuse_caller(text))
    except ValueError as error:
        raise ConfigError("--jid", str(error)) from error


def _configured_server(file: Path | None, jid: str) -> ServerSettings | None:
    """Return the external server of the configuration if it has the domain of `jid`. No platform needs to run."""
    from ..config import load_server_settings

    project = current_options().project
    if file is None and not (project / PLATFORM_FILE).is_file():
        return None
    server = load_server_settings(file or PLATFORM_FILE, project, os.environ)
    return server if not server.is_local and server.domain == jid_domain(jid) else None


def find_running_directory(file: Path | None, data: Path | None) -> Path:
    """Return the directory of the running platform, or of the first worker on this machine if several share a data directory.

    If none runs, return the first data directory that a platform might use.
    """
    directories = find_data_directories(current_options().project, file, data)
    of_workers = (worker for directory in directories for worker in list_worker_directories(directory))
    return next(filter(is_platform_running, chain(directories, of_workers)), directories[0])


def _wait_for_beginning_platform(file: Path | None, data: Path | None, jid: str | None, deadline: float) -> None:
    """Wait while a platform of this session begins to start, as after `run … &` in one paste, and has not locked its data.

    A platform is not waited for if it has nothing to do with the domain of `jid`.
    """
    directories = find_data_directories(current_options().project, file, data)
    if any(map(is_platform_running, directories)):
        return
    if jid is not None and jid_domain(jid) != _LOCAL_DOMAIN and _configured_server(file, jid) is None:
        return
    is_told = not sys.stderr.isatty()
    while not any(map(is_platform_running, directories)) and is_platform_beginning() and time.monotonic() < deadline:
        if not is_told:
            print_line("Waiting for the platform that starts…", stream=sys.stderr)
            is_told = True
        time.sleep(_POLL_S)


def _guest_account(running: RunFile | None, directory: Path) -> Account:
    shown = format_path(directory)
    if running is None:
        remedy = "start one (`spade-coreason up`), or name your own account with --jid, or another data directory"
        remedy += " with -c, --project or --data"
        raise no_platform_error(directory, remedy)
    if running.guest is None:
        raise ConfigError(
            "--jid", f"is missing: the platform on {shown} has no guest account on {running.domain}; name your own account"
        )
    ca_file = Path(running.ca_file) if running.ca_file else None
    return Account(
        running.guest["jid"],
        running.guest["password"],
        running.host,
        running.port,
        ca_file,
        running.verify,
        running.requires_tls,
        running.mode == "embedded",
        _agent_descriptions(running),
        is_complete=True,
        data_dir=directory,
    )


def _wait_for_start(directory: Path, timeout_s: float, deadline: float) -> RunFile | None:
    """Wait until the platform that uses the directory is ready. Return None if it stops instead.

    ServerError at the `deadline`, which was `timeout_s` away when the command began.
    """
    shown = format_path(directory)
    print_line(f"Waiting for the platform on {shown} to start…", stream=sys.stderr)
    while is_platform_running(directory):
        if (running := read_run_file(directory)) is not None:
            return running
        if time.monotonic() > deadline:
            raise ServerError(f"{shown} is in use, but its platform was not ready in {timeout_s:g} s; see what it prints")
        time.sleep(_POLL_S)
    return None


def no_platform_error(directory: Path, remedy: str) -> ServerError:
    """Build the error that no platform runs on a data directory, or that this user cannot know."""
    shown = format_path(directory)
    if not directory.is_dir():
        return ServerError(f"no platform is running on {shown} (the directory {directory.absolute()} does not exist); {remedy}")
    if not os.access(directory, os.R_OK | os.X_OK):
        return ServerError(f"this user may not read {shown}, so it is unknown whether a platform is running; {remedy}")
    return ServerError(f"no platform is running on {shown}; {remedy}")


def _agent_descriptions(running: RunFile) -> dict[str, str]:
    return {agent["jid"]: agent.get("description", "") for agent in running.agents}


def read_password(jid: str, password_file: Path | None) -> str:
    """Read a password from a file, from the environment, or from the person at the terminal."""
    if password_file is not None:
        from ..config import read_secret_file

        return read_secret_file(password_file, "--password-file")
    if password := os.environ.get(PASSWORD_VARIABLE):
        return password
    if sys.stdin.isatty():
        return str(click.prompt(escape_label(f"Password of {jid}"), hide_input=True, err=True))
    raise ConfigError(PASSWORD_VARIABLE, f"is not set; set it to the password of {jid}, or use --password-file")
