"""One MCP server over all its connections: used while it is connected, and restarted after a loss."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from mcp import Tool
from mcp_types import CallToolResult

from ...contracts import RiskLevel
from ...contracts.json_schema import find_problems
from ...exceptions import ConfigError, ToolError
from .connection import MCPConnection, describe_error
from .offers import Offer, Requirements, find_faults, find_risk, select_permitted
from .options import ServerOptions
from .results import render_result
from .server_transports import LOST_SESSIONS

_RETRY_DELAYS_S = (0.0, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0)
"""Seconds before a restart, by the number of losses since the last result of a tool."""
_CLOSE_TIMEOUT_S = 6.0


class MCPServer:
    """Connect with `open`, reconnect with `reconnect_if_due`, and stop the server and its program with `close`.

    Problems are logged in `log`.
    """

    def __init__(self, name: str, options: ServerOptions, requirements: Requirements, log: logging.Logger) -> None:
        self.name = name
        self.all_offers: tuple[Offer, ...] = ()
        """The last tools that it offered, also while it is unavailable."""
        self.offers: tuple[Offer, ...] = ()
        """The tools of these that a model may use."""
        self.schema_problems: dict[str, str] = {}
        """The tools whose input schema no model can have, by their URI, and the reason."""
        self.faults: tuple[ConfigError, ...] = ()
        """The errors of the required tools."""
        self.problem = ""
        """The reason why it was lost; empty while it is connected."""
        self._output_schemas: dict[str, dict[str, Any] | None] = {}
        self._options = options
        self.requirements = requirements
        """The requirements of the manifest for it."""
        self._log = log
        self._connection: MCPConnection | None = None
        self._is_closed = True
        self._loss_count = 0
        self._retry_at = 0.0

    @property
    def is_connected(self) -> bool:
        """True if it can be called now."""
        return self._connection is not None and self._connection.client is not None

    async def open(self) -> None:
        """Start it. Return when it is connected, has failed, or its time is over."""
        self._is_closed = False
        self.reconnect_if_due()
        await self.wait_until_settled(self._options.timeout_s)

    def reconnect_if_due(self) -> None:
        """Start it if it is unavailable and the next attempt is due."""
        is_idle = self._connection is None or self._connection.task.done()
        if not self._is_closed and is_idle and asyncio.get_running_loop().time() >= self._retry_at:
            self._connection = MCPConnection(self._options, self._on_tools, self._on_closed)

    async def wait_until_settled(self, timeout_s: float) -> None:
        """Wait until a started connection is open or has failed."""
        if self._connection is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._connection.settled.wait(), timeout_s)

    @property
    def address(self) -> list[str]:
        """Its name, and its program or its address."""
        return [self.name, self._options.url] if self._options.url else [self.name, *(self._options.command or ())]

    async def call(self, offer: Offer, arguments: dict[str, Any], *, is_repeated: bool = False) -> str:
        """Return the result of a tool. ToolError if the tool reports an error or cannot be called.

        A critical tool, or one of which the manifest has the hash, is not called if it is no longer as offered. When cancelled,
        the server is told. If the server does not know its session any more, the call is sent once more in a new one
        (`is_repeated`).
        """
        connection = await self._ensure_connected()
        assert connection.client is not None
        tool = offer.tool
        is_checked = tool in self.requirements or find_risk(offer, self.requirements) is RiskLevel.CRITICAL
        if is_checked and not any(other.tool == tool and other.hash == offer.hash for other in self.offers):
            raise ToolError(self.name, f"has changed {tool}, which was not called")
        lost: list[Any] = []
        LOST_SESSIONS.set(lost)
        connection.call_count += 1
        try:
            result = await connection.client.call_tool(tool, arguments)
        except asyncio.CancelledError:
            connection.refresh_tools()  # the server may hang; if so, this finds out
            raise
        except Exception as error:
            problem = f"reports: {describe_error(error)}"
            if lost:
                problem = (
                    "does not know the session that it has just opened (HTTP 404), and did not run the call; if there are"
                    " several servers behind its address, let each session stay at one"
                )
            elif connection.is_closed:
                problem = f"{self.problem or 'was disconnected'}, and did not answer"
            if not lost or is_repeated:
                connection.refresh_tools()  # the server may have been replaced or stopped
                raise ToolError(self.name, problem) from error
        finally:
            connection.call_count -= 1
            connection.is_forgotten |= bool(lost)
            if connection.is_forgotten and not connection.call_count:  # the others may not have their answers yet
                connection.close()
        if lost:
            await asyncio.wait({connection.task})
            return await self.call(offer, arguments, is_repeated=True)
        self._loss_count = 0
        text = render_result(result)
        if result.is_error:
            raise ToolError(self.name, f"reports: {text}")
        await self._check_data(tool, result)
        return text

    async def close(self) -> None:
        """Stop it; a program that does not end is killed."""
        self._is_closed = True
        if self._connection is not None:
            self._connection.close()
            _, pending = await asyncio.wait({self._connection.task}, timeout=_CLOSE_TIMEOUT_S)
            for task in pending:
                task.cancel()

    async def _ensure_connected(self) -> MCPConnection:
        if self._connection is not None and self._connection.is_closed:
            await asyncio.wait({self._connection.task})
        self.reconnect_if_due()
        if self._connection is not None:
            await self._connection.settled.wait()
            if self._connection.client is not None:
                return self._connection
        wait_s = self._retry_at - asyncio.get_running_loop().time()
        after = f"; the next attempt is in {math.ceil(wait_s)} s" if wait_s > 0 else ""
        raise ToolError(self.name, f"is unavailable: {self.problem or 'it was disconnected'}{after}")

    async def _check_data(self, tool: str, result: CallToolResult) -> None:
        """Raise ToolError if the data of a result do not fit the schema that the server gave for them."""
        schema = self._output_schemas.get(tool)
        if schema is None:
            return
        if "structured_content" not in result.model_fields_set:
            raise ToolError(self.name, f"returned no data from {tool}, and its output schema requires them")
        [problem] = await find_problems([result.structured_content], schema, "data")
        if problem is not None:
            raise ToolError(self.name, f"returned data from {tool} that do not fit its output schema: {problem}")

    def _on_tools(self, tools: Sequence[Tool]) -> None:
        if self.problem:
            self._log.warning("the MCP server %s is available again", self.name)
        self.problem = ""
        offers: dict[str, Offer] = {}
        for tool in tools:
            is_destructive = tool.annotations is not None and tool.annotations.destructive_hint is True
            offers.setdefault(tool.name, Offer(self.name, tool.name, tool.description, tool.input_schema, is_destructive))
        self._output_schemas = {tool.name: tool.output_schema for tool in tools}
        self.all_offers = tuple(offers.values())
        self.offers = self._leave_out_unusable(select_permitted(self.all_offers, self.requirements))
        known_faults = set(map(str, self.faults))
        self.faults = tuple(find_faults(self.all_offers, self.requirements))
        for fault in map(str, self.faults):
            if fault not in known_faults:
                self._log.error("%s", fault)

    def _leave_out_unusable(self, offers: Sequence[Offer]) -> tuple[Offer, ...]:
        """Leave out the tools with an input schema for which a model's server would refuse every request. Log each once."""
        usable, known_problems, self.schema_problems = [], self.schema_problems, {}
        for offer in offers:
            try:
                _ = offer.parameters
            except ValueError as error:
                self.schema_problems[offer.uri] = f"its input schema cannot be used: {error}"
                if offer.uri not in known_problems:
                    self._log.warning("%s is left out: %s", offer.uri, self.schema_problems[offer.uri])
            else:
                usable.append(offer)
        return tuple(usable)

    def _on_closed(self, problem: str) -> None:
        if not problem:
            return
        level = logging.INFO if self.problem else logging.WARNING  # warn once, however many attempts follow
        self._log.log(level, "the MCP server %s is unavailable: %s", self.name, problem)
        self.problem = problem
        pause_s = _RETRY_DELAYS_S[min(self._loss_count, len(_RETRY_DELAYS_S) - 1)]
        self._loss_count += 1
        self._retry_at = asyncio.get_running_loop().time() + pause_s
