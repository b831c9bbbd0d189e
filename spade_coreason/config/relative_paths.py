"""Relative paths in a settings file, which begin beside that file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, get_args

from pydantic import BaseModel

from .environment import KeyPath
from .setting_types import SQLITE_PREFIX
from .settings import Settings, find_section, section_keys

_OPTION_PATHS: tuple[KeyPath, ...] = (("endpoint", "api_key_file"), ("mcp", "*", "cwd"))
"""The paths in the options of an LLMAgent. `*` is any name."""


def resolve_paths(values: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Return the values of a file in `directory` with its relative paths made absolute."""

    def resolve(text: str, _: KeyPath) -> str:
        return _join(directory, text)

    resolved: dict[str, Any] = _map_paths(Settings, values, (), resolve)
    return resolved


def find_moved_paths(values: Mapping[str, Any], directory: Path, project: Path) -> Iterator[tuple[KeyPath, str, bool]]:
    """Yield the paths that begin beside the file, and that would also lead to something from `project`.

    They began there in earlier versions. Each is its key, a sentence, and True if nothing is beside the file, which is a
    mistake. A path that begins with a dot and is there is meant as it is.
    """
    found: list[tuple[KeyPath, str, bool]] = []

    def compare(text: str, key: KeyPath) -> str:
        new, old = (Path(_file_of(_join(start, text))) for start in (directory, project))
        if new == old or not old.exists():
            return text
        relative = os.path.relpath(old, directory)
        other = str(old) if relative.startswith("../..") else relative
        if not new.exists():
            problem = f"relative paths begin beside the file, where {new} does not exist; write {other} for {old}, or create it"
            found.append((key, problem, True))
        elif not _file_of(text).startswith("."):
            problem = f"relative paths begin beside the file, so {new} is used, not {old}; write {other} for that one, or"
            found.append((key, f"{problem} ./{_file_of(text)} for this one", False))
        return text

    _map_paths(Settings, values, (), compare)
    yield from found


def _map_paths(section: type[BaseModel], values: Any, key: KeyPath, change: Callable[[str, KeyPath], str]) -> Any:
    """Return the values of a section with each path changed. Values of a wrong type stay, and are reported as that later."""
    if isinstance(values, list):
        return [_map_paths(section, value, (*key, number), change) for number, value in enumerate(values)]
    if not isinstance(values, Mapping):
        return values
    mapped = dict(values)
    for name, annotation in section_keys(section).items():
        value, here = values.get(name), (*key, name)
        if (inner := find_section(annotation)) is not None:
            mapped |= {name: _map_paths(inner, value, here, change)} if name in values else {}
        elif name == "options":
            for path in _OPTION_PATHS:
                value = _map_option(value, path, here, change)
            mapped |= {name: value} if name in values else {}
        elif isinstance(value, str) and value and (_is_path(annotation) or value.startswith(SQLITE_PREFIX)):
            mapped[name] = change(value, here)
    return mapped


def _map_option(value: Any, path: KeyPath, key: KeyPath, change: Callable[[str, KeyPath], str]) -> Any:
    """Return an option with the text at `path` changed."""
    if not path:
        return change(value, key) if isinstance(value, str) and value else value
    if not isinstance(value, Mapping):
        return value
    names = value if path[0] == "*" else [path[0]] if path[0] in value else []
    return {**value, **{name: _map_option(value[name], path[1:], (*key, name), change) for name in names}}


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


def _file_of(text: str) -> str:
    return text.removeprefix(SQLITE_PREFIX).partition("?")[0] if text.startswith(SQLITE_PREFIX) else text
