"""What the environment says about settings: variables that override keys, and `${VAR}` inside of values."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import yaml
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource

from ..exceptions import ConfigError
from .settings import Settings, keys_of

PREFIX = "SPADE_COREASON_"
REFERENCE = re.compile(r"\$(\$?)\{([^}]*)(\}?)")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

KeyPath = tuple[str | int, ...]


def variable_for(path: KeyPath) -> str:
    """The variable that overrides a key: `SPADE_COREASON_SERVER__PORT` for server.port."""
    return PREFIX + "__".join(str(step) for step in path).upper()


class _Variables(EnvSettingsSource):
    """The variables that name keys, as one value of nested sections."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        fields = cast("type[BaseSettings]", Settings)  # a plain model: the environment is one of its sources, in our order
        super().__init__(fields, env_prefix=PREFIX, env_nested_delimiter="__", env_ignore_empty=True)
        self.env_vars = {name.lower(): text for name, text in environ.items() if text and name.startswith(PREFIX)}

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """What begins with [ or { is YAML, which JSON is part of. What is none stays a text, and so a mistake of that key."""
        if not isinstance(value, str) or not value.startswith(("[", "{")):
            return value
        try:
            return yaml.safe_load(value)
        except (yaml.YAMLError, ValueError):
            return value


def read_overrides(environ: Mapping[str, str]) -> dict[str, Any]:
    """The values of the keys that the environment names, in their sections.

    An empty variable counts as unset, and one with our prefix whose first word is no key is somebody else's, unless it has
    the form of a nested key.
    """
    known = keys_of(Settings)
    for variable in sorted(name for name, text in environ.items() if text and name.startswith(PREFIX)):
        first, *rest = variable.removeprefix(PREFIX).lower().split("__")
        if rest and first not in known:
            near = difflib.get_close_matches(first, known, n=1)
            hint = f'did you mean "{variable_for((*near, *rest))}"?' if near else "unset it"
            raise ConfigError(variable, f"there is no such setting; {hint}")
    return _Variables(environ)()


def merge_overrides(
    values: Mapping[str, Any], overrides: Mapping[str, Any], environ: Mapping[str, str], path: KeyPath = ()
) -> dict[str, Any]:
    """The values of a file with those of the environment in their places; a variable of a whole section replaces it."""
    merged = dict(values)
    for step, value in overrides.items():
        inner, here = merged.get(step), (*path, step)
        if environ.get(variable_for(here)) or not isinstance(value, Mapping):
            merged[step] = value
        elif isinstance(inner, Mapping | None):  # what is no section is reported as that, whatever the environment says
            merged[step] = merge_overrides(inner or {}, value, environ, here)
    return merged


def expand_references(
    values: Mapping[str, Any], environ: Mapping[str, str], file_name: str, *, optional: Sequence[str] = ()
) -> dict[str, Any]:
    """The values with every `${VAR}` and `${VAR:-default}` in their texts replaced; `$${` is a plain `${`.

    The default counts where the variable is unset or empty. ConfigError for those that are unset and have none, but in the
    `optional` sections.
    """
    wrong: list[ConfigError] = []

    def replaced(found: re.Match[str], path: KeyPath) -> str:
        try:
            return _resolve_reference(found, environ, f"{file_name}: {format_key(path)}")
        except ConfigError as error:
            if path[0] not in optional:
                wrong.append(error)
            return ""

    def inside(value: Any, path: KeyPath) -> Any:
        if isinstance(value, str):
            return REFERENCE.sub(lambda found: replaced(found, path), value)
        if isinstance(value, Mapping):
            return {key: inside(inner, (*path, key)) for key, inner in value.items()}
        if isinstance(value, list):
            return [inside(inner, (*path, number)) for number, inner in enumerate(value)]
        return value

    expanded: dict[str, Any] = inside(values, ())
    if wrong:
        raise ConfigError.combine(wrong)
    return expanded


def _resolve_reference(match: re.Match[str], environ: Mapping[str, str], place: str) -> str:
    escaped, inside, closed = match.groups()
    if escaped:
        return match[0][1:]
    name, with_default, default = inside.partition(":-")
    if not closed:
        raise ConfigError(place, '"${" is not closed; write ${VARIABLE}, or $${ for the characters themselves')
    if not NAME.fullmatch(name):
        raise ConfigError(place, f"${{{inside}}} names no variable; write ${{VARIABLE}} or ${{VARIABLE:-default}}")
    if with_default:
        return environ.get(name) or default
    if name not in environ:
        raise ConfigError(place, f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}")
    return environ[name]


def format_key(path: KeyPath) -> str:
    """A key as a person writes it: agents[2].jid"""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")
