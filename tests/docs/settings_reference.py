"""The configuration as a page and as a file: each key with its type, its default, and its docstring."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml
from pydantic import BaseModel, SecretStr

from spade_coreason.config import setting_types as types
from spade_coreason.config.settings import (
    AgentSettings,
    MetricsSettings,
    RoomSettings,
    Settings,
    WebSettings,
    find_section,
)
from spade_coreason.domain.policy import Section

_COMMENT_WIDTH = 112
_TYPE_NAMES = {
    types.Address: "JID or domain",
    types.AgentName: "`module:attribute`",
    types.ApiUrl: "URL",
    types.DatabaseUrl: "URL",
    types.Domain: "domain",
    types.ImportName: "`module:attribute`",
    types.Jid: "JID",
    types.ListenAddress: "address and port",
    types.Nick: "text",
    types.Person: "JID",
    types.ProjectPath: "path",
    types.NetworkText: "address or network",
    types.QuietHoursText: "hours",
    types.RoomJid: "JID of a room",
    types.Tokenizer: "name",
    types.WebOrigin: "origin",
    types.WebUrl: "URL",
    types.Zone: "time zone",
    Mapping[str, Any]: "keys with values",
    SecretStr: "text",
    bool: "`true` or `false`",
    str: "text",
}
_PLURALS = {
    "address or network": "addresses and networks",
    "origin": "origins",
    "JID or domain": "JIDs and domains",
    "domain": "domains",
    "JID": "JIDs",
}
_SIGNS = {"ge": "at least", "gt": "more than", "le": "at most"}
_EXAMPLES = {
    "agents[].jid": "echo@localhost",
    "agents[].agent": "spade_coreason.agents.echo:EchoAgent",
    "agents[].rooms[].jid": "room@conference.example.org",
}
"""The values of required keys in the file."""
_DEFAULTS_IN_DATA = {"data_dir", "storage.url", "storage.memory_dir"}
"""The keys whose defaults are in `data`, where the platform starts. The file has null for them."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the configuration. `path` is written with dots, `agents[].jid`; `kind` describes its values,
    and `default` is a plain YAML value."""

    path: str
    text: str
    kind: str
    default: Any
    is_required: bool
    owner: type[BaseModel]
    """The class whose docstring describes the key."""

    @property
    def name(self) -> str:
        """The key as it is written in its section."""
        return self.path.rpartition(".")[2]

    @property
    def anchor(self) -> str:
        """The id of its heading."""
        return anchor(self.path)


@dataclass(frozen=True, slots=True)
class Group:
    """A section: its keys, and the sections in it."""

    path: str
    text: str
    parts: tuple[Key | Group, ...]

    @property
    def name(self) -> str:
        """The key as it is written in its section, without the brackets of a list."""
        return self.path.rpartition(".")[2].removesuffix("[]")

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys that are no sections."""
        return tuple(part for part in self.parts if isinstance(part, Key))


def anchor(path: str) -> str:
    """Return the id of the heading of a key."""
    return path.replace("[]", "").replace(".", "-")


def read_settings(section: type[Section] = Settings, path: str = "", text: str | None = None) -> Group:
    """Read a section of the settings with its keys, in their order."""
    parts: list[Key | Group] = []
    hints = get_type_hints(section, include_extras=True)
    for attribute, field in section.model_fields.items():
        name = field.alias or attribute
        inner = find_section(field.annotation)
        place = f"{path}.{name}" if path else name
        owner, docstring = _find_docstring(section, attribute)
        default = field.get_default(call_default_factory=True)
        if inner in (AgentSettings, RoomSettings):
            assert issubclass(inner, Section)
            parts.append(read_settings(inner, f"{place}[]", docstring))
        elif inner in (WebSettings, MetricsSettings):
            assert issubclass(inner, Section)
            parts.append(read_settings(inner, place, docstring))
        elif inner is not None and issubclass(inner, Section) and default is not None and not isinstance(default, Mapping):
            parts.append(read_settings(inner, place, docstring))
        else:
            assert docstring, f"{place} has no docstring"
            parts.append(Key(place, docstring, _describe(hints[attribute]), _plain(default), field.is_required(), owner))
    return Group(path, text or inspect.getdoc(section) or "", tuple(parts))


