"""The MCP server of the door: the tools of the caller's agents, with the SDK's server and its streamable HTTP.

The SDK is imported here, and this module only at the first request: it takes 20 MiB.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from mcp import MCPError
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
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
from pydantic_core import to_json
from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope, Send

from ..._version import __version__
from ...concurrency import Tasks
from ..agents import DoorAgents
from ..authentication import caller_of
from ..caller import Caller
from ..errors import HttpError
from ..limits import find_rpc_id, read_json
from .calls import AgentToolCall, ClientLostError, ToolCallLimits
from .tools import AgentTool, make_tools

_NAME = "mcp"
_INSTRUCTIONS = "Each tool asks an agent. A result names its conversation, so that a later call can go on with it."
_MAX_SESSIONS = 100
"""The most sessions of a caller. Clients of revision 2026-07-28 have none."""
_MAX_USER_SESSIONS = 10
"""The same for each user of a front end."""
_MAX_USERS = 100
"""The most users of a front end with sessions. Those of the user with the oldest request end first."""
_IDLE_S = 30 * 60.0
_LOST = "mcp_lost"
"""The name of a future in the state of a request, which is cancelled when its client is gone."""

log = logging.getLogger(__name__)


class AgentToolServer:
    """The MCP server. `await serve(scope, receive, send)` answers one HTTP request, `await close()` ends its sessions.

    Each caller has sessions of its own, and the SDK lets no other one use them.
    """

    def __init__(self, agents: DoorAgents, limits: ToolCallLimits) -> None:
        self._agents = agents
        self._limits = limits
        self._server: Server[Any] = Server(
            "spade-coreason",
            version=__version__,
            instructions=_INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )
        self._managers: dict[str, _Sessions] = {}
        """The sessions of callers, by their addresses."""
        self._cancels = Tasks()

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of a caller."""
        caller = caller_of(HTTPConnection(scope))
        body, receive = await read_json(scope, receive)
        sessions = self._managers.pop(caller.address, None) or _Sessions(self._server, caller)
        self._managers[caller.address] = sessions
        session = HTTPConnection(scope).headers.get(MCP_SESSION_ID_HEADER)
        found = find_rpc_id(body) if session else None
        request_id = object() if found is None else (session, str(found))
        if request_id in sessions.open_requests.values():
            raise HttpError(400, "a request with this id is in progress in this session; give each request an id of its own")
        lost = scope["state"][_LOST] = asyncio.get_running_loop().create_future()
        # The SDK compares these with those of the request that opened the session.
        scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=caller.name, scopes=[], subject=caller.address))

        refusal: Message | None = None

        async def send_and_free(message: Message) -> None:
            nonlocal refusal
            # The client may take the id again as soon as it has the answer.
            if "body" in message and not message.get("more_body"):
                sessions.open_requests[lost] = None
            if message["type"] == "http.response.start" and message["status"] >= HTTPStatus.BAD_REQUEST:
                refusal = message
                return
            if refusal is not None:
                # The SDK refuses a request before it has read its id.
                text = message["body"].replace(b'"id":null', b'"id":' + to_json(find_rpc_id(body)), 1)
                headers = [(name, value) for name, value in refusal["headers"] if name != b"content-length"]
                await send({**refusal, "headers": [*headers, (b"content-length", str(len(text)).encode())]})
                message, refusal = {**message, "body": text}, None
            await send(message)

        sessions.open_requests[lost] = request_id
        try:
            idle = [each for each in self._managers.values() if each.caller.name == caller.name and not each.open_requests]
            if len(idle) > _MAX_USERS:
                await self._managers.pop(idle[0].caller.address).close()
            await sessions.serve(scope, receive, send_and_free)
        finally:
            del sessions.open_requests[lost]
            lost.cancel()

    async def close(self) -> None:
        """End all sessions."""
        for sessions in self._managers.values():
            await sessions.close()
        self._managers.clear()
        await self._cancels.stop()

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
        lost = request.scope["state"][_LOST]
        call = AgentToolCall(tool, caller_of(request), context, params, self._limits, lost)
        try:
            return await call.run()
        except ClientLostError:
            return CallToolResult(content=[])  # nobody reads it
        except asyncio.CancelledError:
            if _is_cancelled_by_client(context):
                self._cancels.start(call.cancel())
            raise

    def _find_tools(self, context: ServerRequestContext[Any, Any]) -> dict[str, AgentTool]:
        # Each HTTP request has its own key, so a key that was changed or revoked counts at once, also within a session.
        return make_tools(self._agents.list_agents(_NAME, caller_of(_request_of(context))))


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
    """The sessions of a caller, in a task of their own: the SDK must leave its contexts in the task that entered them."""

    def __init__(self, server: Server[Any], caller: Caller) -> None:
        self.caller = caller
        self.open_requests: dict[asyncio.Future[None], object] = {}
        """The requests in progress, by session and id: the SDK would mix up the answers to two of one id."""
        self._manager = StreamableHTTPSessionManager(
            server,
            # Host and Origin are checked in front of all doors, by the public address of the server.
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            session_idle_timeout=_IDLE_S,
            max_request_body_size=sys.maxsize,  # `read_json` has read it
            max_sessions=_MAX_USER_SESSIONS if caller.names_users else _MAX_SESSIONS,
        )
        self._is_ready = asyncio.Event()
        self._end = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="MCP sessions of a caller")

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
