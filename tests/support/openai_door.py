"""The OpenAI-compatible door of a running agent, behind a real HTTP server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import httpx
from openai import AsyncOpenAI, OpenAI

from spade_coreason import AgentDefinition, AgentRequest, Files, Response, Session
from spade_coreason.contracts import CloudEvent
from spade_coreason.domain.jid import local_part
from spade_coreason.doors.caller import Caller
from spade_coreason.doors.files import make_file_routes
from spade_coreason.doors.openai.routes import make_openai_routes
from spade_coreason.doors.server import WebServer
from spade_coreason.memory import USAGE_EVENT
from tests.support.door_agents import RunningDoors, make_caller, run_behind_doors
from tests.support.doors import FRONT_END_KEY, KEY, OTHER_KEY, web_settings
from tests.support.records import AGENT, ALICE

__all__ = ["FRONT_END_KEY", "KEY", "OTHER_KEY"]

CALLERS = {
    KEY: make_caller("website"),
    OTHER_KEY: make_caller("shop"),
    FRONT_END_KEY: make_caller("chat", names_users=True),
}
MODEL = local_part(AGENT)


class Clerk:
    """An agent that does what the query says, and notes who has asked what."""

    manifest = AgentDefinition.simple("clerk")

    def __init__(self, files: Files | None = None) -> None:
        self.files = files
        self.release = asyncio.Event()
        self.seen: list[tuple[str, str]] = []
        self.sessions: list[str] = []
        self.payloads: list[dict[str, Any]] = []
        self.done: list[str] = []

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        query = str(request.payload["query"])
        self.seen.append((session.identity.id, query))
        self.sessions.append(session.session_id)
        self.payloads.append(dict(request.payload))
        match query.split()[0]:
            case "wait":
                await response.markdown("a moment")
                await self.release.wait()
            case "hold":
                await self.release.wait()
            case "stream":
                stream = await response.create_stream()
                for piece in ("one ", "two ", "three"):
                    await stream.write(piece)
                await stream.close()
                return
            case "think":
                await response.thought("let me see")
            case "data":
                await response.data({"celsius": 12}, title="Today")
            case "tokens":
                used = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}
                await response.emit(CloudEvent(type=USAGE_EVENT, source="urn:test", data=used))
            case "fail":
                raise ValueError("a secret of the agent")
            case "refuse":
                await response.error("The station is closed.")
                return
            case "ask":
                answer = await response.ask_person("Which colour?", choices=["red", "blue"])
                await response.markdown(f"painted {answer.text}")
                return
            case "delegate":
                answer = await response.ask_person("May I?", to=ALICE)
                await response.markdown(f"allowed: {answer.text}")
                return
        await response.markdown(f"done: {query}")
        self.done.append(query)


@dataclass
class OpenAIDoor:
    """The door, and clients of it."""

    running: RunningDoors
    url: str
    """The address of the server."""

    def client(self, key: str = KEY, **options: Any) -> AsyncOpenAI:
        """Return OpenAI's own client."""
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, **options)

    def blocking_client(self, key: str = KEY, **options: Any) -> OpenAI:
        """Return OpenAI's own client for code without `await`."""
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, **options)

    def http(self, key: str | None = KEY) -> httpx.AsyncClient:
        """Return a client that reads the answers as they are."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=30)


async def _find_no_problem() -> str | None:
    return None


@asynccontextmanager
async def serve_agent(
    database_url: str,
    agent: Any,
    *,
    system_prompt: Literal["ignore", "refuse"] = "ignore",
    keep_alive_s: float = 10.0,
    callers: dict[str, Caller] | None = None,
    **options: Any,
) -> AsyncIterator[OpenAIDoor]:
    """Run an agent on the database at a URL, behind the door.

    `callers` are those of keys, and `options` are of `run_behind_doors`.
    """
    found = CALLERS if callers is None else callers
    accounts = {caller.name: caller.account for caller in found.values()}
    settings = web_settings()
    async with run_behind_doors(database_url, agent, accounts, **options) as running:
        routes = make_openai_routes(running.doors, settings.public_url, system_prompt, keep_alive_s)
        server = WebServer(settings, found.get, _find_no_problem, [routes, make_file_routes(running.doors)])
        await server.start()
        try:
            yield OpenAIDoor(running, settings.public_url)
        finally:
            await server.close()