@cache
def _docstrings(section: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings of the attributes that a class itself declares."""
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for statement, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        is_attribute = isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        if is_attribute and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            found[ast.unparse(statement.target)] = inspect.cleandoc(str(following.value.value))  # type: ignore[attr-defined]
    return found


def _find_docstring(section: type[BaseModel], attribute: str) -> tuple[type[BaseModel], str]:
    """Return the docstring of an attribute, and the class that has it. A class that overrides a default inherits the text."""
    for owner in section.__mro__:
        if issubclass(owner, Section) and attribute in _docstrings(owner):
            return owner, _docstrings(owner)[attribute]
    return section, ""


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value


def _describe(hint: Any) -> str:
    """Describe the type of a value in words."""
    if hint in _TYPE_NAMES:
        return _TYPE_NAMES[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(["`null`" if item is NoneType else _describe(item) for item in arguments])
    if origin is Literal:
        names = [f"`{name}`" for name in arguments]
        return f"{', '.join(names[:-1])} or {names[-1]}"
    if origin is tuple:
        item = _describe(arguments[0])
        return f"list of {_PLURALS.get(item, item)}"
    if find_section(hint) is not None:
        return "keys with values"
    if hasattr(hint, "__metadata__"):
        base = hint.__origin__
        if base in (int, float):
            return f"{'whole number' if base is int else 'number'}{_limits(hint.__metadata__)}"
        return _describe(base)
    return "keys with lists" if origin is not None else _TYPE_NAMES[hint]


def _limits(metadata: tuple[Any, ...]) -> str:
    limits: dict[str, Any] = {}
    for item in metadata:
        for constraint in getattr(item, "metadata", ()):
            for sign in _SIGNS:
                if getattr(constraint, sign, None) is not None:
                    limits[sign] = getattr(constraint, sign)
    if "gt" in limits:
        limits.pop("ge", None)
    if {"ge", "le"} <= limits.keys():
        return f", {_format_limit(limits['ge'])} to {_format_limit(limits['le'])}"
    return "".join(f", {_SIGNS[sign]} {limit:,}" for sign, limit in limits.items())


def _format_limit(limit: float) -> str:
    """Format a whole or short number as it is, and a long one as a fraction, such as 1/60."""
    text = f"{limit:n}"
    return text if len(text) < 8 else str(Fraction(limit).limit_denominator(1000))


def _yaml_value(value: Any) -> str:
    if isinstance(value, str):
        is_plain = bool(value) and yaml.safe_load(value) == value and not set(value) & set(":#{}[],&*")
        return value if is_plain else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


def to_markdown() -> str:
    """Return the part of docs/reference/configuration.md below its introduction."""
    root = read_settings()
    blocks: list[str] = []
    described: dict[tuple[type[BaseModel], str], str] = {}
    top_level = Group("", "", root.keys)
    for group in [top_level, *(part for part in root.parts if isinstance(part, Group))]:
        blocks += _markdown_group(group, described)
    return "\n\n".join(blocks)


def _markdown_group(group: Group, described: dict[tuple[type[BaseModel], str], str]) -> Iterator[str]:
    keys = group.keys
    if group.path:
        yield f"## `{group.path}` {{ #{anchor(group.path)} }}"
        yield group.text
    else:
        yield "## Keys of the top level { #top-level }"
    places = {described[key.owner, key.name].rpartition(".")[0] for key in keys if (key.owner, key.name) in described}
    if keys and len(places) == 1 and all((key.owner, key.name) in described for key in keys):
        [place] = places
        rows = [f"| `{key.name}` | `{_yaml_value(key.default)}` |" for key in keys]
        yield "\n".join([f"The keys are those of [`{place}`](#{anchor(place)}).", "", "| key | default |", "|---|---|", *rows])
    else:
        for key in keys:
            described[key.owner, key.name] = key.path
            default = "required" if key.is_required else f"default `{_yaml_value(key.default)}`"
            yield f"### `{key.path}` {{ #{key.anchor} }}"
            yield f"{key.kind[0].upper()}{key.kind[1:]}; {default}."
            yield key.text
    for part in group.parts:
        if isinstance(part, Group):
            yield from _markdown_group(part, described)


def to_yaml() -> str:
    """Return the text of config/reference.yaml."""
    lines = [
        *_comment(
            "Every key of the configuration, with its default. `python -m tests.docs.generate` writes this file.\n\n"
            "Omitted keys have the values shown here. Unknown keys are errors. config/platform.yaml has the"
            " keys that most people need. Copy others from here.\n\n"
            "An environment variable overrides a key: SPADE_COREASON_SERVER__PORT=5223 sets server.port. Write a list as YAML"
            " or JSON there: SPADE_COREASON_ACCESS__ALLOW='[example.org]'.\n\n"
            'In each text, ${NAME} is the environment variable NAME, ${NAME:-other} is "other" if NAME is unset or empty, and'
            " $${ is a plain ${. Relative paths begin beside the file. The modules of agents are found from the directory in"
            " which you start, or from --project DIR.",
            "",
        ),
        "",
        *_yaml_group(read_settings(), "", set()),
    ]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines).rstrip()) + "\n"


def _yaml_group(group: Group, indent: str, described: set[tuple[type[BaseModel], str]]) -> Iterator[str]:
    for part in group.parts:
        if isinstance(part, Group):
            yield from _comment(part.text, indent)
            if part.name in ("web", "metrics"):  # with the section, a server runs
                yield f"{indent}#"
                text = "\n".join(_yaml_group(part, " ", described)).rstrip()
                yield from (f"{indent}#{line}".rstrip() for line in text.split("\n"))
                yield f"{indent}{part.name}: null"
                yield ""
                continue
            if not part.path.endswith("[]"):
                yield f"{indent}{part.name}:"
                yield from _yaml_group(part, f"{indent}  ", described)
                continue
            inner = list(_yaml_group(part, "    ", described))
            inner[0] = f"  - {inner[0].lstrip()}"
            if part.name == "rooms":  # none by default
                yield f"{indent}#"
                yield from _comment("The keys of a room, with their defaults:", indent)
                yield from (f"{indent}#{line[1:]}".rstrip() for line in "\n".join(inner).rstrip().split("\n"))
                yield f"{indent}rooms: []"
                yield ""
            else:
                yield f"{indent}{part.name}:"
                yield from (f"{indent}{line}".rstrip() for line in inner)
        else:
            is_new = (part.owner, part.name) not in described
            described.add((part.owner, part.name))
            if is_new:
                yield from _comment(part.text, indent)
            default = None if part.path in _DEFAULTS_IN_DATA else part.default  # a path would begin beside the file
            yield f"{indent}{part.name}: {_yaml_value(_EXAMPLES.get(part.path, default))}"
            if is_new:
                yield ""
    if not isinstance(group.parts[-1], Group):
        yield ""


def _comment(text: str, indent: str) -> Iterator[str]:
    """Return a text as comments, wrapped. A paragraph, or a point of a list, begins a line."""
    for number, paragraph in enumerate(text.split("\n\n")):
        if number:
            yield f"{indent}#"
        points: list[str] = []
        for line in paragraph.splitlines():
            if line.startswith("- ") or not points:
                points.append(line)
            else:
                points[-1] += f" {line.strip()}"
        for point in points:
            hanging = "  " if point.startswith("- ") else ""
            yield from textwrap.wrap(
                point,
                _COMMENT_WIDTH,
                initial_indent=f"{indent}# ",
                subsequent_indent=f"{indent}# {hanging}",
                break_long_words=False,
                break_on_hyphens=False,
            )
