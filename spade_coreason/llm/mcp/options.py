"""The options of an MCP server: a program to start, or an address."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, SecretStr, StringConstraints, model_validator

from ...exceptions import ConfigError
from ..options import StrictOptions, parse_options

_OPTIONS_PATH = "options.mcp"
_SERVER_NAME = re.compile(r"(?=.{1,24}$)[A-Za-z0-9](?:_?[A-Za-z0-9-])*")
_SERVER_NAME_RULE = "letters, digits, - and single _ in between, at most 24"


class ServerOptions(StrictOptions):
    """A server: `command` with `env` and `cwd` (stdio), or `url` with `headers` (streamable HTTP).

    A program gets HOME, LOGNAME, PATH, SHELL, TERM, USER and `env`, and no other variable of ours. `timeout_s` is the seconds
    in which it must start and list its tools.
    """

    command: list[Annotated[str, StringConstraints(min_length=1)]] | None = Field(default=None, min_length=1)
    env: dict[str, SecretStr] = Field(default_factory=dict)
    cwd: Path | None = None
    url: str | None = Field(default=None, pattern=r"^https?://[^\s/?#@]+[^\s#@]*$")
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    timeout_s: float = Field(default=10.0, gt=0)

    @model_validator(mode="after")
    def _check_transport(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("give either command or url")
        if self.command is None and (self.env or self.cwd):
            raise ValueError("env and cwd belong to command")
        if self.url is None and self.headers:
            raise ValueError("headers belong to url")
        return self


def parse_servers(options: Any) -> dict[str, ServerOptions]:
    """Parse servers by name. ConfigError names the key."""
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise ConfigError(_OPTIONS_PATH, 'must map names to servers, such as {"files": {"command": ["mcp-files", "/srv"]}}')
    for name in options:
        if not (isinstance(name, str) and _SERVER_NAME.fullmatch(name)):
            raise ConfigError(_OPTIONS_PATH, f"{name!r} is not a valid server name: {_SERVER_NAME_RULE}")
    return {name: parse_options(ServerOptions, server, f"{_OPTIONS_PATH}.{name}") for name, server in options.items()}
