"""One MCP server over all its connections: asked where it is there, and begun again when it was lost."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from mcp import Tool

from ...exceptions import ConfigError, ToolError
from .connection import Connection, what_went_wrong
from .offers import Offer
from .options import ServerOptions
from .requirements import Requirements, admitted, faults
from .results import text_of

_PAUSES_S = (0.0, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0)
"""Before it is begun again, by how often it was lost since a tool of it last answered."""
_CLOSING_S = 6.0


class Server:
    """`open` begins it, `wake` begins it again where that is due, `close` ends it, with its program.

    What goes wrong is a line in `log`.
    """

    def __init__(self, name: str, options: ServerOptions, requirements: Requirements, log: logging.Logger) -> None:
        self.name = name
        self.listed: tuple[Offer, ...] = ()
        """What it offered last, also while it is away."""
        self.offers: tuple[Offer, ...] = ()
        """Those of them that a model may be offered."""
        self.faults: tuple[ConfigError, ...] = ()
        """What is wrong with those that are required."""
        self.problem = ""
        """Why it is away, where it was lost."""
        self._options = options
        self._requirements = requirements
        self._log = log
        self._connection: Connection | None = None
        self._is_closed = True
        self._losses = 0
        self._due_at = 0.0

    @property
    def is_there(self) -> bool:
        """Whether it can be asked now."""
        return self._connection is not None and self._connection.client is not None

    async def open(self) -> None:
        """Begins it; returns when it is there, has failed, or its time is over."""
        self._is_closed = False
        self.wake()
        await self.settled(self._options.timeout_s)

    def wake(self) -> None:
        """Begins it if it is away and the time has come to try again."""
        is_idle = self._connection is None or self._connection.task.done()
        if not self._is_closed and is_idle and asyncio.get_running_loop().time() >= self._due_at:
            self._connection = Connection(self._options, self._on_tools, self._on_over)

    async def settled(self, timeout_s: float) -> None:
        """Waits until it is there or has failed, if that is under way."""
        if self._connection is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._connection.settled.wait(), timeout_s)

    async def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """What the tool answers. ToolError where it reports an error or is not to be had. Cancelled, the server is told."""
        connection = await self._ready()
        assert connection.client is not None
        try:
            result = await connection.client.call_tool(tool, arguments)
        except asyncio.CancelledError:
            connection.look_again()  # it may have waited in vain for a server that hangs
            raise
        except Exception as error:
            if connection.is_over:
                raise ToolError(self.name, f"{self.problem or 'was left'}, and did not answer") from error
            connection.look_again()  # there may be another server by now, or none
            raise ToolError(self.name, f"reports: {what_went_wrong(error)}") from error
        self._losses = 0
        text = text_of(result)
        if result.is_error:
            raise ToolError(self.name, f"reports: {text}")
        return text

    async def close(self) -> None:
        """Ends it; a program that does not end is killed."""
        self._is_closed = True
        if self._connection is not None:
            self._connection.leave()
            _, late = await asyncio.wait({self._connection.task}, timeout=_CLOSING_S)
            for task in late:
                task.cancel()

    async def _ready(self) -> Connection:
        if self._connection is not None and self._connection.is_over:
            await asyncio.wait({self._connection.task})
        self.wake()
        if self._connection is not None:
            await self._connection.settled.wait()
            if self._connection.client is not None:
                return self._connection
        wait_s = self._due_at - asyncio.get_running_loop().time()
        after = f"; it is tried again in {math.ceil(wait_s)} s" if wait_s > 0 else ""
        raise ToolError(self.name, f"is away: {self.problem or 'it was left'}{after}")

    def _on_tools(self, tools: Sequence[Tool]) -> None:
        if self.problem:
            self._log.warning("the MCP server %s is back", self.name)
        self.problem = ""
        offers: dict[str, Offer] = {}
        for tool in tools:
            destroys = tool.annotations is not None and tool.annotations.destructive_hint is True
            offers.setdefault(tool.name, Offer(self.name, tool.name, tool.description, tool.input_schema, destroys))
        self.listed = tuple(offers.values())
        self.offers = tuple(admitted(self.listed, self._requirements))
        known = set(map(str, self.faults))
        self.faults = tuple(faults(self.listed, self._requirements))
        for fault in map(str, self.faults):
            if fault not in known:
                self._log.error("%s", fault)

    def _on_over(self, problem: str) -> None:
        if not problem:
            return
        level = logging.INFO if self.problem else logging.WARNING  # one line, however often it is tried
        self._log.log(level, "the MCP server %s is away: %s", self.name, problem)
        self.problem = problem
        pause_s = _PAUSES_S[min(self._losses, len(_PAUSES_S) - 1)]
        self._losses += 1
        self._due_at = asyncio.get_running_loop().time() + pause_s
