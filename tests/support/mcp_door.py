"""An agent behind the MCP door of a real HTTP server, and official clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from spade_coreason.config.settings import WebSettings
from spade_coreason.doors.caller import Caller
from spade_coreason.doors.mcp.calls import ToolCallLimits
from spade_coreason.doors.mcp.routes import make_mcp_routes
from spade_coreason.doors.server import WebServer
from spade_coreason.testing import Policy
from tests.support.door_agents import CALLERS, RunningDoors, run_behind_doors
from tests.support.doors import KEY, run_server, web_settings

_NO_SETTINGS: Mapping[str, Any] = {}


@dataclass
class McpDoor:
    """A running agent, its server, and the address of the door."""

    running: RunningDoors
    settings: WebSettings
    server: WebServer

    @property
    def url(self) -> str:
        return f"http://{self.settings.host}:{self.settings.port}/mcp"


@asynccontextmanager
async def serve_agent(
    database: str,
    agent: Any,
    policy: Policy | None = None,
    limits: ToolCallLimits | None = None,
    callers: Mapping[str, Caller] = CALLERS,
    web: Mapping[str, Any] = _NO_SETTINGS,
) -> AsyncIterator[McpDoor]:
    """Run an agent behind the door. By default `KEY` and `OTHER_KEY` open it; that of a front end is for sessions only."""
    settings = web_settings(**web)
    async with run_behind_doors(database, agent, policy=policy) as running:
        routes = make_mcp_routes(running.doors, limits)
        async with run_server(settings, callers.get, routes) as server:
            yield McpDoor(running, settings, server)


@asynccontextmanager
async def connect(door: McpDoor, key: str = KEY, mode: Any = "auto", **options: Any) -> AsyncIterator[Client]:
    """Connect the official client: "auto" takes the newest revision, "legacy" one with sessions."""
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http:
        transport = streamable_http_client(door.url, http_client=http)
        async with Client(transport, mode=mode, cache=None, **options) as client:
            yield client


def texts_of(result: Any) -> list[str]:
    """Return the texts of a result, without the hint about the conversation."""
    return [part.text for part in result.content if part.type == "text" and not part.text.startswith("To go on with")]
