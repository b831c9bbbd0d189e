"""Relative paths in a settings file, which begin beside that file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from pydantic import BaseModel

from ..domain.policy import section_keys
from .mistakes import KeyPath
from .setting_types import SQLITE_PREFIX
from .settings import Settings, find_section

_OPTION_PATHS: tuple[KeyPath, ...] = (("endpoint", "api_key_file"), ("mcp", "*", "cwd"))
"""The paths in the options of an LLMAgent. `*` is any name."""


def resolve_paths(values: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return the values of a file in `directory` with its relative paths made absolute."""
    resolved: dict[str, Any] = _resolve_section(Settings, values, directory)
    return resolved


def _resolve_section(section: type[BaseModel], values: Any, directory: Path) -> Any:
    """Return the values of a section with absolute paths. Values of a wrong type stay, and are reported as that later."""
    if isinstance(values, list):
        return [_resolve_section(section, value, directory) for value in values]
    if not isinstance(values, Mapping):
        return values
    resolved = dict(values)
    for name, annotation in section_keys(section).items():
        if name not in values:
            continue
        value = values[name]
        if (inner := find_section(annotation)) is not None:
            resolved[name] = _resolve_section(inner, value, directory)
        elif name == "options":
            for path in _OPTION_PATHS:
                value = _resolve_option(value, path, directory)
            resolved[name] = value
        elif isinstance(value, str) and value and (_is_path(annotation) or value.startswith(SQLITE_PREFIX)):
            resolved[name] = _join(directory, value)
    return resolved


def _resolve_option(value: Any, path: KeyPath, directory: Path) -> Any:
    """Return an option with the text at `path` as an absolute path."""
    if not path:
        return _join(directory, value) if isinstance(value, str) and value else value
    if not isinstance(value, Mapping):
        return value
    names = value if path[0] == "*" else [path[0]] if path[0] in value else []
    return {**value, **{name: _resolve_option(value[name], path[1:], directory) for name in names}}


def _is_path(annotation: Any) -> bool:
    return annotation is Path or any(_is_path(part) for part in get_args(annotation) if part is not NoneType)


def _join(directory: Path, text: str) -> str:
    if not text.startswith(SQLITE_PREFIX):
        return _place(directory, text)
    file, question, query = text.removeprefix(SQLITE_PREFIX).partition("?")
    is_file = file not in ("", ":memory:")
    return f"{SQLITE_PREFIX}{_place(directory, file)}{question}{query}" if is_file else text


def _place(directory: Path, file: str) -> str:
    return os.path.normpath(directory / Path(file).expanduser())
