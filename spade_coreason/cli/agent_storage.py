"""The stored data of agents, for the commands that show and delete it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ..domain.jid import bare_jid, parse_jid
from ..domain.texts.terminal_text import escape_label
from ..exceptions import ConfigError, DatabaseEmptyError
from .account import data_option, describe_agents
from .completion import complete_agents, read_local_accounts
from .settings import config_option, load_storage_settings, sqlite_file
from .terminal.console import format_path

if TYPE_CHECKING:
    from ..config import Settings
    from ..memory import AgentInteractionMemory
    from ..storage import AgentRepository, Database

ALL_AGENTS = "*"


def storage_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options `-c FILE`, `--data DIR` and `--agent JID`."""
    agent = click.option(
        "--agent",
        metavar="JID",
        shell_complete=complete_agents,
        help="The agent: its JID, or its name alone.  [default: all agents, or the only one if the command takes one]",
    )
    return config_option("config/platform.yaml, if it exists")(data_option(agent(function)))


def parse_person(person: str) -> str:
    """Parse the value of `--person` into the bare JID under which the data of a person is stored. Raise ConfigError."""
    try:
        return bare_jid(parse_jid(person))
    except ValueError as error:
        raise ConfigError("--person", str(error)) from error


@dataclass(frozen=True, slots=True)
class AgentStorage:
    """The repositories and memories of the agents that a command is about."""

    settings: Settings
    agents: tuple[str, ...]
    database: Database | None

    def repository(self, agent: str) -> AgentRepository | None:
        """Return the repository of an agent; None if nothing was ever stored."""
        from ..storage import AgentRepository

        return AgentRepository(self.database, agent) if self.database is not None else None

    def memory(self, agent: str) -> AgentInteractionMemory:
        """Build the interaction memory of an agent."""
        from ..app import build_memory_limits
        from ..memory import AgentInteractionMemory

        return AgentInteractionMemory(agent, self.settings.storage.memory_dir, limits=build_memory_limits(self.settings))

    def describe_none(self, things: str) -> str:
        """Return the line that there are no such things, which also says if there is no database at all."""
        shown = format_path(self.settings.data_dir)
        return f"No {things}." if self.database is not None else f"No {things}: nothing is stored in {shown} yet."

    @property
    def only_agent(self) -> str:
        """The agent of a command that needs exactly one; ConfigError if there are others or none."""
        if len(self.agents) == 1:
            return self.agents[0]
        known = ", ".join(self.agents)
        raise ConfigError(
            "--agent", f"is missing; the agents are {known}" if known else "is missing, and there are no agents here"
        )


@asynccontextmanager
async def open_storage(
    file: Path | None, data: Path | None, agent: str | None, *, is_exclusive: bool = False, creates_directory: bool = False
) -> AsyncIterator[AgentStorage]:
    """Open the stored data. `is_exclusive` opens it as the only process, or raises DataDirectoryInUseError.

    A missing data directory is created only if `creates_directory` is set.
    """
    settings = load_storage_settings(file, data)
    if creates_directory:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if _is_given_on_command_line("data") and not settings.data_dir.is_dir():
        raise ConfigError("--data", f"the directory {settings.data_dir} does not exist; name the data directory of a platform")
    with ExitStack() as stack:
        if is_exclusive and settings.data_dir.is_dir():
            from ..storage import lock_database, lock_directory

            stack.enter_context(lock_directory(settings.data_dir))
            if (database_file := sqlite_file(settings)) is not None and database_file.is_file():
                stack.enter_context(lock_database(settings.storage.url))
        database = await _open_database(settings, is_exclusive)
        try:
            yield AgentStorage(settings, await _select_agents(settings, agent, database), database)
        finally:
            if database is not None:
                await database.close()


async def _open_database(settings: Settings, is_exclusive: bool) -> Database | None:
    from ..storage import open_database

    file = sqlite_file(settings)
    if file is not None and not file.is_file() and not (is_exclusive and settings.data_dir.is_dir()):
        return None

    try:
        return await open_database(settings.storage.url, settings.storage.durability, is_read_only=not is_exclusive)
    except DatabaseEmptyError:
        return None


def _command_parameters() -> list[click.Parameter]:
    return click.get_current_context().command.params


def _is_given_on_command_line(option: str) -> bool:
    return click.get_current_context().get_parameter_source(option) is ParameterSource.COMMANDLINE


async def _select_agents(settings: Settings, name: str | None, database: Database | None) -> tuple[str, ...]:
    from ..storage import list_stored_agents

    # An agent that a backup restored here, or that was removed from the configuration, is known to the database only.
    stored = await list_stored_agents(database) if database is not None else []
    configured = (bare_jid(agent.jid) for agent in settings.agents)
    known = tuple(dict.fromkeys([*configured, *read_local_accounts(settings.data_dir), *stored]))
    if name is None or name == ALL_AGENTS:
        return known
    found = [jid for jid in known if name in (jid, jid.partition("@")[0])]
    if not found and "@" in name:
        # An agent that is no longer configured may still have stored data.
        return (bare_jid(name).lower(),)
    if len(found) != 1:
        is_argument = any(
            parameter.name == "agent" and parameter.param_type_name == "argument" for parameter in _command_parameters()
        )
        raise ConfigError("AGENT" if is_argument else "--agent", f'there is no agent "{name}"; {describe_agents(known)}')
    return tuple(found)


def confirm(action: str, is_confirmed: bool) -> None:
    """Ask the person at the terminal to confirm the action. Without a terminal, require `--yes`."""
    if is_confirmed:
        return
    if not sys.stdin.isatty():
        raise ConfigError("--yes", f"is missing; it is needed to {action} without a terminal")
    click.confirm(escape_label(f"{action[:1].upper()}{action[1:]}?"), abort=True, err=True)
