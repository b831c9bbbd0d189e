"""Settings for a command: from the file that it names, from a default file, or from options alone."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..exceptions import ConfigError, CoReasonError
from .context import current_options
from .terminal.console import warn

if TYPE_CHECKING:
    from ..config import RunFile, Settings

_PAGE_PORTS = range(8080, 8180)
_reservations: list[socket.socket] = []
"""Held until the process ends, so that two processes that start at the same time choose two ports."""
PLATFORM_FILE = Path("config/platform.yaml")
DEMO_FILE = Path("config/demo.yaml")
# The content of config/demo.yaml, for a project without that file.
DEMO_SECTIONS: dict[str, Any] = {
    "server": {"people": ["colleague@localhost"]},
    "access": {"groups": {"finance": ["colleague@localhost"]}},
    "agents": [
        {"jid": "echo@localhost", "agent": "spade_coreason.agents.echo:EchoAgent"},
        {"jid": "notes@localhost", "agent": "spade_coreason.agents.notes:NotesAgent"},
        {
            "jid": "relay@localhost",
            "agent": "spade_coreason.agents.relay:RelayAgent",
            "options": {"ask": ["echo@localhost", "notes@localhost"]},
        },
        {"jid": "refunds@localhost", "agent": "spade_coreason.agents.refunds:RefundsAgent"},
        {"jid": "assistant@localhost", "agent": "spade_coreason.agents.assistant:AssistantAgent"},
    ],
}


def config_option(default: str = "config/platform.yaml, if it exists") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the option `-c FILE`; `default` is shown in its help."""
    return click.option(
        "-c",
        "--config",
        "file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help=f"The configuration file (YAML or TOML).  [default: {default}]",
    )


def load_platform_settings(file: Path | None) -> Settings:
    """Load the settings of `-c FILE`, else of config/platform.yaml. Raise ConfigError if there is neither."""
    project = current_options().project
    if file is None and not (project / PLATFORM_FILE).is_file():
        remedy = "name one with -c FILE, name your project with --project DIR, or create one: spade-coreason init DIR"
        raise ConfigError(str(PLATFORM_FILE), f"no such file in {project}; {remedy}")
    return _load(file or PLATFORM_FILE, os.environ)


def load_demo_settings(file: Path | None, data: Path | None) -> Settings:
    """Load the settings of `-c FILE`, else of config/demo.yaml, else the built-in `DEMO_SECTIONS`."""
    environ = _environ_with_data_dir(os.environ, data)
    if file is None and (current_options().project / DEMO_FILE).is_file():
        file = DEMO_FILE
    return _load(file, environ) if file is not None else _load(None, _environ_with_sections(environ, DEMO_SECTIONS))


def with_page(settings: Settings) -> Settings:
    """Return the settings with the page in the browser, at a free port from 8080 on, if its libraries are installed."""
    from ..config import WebSettings

    if settings.web is not None or find_spec("uvicorn") is None or find_spec("starlette") is None:
        return settings
    for port in _PAGE_PORTS:
        reservation = socket.socket(socket.AF_UNIX)
        with suppress(OSError):
            reservation.bind(f"\0spade_coreason page {port}")
            socket.create_server(("127.0.0.1", port)).close()
            _reservations.append(reservation)
            return settings.model_copy(update={"web": WebSettings(port=port)})
        reservation.close()
    return settings


def load_storage_settings(file: Path | None, data: Path | None) -> Settings:
    """Load the settings that locate the stored data.

    They are those of `-c FILE`. Without it they are those of the platform that runs on `--data DIR`, or else in the data
    directory of config/platform.yaml or in data/. If none runs, they are those of `--data DIR`, config/platform.yaml or data/.
    """
    return _print_warnings(load_storage_settings_quietly(current_options().project, file, data))


def load_storage_settings_quietly(project: Path, file: Path | None, data: Path | None) -> Settings:
    """Load the same settings as `load_storage_settings`, without printing their warnings."""
    from ..config import list_worker_directories, load_settings, read_run_file

    if file is None:
        directories = [project / data] if data is not None else find_data_directories(project, None, None)
        for directory in directories:
            for place in (directory, *list_worker_directories(directory)):
                if (running := read_run_file(place)) is not None:
                    return _load_running_settings(running, directory, project)
    if file is None and data is None and (project / PLATFORM_FILE).is_file():
        file = PLATFORM_FILE
    return load_settings(file, project, _environ_with_data_dir(os.environ, data), logs_in=False)


