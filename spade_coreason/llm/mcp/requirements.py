"""What a manifest requires of the tools of MCP servers, and what is wrong with those that are offered."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from ...contracts import AgentDefinition, RiskLevel, ToolRequirement
from ...exceptions import ConfigError
from .offers import SCHEME, Offer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RequiredTool:
    """A requirement, and where in the manifest it is."""

    place: str
    requirement: ToolRequirement

    def find_fault(self, offer: Offer | None) -> ConfigError | None:
        """What is wrong with the tool that is offered, or None."""
        uri, expected = self.requirement.uri, self.requirement.hash.lower()
        if offer is None:
            return ConfigError(f"{self.place}.uri", f"{uri}: the server offers no such tool; correct the name, or remove it")
        if offer.hash != expected:
            problem = (
                f"{uri} has {offer.hash}; look at what has changed (spade-coreason tools), and write this one if it is right"
            )
            return ConfigError(f"{self.place}.hash", problem)
        if offer.is_destructive and self.requirement.risk_level is RiskLevel.SAFE:
            problem = f"{uri} may destroy something, as its server says; write critical if it may be used all the same"
            return ConfigError(f"{self.place}.risk_level", problem)
        return None


Requirements = Mapping[str, RequiredTool]
"""By the name of the tool, for one server."""


def parse_requirements(manifest: AgentDefinition, server_names: Collection[str]) -> dict[str, dict[str, RequiredTool]]:
    """Those of `dependencies.tools` with a URI mcp://server/tool, by server and tool; others are nobody's to check."""
    found: dict[str, dict[str, RequiredTool]] = {}
    for number, one in enumerate(manifest.dependencies.tools):
        if not isinstance(one, ToolRequirement):
            continue
        place = f"dependencies.tools[{number}]"
        scheme, server, path, *_ = urlsplit(one.uri)
        if scheme != SCHEME:
            log.warning("%s.uri: %s is not checked; it names no tool of an MCP server (mcp://server/tool)", place, one.uri)
            continue
        tool = unquote(path.removeprefix("/"))
        if not tool or server not in server_names:
            problem = f"{one.uri}: there is no such server under options.mcp; write it mcp://server/tool"
            raise ConfigError(f"{place}.uri", problem)
        found.setdefault(server, {})[tool] = RequiredTool(place, one)
    return found


def select_permitted(offers: Sequence[Offer], requirements: Requirements) -> list[Offer]:
    """What a model may be offered: all, or where anything is required of the server, what is required and right."""
    if not requirements:
        return list(offers)
    return [one for one in offers if one.tool in requirements and requirements[one.tool].find_fault(one) is None]


def find_faults(offers: Sequence[Offer], requirements: Requirements) -> Iterator[ConfigError]:
    """What is wrong with the tools that are required."""
    offered = {one.tool: one for one in offers}
    for tool, required in requirements.items():
        if (fault := required.find_fault(offered.get(tool))) is not None:
            yield fault
