"""The MCP server of the door: the tools of the caller's agents, with the SDK's server and its streamable HTTP.

The SDK is imported here, and this module only at the first request: it takes 20 MiB.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from mcp import MCPError
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
)
from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope, Send

from ..._version import __version__
from ..authentication import caller_of
from ..doors import Doors
from .calls import AgentToolCall, ClientLostError, ToolCallLimits
from .tools import AgentTool, make_tools

_NAME = "mcp"
_INSTRUCTIONS = "Each tool asks an agent. A result names its conversation, so that a later call can go on with it."
_MAX_SESSIONS = 100
"""The most sessions of a key. Clients of revision 2026-07-28 have none."""
_IDLE_S = 30 * 60.0
_PRESENCE = "mcp_presence"

log = logging.getLogger(__name__)


class _Presence:
    """The client of one HTTP request: `leave()` tells the call that waits for it."""

    def __init__(self) -> None:
        self.on_gone: list[Callable[[], None]] = []

    def leave(self) -> None:
        for callback in self.on_gone:
            callback()


class AgentToolServer:
    """The MCP server. `await serve(scope, receive, send)` answers one HTTP request, `await close()` ends its sessions.

    Each key has sessions of its own, and the SDK lets only the caller that opened a session use it.
    """

    def __init__(self, doors: Doors, max_body_bytes: int, limits: ToolCallLimits) -> None:
        self._doors = doors
        self._max_body_bytes = max_body_bytes
        self._limits = limits
        self._server: Server[Any] = Server(
            "spade-coreason",
            version=__version__,
            instructions=_INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )
        self._managers: dict[str, _Sessions] = {}
        self._cancels: set[asyncio.Task[None]] = set()

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of a caller."""
        caller = caller_of(HTTPConnection(scope))
        if (sessions := self._managers.get(caller.name)) is None:
            sessions = self._managers[caller.name] = _Sessions(self._server, self._max_body_bytes)
        presence = scope["state"][_PRESENCE] = _Presence()
        # The SDK compares these with those of the request that opened the session.
        scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=caller.name, scopes=[], subject=caller.address))
        try:
            await sessions.serve(scope, receive, send)
        finally:
            presence.leave()

    async def close(self) -> None:
        """End all sessions."""
        for sessions in self._managers.values():
            await sessions.close()
        self._managers.clear()
        for task in self._cancels:
            task.cancel()
        await asyncio.gather(*self._cancels, return_exceptions=True)

    async def _list_tools(
        self, context: ServerRequestContext[Any, Any], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(tools=[tool.describe() for tool in self._find_tools(context).values()])

    async def _call_tool(
        self, context: ServerRequestContext[Any, Any], params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        tool = self._find_tools(context).get(params.name)
        if tool is None:
            raise MCPError(code=INVALID_PARAMS, message="there is no such tool; tools/list names those of your key")
        request = _request_of(context)
        call = AgentToolCall(tool, caller_of(request), context, params, self._limits)
        request.scope["state"][_PRESENCE].on_gone.append(call.lose)
        try:
            return await call.run()
        except ClientLostError:
            return CallToolResult(content=[])  # nobody reads it
        except asyncio.CancelledError:
            if _is_cancelled_by_client(context):
                task = asyncio.create_task(call.cancel())
                self._cancels.add(task)
                task.add_done_callback(self._cancels.discard)
            raise

    def _find_tools(self, context: ServerRequestContext[Any, Any]) -> dict[str, AgentTool]:
        # Each HTTP request has its own key, so a key that was changed or revoked counts at once, also within a session.
        return make_tools(self._doors.list_agents(_NAME, caller_of(_request_of(context))))


def _request_of(context: ServerRequestContext[Any, Any]) -> HTTPConnection:
    assert isinstance(context.request, HTTPConnection)
    return context.request


def _is_cancelled_by_client(context: ServerRequestContext[Any, Any]) -> bool:
    """Return True after `notifications/cancelled`, and False if the connection is lost or the server stops.

    Clients of revision 2026-07-28 send no such notification: they close the connection.
    """
    # The SDK has the event, and gives handlers no other way to it.
    return bool(context.session._request_outbound.cancel_requested.is_set())


class _Sessions:
    """The sessions of a key, in a task of their own: the SDK must leave its contexts in the task that entered them."""

    def __init__(self, server: Server[Any], max_body_bytes: int) -> None:
        self._manager = StreamableHTTPSessionManager(
            server,
            # Host and Origin are checked in front of all doors, by the public address of the server.
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            session_idle_timeout=_IDLE_S,
            max_request_body_size=max_body_bytes,
            max_sessions=_MAX_SESSIONS,
        )
        self._is_ready = asyncio.Event()
        self._end = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="MCP sessions of a key")

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._is_ready.wait()
        await self._manager.handle_request(scope, receive, send)

    async def close(self) -> None:
        self._end.set()
        with suppress(Exception):
            await self._task

    async def _run(self) -> None:
        try:
            async with self._manager.run():
                self._is_ready.set()
                await self._end.wait()
        finally:
            self._is_ready.set()
