"""The OpenAI-compatible door of a running agent, behind a real HTTP server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import httpx
from openai import AsyncOpenAI, OpenAI

from spade_coreason.domain.jid import local_part
from spade_coreason.doors.caller import Caller
from spade_coreason.doors.files import make_file_routes
from spade_coreason.doors.openai.routes import make_openai_routes
from tests.support.door_agents import CALLERS, RunningDoors, run_behind_doors
from tests.support.doors import KEY, run_server, web_settings
from tests.support.records import AGENT

MODEL = local_part(AGENT)


@dataclass
class OpenAIDoor:
    """The door, and clients of it."""

    running: RunningDoors
    url: str
    """The address of the server."""

    def client(self, key: str = KEY, **options: Any) -> AsyncOpenAI:
        """Return OpenAI's own client."""
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, **options)

    def blocking_client(self) -> OpenAI:
        """Return OpenAI's own client for code without `await`."""
        return OpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0)

    def http(self, key: str | None = KEY) -> httpx.AsyncClient:
        """Return a client that reads the answers as they are."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=30)


@asynccontextmanager
async def serve_agent(
    database_url: str,
    agent: Any,
    *,
    system_prompt: Literal["ignore", "refuse"] = "ignore",
    keep_alive_s: float = 10.0,
    callers: dict[str, Caller] | None = None,
    limits: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[OpenAIDoor]:
    """Run an agent on the database at a URL, behind the door.

    `callers` are those of keys, `limits` those of the server, and `options` are of `run_behind_doors`.
    """
    found = CALLERS if callers is None else callers
    accounts = {caller.name: caller.account for caller in found.values()}
    settings = web_settings(limits=limits or {})
    async with run_behind_doors(database_url, agent, accounts, **options) as running:
        routes = make_openai_routes(running.doors, settings.public_url, system_prompt, keep_alive_s)
        async with run_server(settings, found.get, routes, make_file_routes(running.doors)):
            yield OpenAIDoor(running, settings.public_url)
