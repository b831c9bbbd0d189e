"""Settings files parsed as plain values (YAML or TOML, with line and column of a mistake), and files with a password."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from ..exceptions import ConfigError


def read_file(path: Path, display_name: str) -> dict[str, Any]:
    """Read the mapping in a file, {} if it is empty. Raise ConfigError if it cannot be read; `display_name` names the file."""
    if path.suffix not in (".yaml", ".yml", ".toml"):
        raise ConfigError(display_name, "must be a YAML or TOML file; name it .yaml or .toml")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        location = f"in {path.parent}" if path.parent.is_dir() else f"the directory {path.parent} does not exist either"
        raise ConfigError(display_name, f"no such file ({location}); name one with -c FILE") from error
    except OSError as error:
        raise ConfigError(
            display_name, f"cannot be read: {error.strerror}; correct its permissions, or name another file with -c FILE"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(display_name, f"is not UTF-8 (byte {error.start}); save it as UTF-8") from error
    values = _parse_toml(text, display_name) if path.suffix == ".toml" else parse_yaml(text, display_name, _Loader)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(display_name, "must contain keys with values, like server: {mode: auto}")
    return values


def read_secret_file(path: Path, place: str) -> str:
    """Read a password from a file that contains nothing else. Raise ConfigError at `place` otherwise."""
    try:
        password = path.read_text("utf-8").strip("\r\n")
    except OSError as error:
        raise ConfigError(place, f"{path} cannot be read: {error.strerror}; correct the name or the permissions") from error
    except UnicodeDecodeError as error:
        raise ConfigError(place, f"{path} is not UTF-8; save it as UTF-8") from error
    if not password or "\n" in password:
        raise ConfigError(place, f"{path} must contain the password on one line, and nothing else")
    return password


def _parse_toml(text: str, display_name: str) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        line, column = (match[1], match[2]) if match else _end_position(text)
        place = f"{display_name}:{line}:{column}"
        problem = str(error).partition(" (at ")[0]
        raise ConfigError(place, f"is not valid TOML: {_lower_first(problem)}; correct it there or just before") from error


def _end_position(text: str) -> tuple[int, int]:
    return text.count("\n") + 1, len(text) - text.rfind("\n")


def parse_yaml(text: str, display_name: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """Parse YAML. Raise ConfigError with the line and the column of a mistake; `display_name` names the file."""
    try:
        return yaml.load(text, loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{display_name}:{mark.line + 1}:{mark.column + 1}" if mark else display_name
        if isinstance(error, _DuplicateKeyError):
            raise ConfigError(place, str(error.problem)) from error
        problem = error.problem or error.context or "cannot be parsed"
        raise ConfigError(place, f"is not valid YAML: {_lower_first(problem)}; correct it there or just before") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - text.rfind("\n", 0, error.position)
        code = f"U+{ord(text[error.position]):04X}"
        place = f"{display_name}:{line}:{column}"
        raise ConfigError(place, f"is not valid YAML: the character {code} is not allowed here; remove it") from error
    except RecursionError as error:
        raise ConfigError(display_name, "is nested too deeply; use fewer levels") from error
    except ValueError as error:  # such as the 31st of February
        raise ConfigError(display_name, f"has an invalid value: {error}; quote it") from error


class _DuplicateKeyError(yaml.MarkedYAMLError):
    """A key occurs twice in one mapping. YAML forbids it, but PyYAML takes the last one."""


class _Loader(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            name = (key.tag, key.value)
            if name in lines:
                problem = f'the key "{key.value}" is defined twice, first in line {lines[name]}; remove one'
                raise _DuplicateKeyError(problem=problem, problem_mark=key.start_mark)
            lines[name] = key.start_mark.line + 1
        return node


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
