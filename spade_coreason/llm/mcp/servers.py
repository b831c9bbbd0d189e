"""All MCP servers of an agent: started together, and their tools as those of a language model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from ...contracts import AgentDefinition
from ...domain.environment.installation import install_hint
from ...domain.environment.proxies import find_proxy
from ...exceptions import ConfigError, CoReasonError, ToolError
from ..tools.function import Tool
from .offers import SCHEME, SEPARATOR, Offer, find_risk, parse_requirements
from .options import parse_servers

if TYPE_CHECKING:
    from .server import MCPServer

log = logging.getLogger(__name__)

_MAX_TOOLS = 100
"""The most tools of all servers. OpenAI's models take 128, and the agent has tools of its own."""
_LISTING_WAIT_S = 2.0
"""Seconds that a turn waits for a server that has never listed its tools."""


class MCPServers:
    """The MCP servers of an agent. `options` are theirs by name (`options.mcp`), and the manifest requires tools of them.

    ConfigError if an option is wrong, the manifest requires a tool of an unknown server, the package is missing, or the
    environment names a proxy that cannot be used.
    """

    def __init__(self, options: Any, manifest: AgentDefinition) -> None:
        self._options = parse_servers(options)
        self._requirements = parse_requirements(manifest, self._options)
        self._servers: list[MCPServer] = []
        if self._options and find_spec("mcp") is None:
            raise ConfigError("options.mcp", f"MCP servers need the package mcp: {install_hint('mcp')}")
        for server in self._options.values():
            if server.url is not None:
                find_proxy(server.url)

    def may_own_tool(self, name: str) -> bool:
        """Return True if a tool of a server may have this name."""
        server, separator, _ = name.partition(SEPARATOR)
        return bool(separator) and server in self._options

    def find_tool_name(self, text: str) -> str | None:
        """Return the name of the tool that a text names, as server__tool or mcp://server/tool; None if it names none."""
        scheme, server, path, *_ = urlsplit(text)
        if scheme == SCHEME and server in self._options and (tool := unquote(path.removeprefix("/"))):
            return Offer(server, tool, None, {}).name
        return text if self.may_own_tool(text) else None

    async def open(self, log: logging.Logger = log) -> None:
        """Start all servers. Return when each is connected, has failed, or its time is over.

        No server's failure raises an error.
        """
        if not self._options or self._servers:
            return
        server_class = await asyncio.to_thread(_import_server_class)
        self._servers = [
            server_class(name, options, self._requirements.get(name, {}), log) for name, options in self._options.items()
        ]
        try:
            await asyncio.gather(*(server.open() for server in self._servers))
        except asyncio.CancelledError:
            await self.close()
            raise
        if (count := sum(len(server.offers) for server in self._servers)) > _MAX_TOOLS:
            remedy = "list the tools that you need in the manifest (dependencies.tools)"
            log.warning("MCP servers offer %d tools, of which only the first %d are used; %s", count, _MAX_TOOLS, remedy)

    async def examine(self) -> tuple[Sequence[Offer], Sequence[CoReasonError]]:
        """List the tools, and the errors: a ConfigError for each wrong tool, a ToolError for each unavailable server or tool.

        A tool is wrong if it differs from the manifest's requirement. The servers are started and stopped, and nothing is
        logged.
        """
        try:
            await self.open(logging.Logger(__name__, logging.CRITICAL))
            offers = [offer for server in self._servers for offer in server.all_offers]
            faults = [fault for server in self._servers for fault in server.faults]
            disconnected = [server for server in self._servers if not server.is_connected]
            return offers, [
                *faults,
                *(
                    ToolError(server.name, f"offers {uri}, which no model gets: {problem}")
                    for server in self._servers
                    for uri, problem in server.schema_problems.items()
                ),
                *(
                    ToolError(server.name, f"is unavailable: {server.problem or 'it did not start in time'}")
                    for server in disconnected
                ),
            ]
        finally:
            await self.close()

    async def close(self) -> None:
        """Stop all servers and their programs."""
        servers, self._servers = self._servers, []
        await asyncio.gather(*(server.close() for server in servers))

    async def reconnect_due(self) -> None:
        """Start unavailable servers whose next attempt is due, before a turn.

        Wait a little for those that have never listed their tools.
        """
        for server in self._servers:
            if not server.is_connected:
                server.reconnect_if_due()
        unlisted = [server for server in self._servers if not server.is_connected and not server.all_offers]
        if unlisted:
            await asyncio.gather(*(server.wait_until_settled(_LISTING_WAIT_S) for server in unlisted))

    @property
    def unlisted_names(self) -> list[str]:
        """The names of unavailable servers that have never listed their tools."""
        return [server.name for server in self._servers if not server.is_connected and not server.all_offers]

    def tools(self) -> list[Tool]:
        """List the tools for a model. An unavailable server has its last tools; a call starts it again."""
        offers = [(server, offer) for server in self._servers for offer in server.offers]
        return [_build_tool(server, offer) for server, offer in offers[:_MAX_TOOLS]]


def _build_tool(server: MCPServer, offer: Offer) -> Tool:
    return Tool(
        offer.name,
        offer.description or "",
        offer.parameters,
        partial(server.call, offer),
        risk=find_risk(offer, server.requirements),
        origin={"hash": offer.hash, "server": server.address},
    )


def _import_server_class() -> type[MCPServer]:
    """Import the SDK, which takes most of a second. Call it off the event loop."""
    from .server import MCPServer

    return MCPServer
