"""Settings read once from a file and the environment, or a one-line error."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError

from ..domain.jid import jid_domain
from ..exceptions import ConfigError
from .environment import expand_references, merge_overrides, read_overrides, variable_for
from .files import read_file, read_secret_file
from .mistakes import KeyPath, describe_mistakes, format_key
from .relative_paths import resolve_paths
from .settings import AgentSettings, Origin, ServerSettings, Settings
from .validation import find_ca_file_problem, find_problems, find_warnings


def load_settings(path: Path | None, project: Path, environ: Mapping[str, str], *, logs_in: bool = True) -> Settings:
    """Read the settings from the file at `path` (None: the defaults), overridden by the environment.

    A relative `path` begins in `project`, and so do relative paths in the environment; those in the file begin beside it.
    A variable `SPADE_COREASON_SECTION__KEY` overrides section.key. Without `logs_in`, agents need no secrets.

    Raise ConfigError for a mistake. Its text is one line with file, key, cause and remedy; further mistakes are its `others`.
    """
    project = project.expanduser().absolute()
    file_name = None if path is None else _display_name(path, project)
    directory = project if path is None else _directory_of(path, project)
    raw = {} if path is None or file_name is None else read_file(project / path, file_name)
    overrides = read_overrides(environ)

    def place(key: KeyPath) -> str:
        for length in range(len(key), 0, -1):
            variable = variable_for(key[:length])
            if environ.get(variable):
                return variable if length == len(key) else f"{variable}: {format_key(key)}"
        return f"{file_name}: {format_key(key)}" if file_name else format_key(key)

    try:
        expanded = expand_references(raw, environ, file_name or "", optional=() if logs_in else ("agents",))
        values = merge_overrides(resolve_paths(expanded, directory), overrides, environ)
    except RecursionError as error:
        raise ConfigError(file_name or "", "an anchor (&) contains itself; write it out") from error
    try:
        settings = Settings.model_validate(values, context={"project": project})
    except ValidationError as error:
        mistakes = describe_mistakes(error, Settings, merge_overrides(raw, overrides, environ))
        raise ConfigError.combine(ConfigError(place(key), problem) for key, problem in mistakes.items()) from error
    settings = _with_external_domain(settings)
    if problems := list(find_problems(settings, logs_in=logs_in)):
        raise ConfigError.combine(ConfigError(place(key), problem) for key, problem in problems)
    if logs_in:
        agents = tuple(_with_password(agent, place(("agents", n))) for n, agent in enumerate(settings.agents))
        settings = settings.model_copy(update={"agents": agents})
    literal_passwords = [] if "agents" in overrides else _find_literal_passwords(raw)
    warnings = tuple(f"{place(key)}: {text}" for key, text in find_warnings(settings, literal_passwords))
    settings._origin = Origin(project, file_name, warnings)
    return settings


def load_server_settings(path: Path, project: Path, environ: Mapping[str, str]) -> ServerSettings:
    """Read the server from a configuration file. The rest, and its secrets, concern only the user who runs the agents.

    Raise ConfigError if the server is wrong. Other mistakes are not looked for.
    """
    file_name = _display_name(path, project)
    raw = read_file(project / path, file_name)
    overrides = {key: value for key, value in read_overrides(environ).items() if key == "server"}
    section = expand_references({"server": raw.get("server") or {}}, environ, file_name)
    section = resolve_paths(section, _directory_of(path, project))
    try:
        server = Settings.model_validate(merge_overrides(section, overrides, environ), context={"project": project}).server
    except ValidationError as error:
        mistakes = describe_mistakes(error, Settings, raw)
        raise ConfigError.combine(
            ConfigError(f"{file_name}: {format_key(key)}", text) for key, text in mistakes.items()
        ) from error
    agents = raw.get("agents")
    first = agents[0] if isinstance(agents, list) and agents and isinstance(agents[0], Mapping) else {}
    if problem := find_ca_file_problem(server.tls.ca_file):
        raise ConfigError(f"{file_name}: server.tls.ca_file", problem)
    return _with_default_domain(server, str(first.get("jid", "")))


def load_data_dir(path: Path, project: Path, environ: Mapping[str, str]) -> Path:
    """Read only `data_dir` of a file: the rest, and its secrets, concern only the user who runs the agents."""
    file_name = _display_name(path, project)
    given = read_file(project / path, file_name).get("data_dir")
    if not given:
        return project / "data"
    section = resolve_paths(expand_references({"data_dir": given}, environ, file_name), _directory_of(path, project))
    return Path(str(section["data_dir"]))


def _directory_of(path: Path, project: Path) -> Path:
    """Return the directory of a settings file, in which its relative paths begin."""
    return (project / path.expanduser()).parent


def _display_name(path: Path, project: Path) -> str:
    absolute = project / path
    return str(absolute.relative_to(project)) if path.is_absolute() and absolute.is_relative_to(project) else str(path)


def _with_external_domain(settings: Settings) -> Settings:
    """Default the domain of an external server to the domain of the first agent."""
    jid = settings.agents[0].jid if settings.agents else ""
    return settings.model_copy(update={"server": _with_default_domain(settings.server, jid)})


def _with_default_domain(server: ServerSettings, jid: str) -> ServerSettings:
    if server.is_local or "domain" in server.model_fields_set or not jid:
        return server
    return server.model_copy(update={"domain": jid_domain(jid)})


def _with_password(agent: AgentSettings, place: str) -> AgentSettings:
    if agent.password_file is None:
        return agent
    password = read_secret_file(agent.password_file, f"{place}.password_file")
    return agent.model_copy(update={"password": SecretStr(password)})


def _find_literal_passwords(raw: Mapping[str, Any]) -> list[KeyPath]:
    agents = raw.get("agents")
    return [
        ("agents", number, "password")
        for number, agent in enumerate(agents if isinstance(agents, list) else ())
        if isinstance(agent, Mapping) and "${" not in str(agent.get("password") or "${")
    ]
