"""Settings from the environment: variables that override keys, and `${VAR}` references inside values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource

from ..domain.policy import section_keys
from ..domain.texts.enumeration import find_closest
from ..exceptions import ConfigError
from .mistakes import KeyPath, format_key
from .settings import Settings, find_section

PREFIX = "SPADE_COREASON_"
REFERENCE = re.compile(r"\$(\$?)\{([^}]*)(\}?)")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def variable_for(path: KeyPath) -> str:
    """Return the name of the variable that overrides a key: `SPADE_COREASON_SERVER__PORT` for server.port."""
    return PREFIX + "__".join(str(step) for step in path).upper()


class _EnvironmentSource(EnvSettingsSource):
    """The variables that name keys, as one mapping of nested sections."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        # Settings is a plain model: the environment is one of its sources, and we choose their order.
        fields = cast("type[BaseSettings]", Settings)
        super().__init__(fields, env_prefix=PREFIX, env_nested_delimiter="__", env_ignore_empty=True)
        self.env_vars = {name.lower(): text for name, text in environ.items() if text and name.startswith(PREFIX)}

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """Parse a value that begins with [ or { as JSON, else as YAML.

        Invalid YAML stays a text, so that it is reported as a mistake of that key.
        """
        if not isinstance(value, str) or not value.startswith(("[", "{")):
            return value
        with suppress(ValueError):  # YAML reads some JSON differently: \ud83d\ude00, 1e5, Infinity
            return json.loads(value)
        try:
            return yaml.safe_load(value)
        except (yaml.YAMLError, ValueError):
            return value


def read_overrides(environ: Mapping[str, str]) -> dict[str, Any]:
    """Read the keys that the environment overrides, in their sections.

    An empty variable counts as unset. A variable with our prefix whose first word is not a key belongs to another program
    and is ignored. If it has the form of a nested key, it is a ConfigError. So is a variable for an item of a list.
    """
    known = section_keys(Settings)
    for variable in sorted(name for name, text in environ.items() if text and name.startswith(PREFIX)):
        first, *rest = variable.removeprefix(PREFIX).lower().split("__")
        if rest and first not in known:
            near = find_closest(first, known)
            hint = f'did you mean "{variable_for((near, *rest))}"?' if near else "unset it"
            raise ConfigError(variable, f"no such setting; {hint}")
        if (path := _find_list(first, *rest)) is not None:
            remedy = f"set {variable_for(path)} as JSON, or use ${{VAR}} in the file"
            raise ConfigError(variable, f"lists cannot be overridden by index; {remedy}")
    return _EnvironmentSource(environ)()


def _find_list(*path: str) -> KeyPath | None:
    """Return the key of the list that contains the key at `path`; None if no list does."""
    section: type[BaseModel] | None = Settings
    for length, step in enumerate(path[:-1], 1):
        annotation = section_keys(section).get(step) if section is not None else None
        if _is_list(annotation):
            return path[:length]
        section = find_section(annotation)
    return None


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple or (
        get_origin(annotation) in (Union, UnionType) and any(map(_is_list, get_args(annotation)))
    )


def merge_overrides(
    values: Mapping[str, Any], overrides: Mapping[str, Any], environ: Mapping[str, str], path: KeyPath = ()
) -> dict[str, Any]:
    """Merge the overrides of the environment into the values of a file. A variable for a whole section replaces it."""
    merged = dict(values)
    for step, value in overrides.items():
        inner, here = merged.get(step), (*path, step)
        if environ.get(variable_for(here)) or not isinstance(value, Mapping):
            merged[step] = value
        elif isinstance(inner, Mapping | None):  # any other value is no section and stays, so that it is reported as that
            merged[step] = merge_overrides(inner or {}, value, environ, here)
    return merged


def expand_references(
    values: Mapping[str, Any], environ: Mapping[str, str], file_name: str, *, optional: Sequence[str] = ()
) -> dict[str, Any]:
    """Replace every `${VAR}` and `${VAR:-default}` in the texts of the values; `$${` becomes a plain `${`.

    The default applies if the variable is unset or empty. Raise ConfigError for unset variables without a default, except
    in the `optional` sections.
    """
    errors: list[ConfigError] = []

    def resolve(match: re.Match[str], path: KeyPath) -> str:
        try:
            return _resolve_reference(match, environ, f"{file_name}: {format_key(path)}")
        except ConfigError as error:
            if path[0] not in optional:
                errors.append(error)
            return ""

    def expand(value: Any, path: KeyPath) -> Any:
        if isinstance(value, str):
            return REFERENCE.sub(lambda match: resolve(match, path), value)
        if isinstance(value, Mapping):
            return {key: expand(inner, (*path, key)) for key, inner in value.items()}
        if isinstance(value, list):
            return [expand(inner, (*path, number)) for number, inner in enumerate(value)]
        return value

    expanded: dict[str, Any] = expand(values, ())
    if errors:
        raise ConfigError.combine(errors)
    return expanded


def _resolve_reference(match: re.Match[str], environ: Mapping[str, str], place: str) -> str:
    escaped, inside, closed = match.groups()
    if escaped:
        return match[0][1:]
    name, with_default, default = inside.partition(":-")
    if not closed:
        raise ConfigError(place, '"${" is not closed; write ${VARIABLE}, or $${ for a literal ${')
    if not NAME.fullmatch(name):
        raise ConfigError(place, f"${{{inside}}} names no variable; write ${{VARIABLE}} or ${{VARIABLE:-default}}")
    if with_default:
        return environ.get(name) or default
    if name not in environ:
        raise ConfigError(place, f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}")
    return environ[name]
