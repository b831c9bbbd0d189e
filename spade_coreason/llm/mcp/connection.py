"""One connection to an MCP server, from its start to its loss, in a task of its own."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress

import anyio
from mcp import Client, MCPError, Tool
from mcp.client import Transport
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp_types import CallToolResult, Implementation, ToolListChangedNotification

from ..._version import __version__
from .options import ServerOptions
from .server_transports import open_http, open_stdio

_MAX_TOOLS = 1000
_MAX_PAGES = 100
_MAX_OUTPUT_CHARACTERS = 200
_GOODBYE_TIMEOUT_S = 3.0
"""Seconds to close a connection over HTTP. A program has its own limit."""
_RESUBSCRIBE_AFTER_S = 5.0
"""Seconds before the next subscription to changes, after the server ended the last."""


class MCPConnection:
    """A connection that starts when it is created.

    `on_tools` receives the tools, first and after each change. `on_closed` is called once, with the problem that ended the
    connection, or with an empty text after `close`.

    The SDK must leave its contexts in the task that entered them. That task owns the connection; others only use the client.
    """

    def __init__(
        self, options: ServerOptions, on_tools: Callable[[Sequence[Tool]], None], on_closed: Callable[[str], None]
    ) -> None:
        self.client: Client | None = None
        """The client, while the connection is open."""
        self.call_count = 0
        """The number of calls that wait for their result."""
        self.is_forgotten = False
        """True once the server does not know its session any more. It is closed after its last call."""
        self.settled = asyncio.Event()
        """Set when the connection is open, and when it is closed."""
        self._options = options
        self._on_tools = on_tools
        self._on_closed = on_closed
        self._last_output = ""
        self._is_closed = False
        self._refresh_requested = asyncio.Event()
        self._time_limit = anyio.CancelScope(deadline=anyio.current_time() + options.timeout_s)
        self.task = asyncio.create_task(self._run(), name="MCP server")

    @property
    def is_closed(self) -> bool:
        """True once it is lost or closed; its task may still be stopping the program."""
        return self._is_closed

    def close(self, problem: str = "") -> None:
        """Close the connection, as lost if there is a problem. Pending calls fail."""
        if self._is_closed:
            return
        self._time_limit.deadline = anyio.current_time() + (
            _GOODBYE_TIMEOUT_S if self.client is not None and self._options.url else 0
        )
        self._is_closed, self.client = True, None
        self.settled.set()
        self._refresh_requested.set()
        self._on_closed(problem)

    def refresh_tools(self) -> None:
        """Request the tools again. The connection is lost if they do not come in time."""
        self._refresh_requested.set()

    async def _run(self) -> None:
        try:
            with self._time_limit as limit:
                client_info = Implementation(name="spade-coreason", version=__version__)
                async with Client(
                    self._open_transport(), client_info=client_info, message_handler=self._on_message, cache=None
                ) as client:
                    # The SDK would check results on the event loop, without a limit. `MCPServer.call` checks them.
                    client.session.validate_tool_result = _check_nothing  # type: ignore[method-assign]
                    try:
                        self._on_tools(await _list_tools(client))
                        if not self._is_closed:
                            limit.deadline = math.inf
                            self.client = client
                            self.settled.set()
                        await self._refresh_on_request(client)
                    except Exception as error:
                        self._on_ended(describe_error(error))  # report this first: the end of the program follows
                        raise
            self.close(f"did not start within {self._options.timeout_s:g} s")
        except Exception as error:  # noqa: BLE001 - no error of a server stops the agent
            self._on_ended(describe_error(error))
        finally:
            self.close()

    def _open_transport(self) -> Transport:
        if self._options.command is not None:
            return open_stdio(self._options, self._on_ended, self._on_output)
        return open_http(self._options, self._on_output)

    async def _refresh_on_request(self, client: Client) -> None:
        """List the tools again whenever they may have changed."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._listen_for_changes, client)
            while not self._is_closed:
                await self._refresh_requested.wait()
                self._refresh_requested.clear()
                if not self._is_closed:
                    with anyio.move_on_after(self._options.timeout_s) as limit:
                        self._on_tools(await _list_tools(client))
                    if limit.cancelled_caught:
                        self.close(f"did not answer for {self._options.timeout_s:g} s")
            group.cancel_scope.cancel()

    async def _listen_for_changes(self, client: Client) -> None:
        """Subscribe to changes, as servers of version 2026-07-28 require. Older ones report them anyway."""
        tools = client.server_capabilities.tools
        if tools is None or not tools.list_changed:
            return
        with suppress(ListenNotSupportedError, MCPError):
            while True:
                with suppress(SubscriptionLost):
                    async with client.listen(tools_list_changed=True) as changes:
                        async for _ in changes:
                            self.refresh_tools()
                await anyio.sleep(_RESUBSCRIBE_AFTER_S)
                self.refresh_tools()  # changes between two subscriptions are not reported
        self.refresh_tools()

    async def _on_message(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.refresh_tools()

    def _on_output(self, output: str) -> None:
        self._last_output = output[:_MAX_OUTPUT_CHARACTERS]

    def _on_ended(self, problem: str) -> None:
        # After the start, its output may contain words of a conversation.
        self.close(f"{problem} ({self._last_output})" if self._last_output and self.client is None else problem)


async def _check_nothing(name: str, result: CallToolResult) -> None:
    pass


async def _list_tools(client: Client) -> list[Tool]:
    """List all pages, or the first of them if a server sends no end."""
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        if page.next_cursor is None or page.next_cursor == cursor or len(tools) > _MAX_TOOLS:
            break
        cursor = page.next_cursor
    return tools[:_MAX_TOOLS]


def describe_error(error: BaseException) -> str:
    """Describe an error of the SDK in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = error.message if isinstance(error, MCPError) else str(error)
    return " ".join((text or type(error).__name__).split())[:_MAX_OUTPUT_CHARACTERS]
