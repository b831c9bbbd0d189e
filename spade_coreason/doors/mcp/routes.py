"""The route of the MCP door: streamable HTTP at `/mcp`."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..agents import DoorAgents
from ..server import DoorRoutes

if TYPE_CHECKING:
    from .calls import ToolCallLimits
    from .server import AgentToolServer

PATH = "/mcp"


def make_mcp_routes(agents: DoorAgents, limits: ToolCallLimits | None = None) -> DoorRoutes:
    """Return the route for the agents behind the door `mcp`."""
    endpoint = _MCPDoor(agents, limits)
    # No GET: the server sends nothing on its own, and each open stream would count for the key.
    return DoorRoutes(routes=(Route(PATH, endpoint, methods=["POST", "DELETE"]),), close=endpoint.close)


class _MCPDoor:
    """The application at the path. Its server, and the SDK, are loaded at the first request."""

    def __init__(self, agents: DoorAgents, limits: ToolCallLimits | None) -> None:
        self._agents = agents
        self._limits = limits
        self._server: AgentToolServer | None = None
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = self._server or await self._load()
        await server.serve(scope, receive, send)

    async def close(self) -> None:
        """End all sessions."""
        if self._server is not None:
            await self._server.close()

    async def _load(self) -> AgentToolServer:
        async with self._lock:
            if self._server is None:
                # The import takes a second, in which the other agents go on.
                module = await asyncio.to_thread(importlib.import_module, f"{__package__}.server")
                limits = self._limits or module.ToolCallLimits()
                self._server = module.AgentToolServer(self._agents, limits)
            assert self._server is not None
            return self._server
