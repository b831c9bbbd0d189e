"""The tools that MCP servers offer, their names and hashes, and the requirements of a manifest for them."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from ...contracts import AgentDefinition, RiskLevel, ToolRequirement
from ...exceptions import ConfigError
from ..tools.parameters import build_parameters

log = logging.getLogger(__name__)

SCHEME = "mcp"
SEPARATOR = "__"
"""The text between the name of a server, which never contains it, and that of its tool."""
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
    """The JSON Schema of its arguments, as the server has it."""
    is_destructive: bool = False
    """True if the server says so (`destructiveHint`)."""

    @cached_property
    def uri(self) -> str:
        """The URI of the tool in a manifest: mcp://server/tool"""
        return f"{SCHEME}://{self.server}/{quote(self.tool, safe='')}"

    @cached_property
    def name(self) -> str:
        """The name of the tool for a model: server__tool. A long or invalid name is shortened, and ends with a hash.

        Names are unique, within a server and between servers. So a tool whose own name ends like a hash gets one, too.
        """
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", self.tool)
        name = f"{self.server}{SEPARATOR}{plain}"
        if plain == self.tool and len(name) <= _MAX_NAME_CHARACTERS and not _HASH_SUFFIX.search(plain):
            return name
        digest = hashlib.sha256(self.tool.encode()).hexdigest()[:_HASH_DIGITS]
        return f"{name[: _MAX_NAME_CHARACTERS - _HASH_DIGITS - 1]}_{digest}"

    @cached_property
    def parameters(self) -> Mapping[str, Any]:
        """The schema of its arguments for a model. ValueError if no model can have the tool."""
        return build_parameters(self.schema)

    @cached_property
    def hash(self) -> str:
        """SHA-256, in hex, of the name, description and input schema as canonical JSON, as they are on the wire.

        Canonical is UTF-8, keys sorted, no spaces, nothing escaped that need not be. `jq -jcS '{name, description,
        inputSchema}'` prints it.
        """
        description = {"name": self.tool, "description": self.description, "inputSchema": self.schema}
        canonical = json.dumps(description, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class RequiredTool:
    """A requirement, and its place in the manifest."""

    place: str
    requirement: ToolRequirement

    def find_fault(self, offer: Offer | None) -> ConfigError | None:
        """Return the error of the offered tool, or None."""
        uri, expected = self.requirement.uri, self.requirement.hash.lower()
        if offer is None:
            return ConfigError(f"{self.place}.uri", f"{uri}: the server offers no such tool; correct the name, or remove it")
        if offer.hash != expected:
            problem = (
                f"{uri} has the hash {offer.hash}; review the change (`spade-coreason tools`), and accept it with this hash"
            )
            return ConfigError(f"{self.place}.hash", problem)
        if offer.is_destructive and self.requirement.risk_level is RiskLevel.SAFE:
            problem = f"{uri} is marked as destructive by its server; write critical to allow it"
            return ConfigError(f"{self.place}.risk_level", problem)
        return None


Requirements = Mapping[str, RequiredTool]
"""The requirements for one server, by the name of the tool."""


def find_risk(offer: Offer, requirements: Requirements) -> RiskLevel:
    """Return the risk of an offered tool: that of its requirement, which the server can only raise."""
    if offer.is_destructive:
        return RiskLevel.CRITICAL
    required = requirements.get(offer.tool)
    return RiskLevel.STANDARD if required is None else required.requirement.risk_level


def parse_requirements(manifest: AgentDefinition, server_names: Collection[str]) -> dict[str, dict[str, RequiredTool]]:
    """Parse the requirements in `dependencies.tools` with a URI mcp://server/tool, by server and tool.

    Other URIs are not checked, and logged as a warning. ConfigError for an unknown server.
    """
    requirements: dict[str, dict[str, RequiredTool]] = {}
    for number, requirement in enumerate(manifest.dependencies.tools):
        if not isinstance(requirement, ToolRequirement):
            continue
        place = f"dependencies.tools[{number}]"
        scheme, server, path, *_ = urlsplit(requirement.uri)
        if scheme != SCHEME:
            log.warning(
                "%s.uri: %s is not checked, because it is not the URI of an MCP tool (mcp://server/tool)",
                place,
                requirement.uri,
            )
            continue
        tool = unquote(path.removeprefix("/"))
        if not tool or server not in server_names:
            problem = f"{requirement.uri}: options.mcp has no such server; write mcp://server/tool"
            raise ConfigError(f"{place}.uri", problem)
        requirements.setdefault(server, {})[tool] = RequiredTool(place, requirement)
    return requirements


def select_permitted(offers: Sequence[Offer], requirements: Requirements) -> list[Offer]:
    """Select the tools that a model may use.

    These are all, or, if the manifest requires any tool of the server, those that are required and have no error.
    """
    if not requirements:
        return list(offers)
    return [offer for offer in offers if offer.tool in requirements and requirements[offer.tool].find_fault(offer) is None]


def find_faults(offers: Sequence[Offer], requirements: Requirements) -> Iterator[ConfigError]:
    """Yield the errors of the required tools."""
    offered = {offer.tool: offer for offer in offers}
    for tool, required in requirements.items():
        if (fault := required.find_fault(offered.get(tool))) is not None:
            yield fault