def _load_running_settings(running: RunFile, directory: Path, project: Path) -> Settings:
    """Load the settings of the platform that runs on `directory`. Raise ConfigError if its database cannot be known."""
    from ..config import load_settings

    file = Path(running.configuration) if running.configuration else None
    environ = _environ_with_data_dir(os.environ, directory.absolute())
    settings = load_settings(file, Path(running.project or project), environ, logs_in=False)
    if running.database not in (None, settings.storage.shown_url):
        remedy = "set the environment variables with which it was started, or name its configuration with -c FILE"
        raise ConfigError("storage.url", f"the running platform uses {running.database}; {remedy}")
    return settings


def find_data_directories(project: Path, file: Path | None, data: Path | None) -> list[Path]:
    """List the directories where a platform may store its data.

    These are the named one, else the one in config/platform.yaml and `data`.
    """
    from ..config import load_data_dir

    default = project / "data"
    if file is None and (data is not None or not (project / PLATFORM_FILE).is_file()):
        return [project / data if data is not None else default]
    configured = load_data_dir(file or PLATFORM_FILE, project, os.environ)
    if data is not None:
        return [project / data]
    return [configured] if file is not None else list(dict.fromkeys([configured, default]))


def sqlite_file(settings: Settings) -> Path | None:
    """Return the database file; None if the sessions are on a database server."""
    scheme, _, rest = settings.storage.url.partition(":///")
    return Path(rest.partition("?")[0]) if scheme.startswith("sqlite") else None


def build_settings(values: Mapping[str, Any], option_by_key: Mapping[str, str], data: Path | None) -> Settings:
    """Build settings from options; the environment provides the rest.

    `values` are whole sections. `option_by_key` names the option that a key came from, for errors.
    """
    try:
        return _load(None, _environ_with_sections(_environ_with_data_dir(os.environ, data), values))
    except ConfigError as error:
        for problem in (error, *error.others):
            place_at_option(problem, option_by_key)
        raise


def place_at_option(error: CoReasonError, option_by_key: Mapping[str, str]) -> None:
    """Set the place of an error to the option that its key came from."""
    key = re.sub(r"^SPADE_COREASON_\w+(: )?", "", error.place)
    if key.startswith("agents[0].options."):
        error.place = f"--option {key.removeprefix('agents[0].options.')}"
    else:
        error.place = option_by_key.get(key, error.place)


def _environ_with_sections(environ: Mapping[str, str], sections: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment with these sections in place of its own values for them.

    `load_settings` reads a section from one variable as well as from a file. So all of its checks apply to options too.
    """
    section_variables = {
        f"SPADE_COREASON_{section.upper()}": json.dumps(value, default=str) for section, value in sections.items()
    }
    others = {
        name: text
        for name, text in environ.items()
        if not name.upper().startswith(tuple(f"{variable}__" for variable in section_variables))
    }
    return {**others, **section_variables}


def _environ_with_data_dir(environ: Mapping[str, str], data: Path | None) -> dict[str, str]:
    return {**environ, **({"SPADE_COREASON_DATA_DIR": str(data)} if data is not None else {})}


def warn_of_closed_doors(settings: Settings, agents: Collection[str], doors: Sequence[str]) -> None:
    """Print a warning for each of the agents (bare JIDs) that a new key or webhook does not reach, since no door is open."""
    for agent in settings.agents:
        if agent.jid in agents and not set(doors) & set(agent.doors):
            server = "`web: {}`, and " if settings.web is None else ""
            warn(f"{agent.jid} is behind no door for this: add {server}`doors: [{doors[0]}]` for it to the configuration")


def _load(file: Path | None, environ: Mapping[str, str]) -> Settings:
    from ..config import load_settings

    return _print_warnings(load_settings(file, current_options().project, environ))


def _print_warnings(settings: Settings) -> Settings:
    for warning in settings.warnings:
        warn(warning)
    return settings
