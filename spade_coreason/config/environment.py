"""What the environment says about settings: variables that override keys, and `${VAR}` inside of values."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

import yaml

from ..exceptions import ConfigError
from .settings import Settings, keys_of

PREFIX = "SPADE_COREASON_"
REFERENCE = re.compile(r"\$(\$?)\{([^}]*)(\}?)")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Path = tuple[str | int, ...]


def variable_of(path: Path) -> str:
    """The variable that overrides a key: `SPADE_COREASON_SERVER__PORT` for server.port."""
    return PREFIX + "__".join(str(step) for step in path).upper()


def overrides(environ: Mapping[str, str]) -> dict[tuple[str, ...], Any]:
    """The values of the keys that the environment names.

    A value that begins with [ or { is read as YAML, which JSON is part of. An empty variable counts as unset, and one
    with our prefix whose first word is no key is somebody else's, unless it has the form of a nested key.
    """
    found: dict[tuple[str, ...], Any] = {}
    known = keys_of(Settings)
    for variable, text in sorted(environ.items()):
        path = tuple(variable.removeprefix(PREFIX).lower().split("__"))
        if not variable.startswith(PREFIX) or not text:
            continue
        if path[0] in known:
            found[path] = _value(variable, text)
        elif len(path) > 1:
            near = difflib.get_close_matches(path[0], known, n=1)
            hint = f'did you mean "{variable_of((*near, *path[1:]))}"?' if near else "unset it"
            raise ConfigError(variable, f"there is no such setting; {hint}")
    return found


def _value(variable: str, text: str) -> Any:
    if not text.startswith(("[", "{")):
        return text
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(variable, "is not valid YAML or JSON; close every bracket and quote in it") from error


def merge(values: Mapping[str, Any], found: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """The values of a file with those of the environment in their places."""
    merged = dict(values)
    for path, value in found.items():
        section = merged
        for step in path[:-1]:
            inner = section.get(step)
            if not isinstance(inner, Mapping | None):
                break  # what is no section is reported as that, whatever the environment says
            section[step] = section = dict(inner or {})
        else:
            section[path[-1]] = value
    return merged


def expand(value: Any, environ: Mapping[str, str], shown: str, path: Path = ()) -> Any:
    """The value with every `${VAR}` and `${VAR:-default}` in its texts replaced; `$${` is a plain `${`.

    The default counts where the variable is unset or empty. ConfigError for one that is unset and has none.
    """
    if isinstance(value, str):
        return REFERENCE.sub(lambda found: _replace(found, environ, shown, path), value)
    if isinstance(value, Mapping):
        return {key: expand(inner, environ, shown, (*path, key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [expand(inner, environ, shown, (*path, number)) for number, inner in enumerate(value)]
    return value


def _replace(found: re.Match[str], environ: Mapping[str, str], shown: str, path: Path) -> str:
    escaped, inside, closed = found.groups()
    if escaped:
        return found[0][1:]
    name, with_default, default = inside.partition(":-")
    place = f"{shown}: {written(path)}"
    if not closed:
        raise ConfigError(place, '"${" is not closed; write ${VARIABLE}, or $${ for the characters themselves')
    if not NAME.fullmatch(name):
        raise ConfigError(place, f"${{{inside}}} names no variable; write ${{VARIABLE}} or ${{VARIABLE:-default}}")
    if with_default:
        return environ.get(name) or default
    if name not in environ:
        raise ConfigError(place, f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}")
    return environ[name]


def written(path: Path) -> str:
    """A key as a person writes it: agents[2].jid"""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")
