"""What an MCP server offers: a tool, what a model knows it by, and the hash that a manifest holds it to."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote

SCHEME = "mcp"
SEPARATOR = "__"
"""Between the name of a server, which has no such thing in it, and that of its tool."""
_MAX_NAME_CHARACTERS = 64
_HASH_DIGITS = 12
_HASH_SUFFIX = re.compile(rf"_[0-9a-f]{{{_HASH_DIGITS}}}$")


@dataclass(frozen=True)
class Offer:
    """A tool of a server, as the server describes it."""

    server: str
    tool: str
    description: str | None
    schema: Mapping[str, Any]
    """The JSON Schema of its arguments."""
    is_destructive: bool = False
    """Whether the server says so (`destructiveHint`)."""

    @cached_property
    def uri(self) -> str:
        """What a manifest calls it: mcp://server/tool"""
        return f"{SCHEME}://{self.server}/{quote(self.tool, safe='')}"

    @cached_property
    def name(self) -> str:
        """What a model calls it: server__tool, and where that is no name, or a long one, with a hash in its place.

        No two tools have the same, of one server or of several: a tool whose own name ends like a hash gets one, too.
        """
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", self.tool)
        name = f"{self.server}{SEPARATOR}{plain}"
        if plain == self.tool and len(name) <= _MAX_NAME_CHARACTERS and not _HASH_SUFFIX.search(plain):
            return name
        digest = hashlib.sha256(self.tool.encode()).hexdigest()[:_HASH_DIGITS]
        return f"{name[: _MAX_NAME_CHARACTERS - _HASH_DIGITS - 1]}_{digest}"

    @cached_property
    def hash(self) -> str:
        """SHA-256, in hex, of its name, description and input schema as they are on the wire: canonical JSON.

        Canonical is UTF-8, keys sorted, no spaces, nothing escaped that need not be: what `jq -jcS '{name, description,
        inputSchema}'` prints.
        """
        said = {"name": self.tool, "description": self.description, "inputSchema": self.schema}
        canonical = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()
