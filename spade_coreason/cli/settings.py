"""Settings for a command: from the file that it names, from one that is there by default, or from options alone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..exceptions import ConfigError, CoReasonError
from .console import warn
from .context import current_options

if TYPE_CHECKING:
    from ..config import Settings

PLATFORM_FILE = Path("config/platform.yaml")
DEMO_FILE = Path("config/demo.yaml")
# What config/demo.yaml says, for a project that has none.
DEMO_SECTIONS: dict[str, Any] = {
    "agents": [
        {"jid": "echo@localhost", "agent": "spade_coreason.agents.echo:EchoAgent"},
        {"jid": "notes@localhost", "agent": "spade_coreason.agents.notes:NotesAgent"},
        {
            "jid": "relay@localhost",
            "agent": "spade_coreason.agents.relay:RelayAgent",
            "options": {"ask": ["echo@localhost", "notes@localhost"]},
        },
        {"jid": "assistant@localhost", "agent": "spade_coreason.agents.assistant:AssistantAgent"},
    ],
}


def config_option(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`-c FILE`"""
    return click.option(
        "-c",
        "--config",
        "file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help=f"The configuration, YAML or TOML.  [default: {default}]",
    )


def load_platform_settings(file: Path | None) -> Settings:
    """The settings of `-c FILE`, else of config/platform.yaml."""
    project = current_options().project
    if file is None and not (project / PLATFORM_FILE).is_file():
        remedy = "name one with -c FILE, go to your project (--project DIR), or make one: spade-coreason init DIR"
        raise ConfigError(str(PLATFORM_FILE), f"there is no such file in {project}; {remedy}")
    return _load(file or PLATFORM_FILE, os.environ)


def load_demo_settings(file: Path | None, data: Path | None) -> Settings:
    """The settings of `-c FILE`, else of config/demo.yaml, else the same without a file."""
    environ = _environ_with_data_dir(os.environ, data)
    if file is None and (current_options().project / DEMO_FILE).is_file():
        file = DEMO_FILE
    return _load(file, environ) if file is not None else _load(None, _environ_with_sections(environ, DEMO_SECTIONS))


def load_storage_settings(file: Path | None, data: Path | None) -> Settings:
    """Where a command finds what is stored: `-c FILE`, or `--data DIR`, else config/platform.yaml, else data/."""
    return _print_warnings(load_storage_settings_quietly(current_options().project, file, data))


def load_storage_settings_quietly(project: Path, file: Path | None, data: Path | None) -> Settings:
    """The same without warnings."""
    from ..config import load_settings

    if file is None and data is None and (project / PLATFORM_FILE).is_file():
        file = PLATFORM_FILE
    return load_settings(file, project, _environ_with_data_dir(os.environ, data), logs_in=False)


def find_data_directories(project: Path, file: Path | None, data: Path | None) -> list[Path]:
    """Where a platform may keep its data: what is named, else what config/platform.yaml says, and `data`."""
    usual = project / "data"
    if file is None and (data is not None or not (project / PLATFORM_FILE).is_file()):
        return [project / data if data is not None else usual]
    configured = _read_data_dir(project, file or PLATFORM_FILE)
    if data is not None:
        return [project / data]
    return [configured] if file is not None else list(dict.fromkeys([configured, usual]))


def _read_data_dir(project: Path, file: Path) -> Path:
    """What else a configuration says, and the secrets that it needs, concern only whoever runs it."""
    from ..config import expand_references, read_file

    named = {"data_dir": read_file(project / file, str(file)).get("data_dir") or "data"}
    return project / Path(str(expand_references(named, os.environ, str(file))["data_dir"])).expanduser()


def sqlite_file(settings: Settings) -> Path | None:
    """The file of the sessions; None where they are on a database server."""
    scheme, _, rest = settings.storage.url.partition(":///")
    return Path(rest.partition("?")[0]) if scheme.startswith("sqlite") else None


def build_settings(values: Mapping[str, Any], option_by_key: Mapping[str, str], data: Path | None) -> Settings:
    """The settings that options make; the environment gives the rest.

    `sections` are whole sections; `option_by_key` tells which option a key came from, for errors.
    """
    try:
        return _load(None, _environ_with_sections(_environ_with_data_dir(os.environ, data), values))
    except ConfigError as error:
        for one in (error, *error.others):
            place_at_option(one, option_by_key)
        raise


def place_at_option(error: CoReasonError, option_by_key: Mapping[str, str]) -> None:
    """Places an error at the option that its key came from."""
    key = re.sub(r"^SPADE_COREASON_\w+(: )?", "", error.place)
    if key.startswith("agents[0].options."):
        error.place = f"--option {key.removeprefix('agents[0].options.')}"
    else:
        error.place = option_by_key.get(key, error.place)


def _environ_with_sections(environ: Mapping[str, str], sections: Mapping[str, Any]) -> dict[str, str]:
    """The environment as if it gave these sections, and nothing else about them.

    `load_settings` reads a section in one variable as well as in a file; so all of its checks hold for options too.
    """
    ours = {f"SPADE_COREASON_{section.upper()}": json.dumps(value, default=str) for section, value in sections.items()}
    others = {name: text for name, text in environ.items() if not name.upper().startswith(tuple(f"{own}__" for own in ours))}
    return {**others, **ours}


def _environ_with_data_dir(environ: Mapping[str, str], data: Path | None) -> dict[str, str]:
    return {**environ, **({"SPADE_COREASON_DATA_DIR": str(data)} if data is not None else {})}


def _load(file: Path | None, environ: Mapping[str, str]) -> Settings:
    from ..config import load_settings

    return _print_warnings(load_settings(file, current_options().project, environ))


def _print_warnings(settings: Settings) -> Settings:
    for warning in settings.warnings:
        warn(warning)
    return settings
