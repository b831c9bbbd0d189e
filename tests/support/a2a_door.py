"""An agent behind the A2A door of a real HTTP server, and the official client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.types import a2a_pb2

from spade_coreason.config.settings import WebSettings
from spade_coreason.doors.a2a.routes import make_a2a_routes
from spade_coreason.doors.files import make_file_routes
from spade_coreason.storage.backends.group_commit import Durability
from spade_coreason.testing import Policy
from tests.support.door_agents import CALLERS, RunningDoors, run_behind_doors
from tests.support.doors import KEY, run_server, web_settings

BINDINGS = ("JSONRPC", "HTTP+JSON")


@dataclass
class A2AServer:
    """A running server with one agent."""

    settings: WebSettings
    running: RunningDoors

    @property
    def url(self) -> str:
        """The address of the agent."""
        return f"http://127.0.0.1:{self.settings.port}/a2a/{self.running.agent.name}"

    @asynccontextmanager
    async def http(self, key: str = KEY, headers: Mapping[str, str] | None = None) -> AsyncIterator[httpx.AsyncClient]:
        """Return a client of HTTP with a key."""
        fields = {"Authorization": f"Bearer {key}", "A2A-Version": "1.0", **(headers or {})}
        async with httpx.AsyncClient(headers=fields, trust_env=False, timeout=30) as client:
            yield client

    @asynccontextmanager
    async def client(self, binding: str = "JSONRPC", key: str = KEY, *, streaming: bool = True) -> AsyncIterator[Client]:
        """Return the client of the SDK for the card of the agent."""
        async with self.http(key) as http:
            card = await A2ACardResolver(http, self.url).get_agent_card()
            config = ClientConfig(streaming=streaming, httpx_client=http, supported_protocol_bindings=[binding])
            yield ClientFactory(config).create(card)


@asynccontextmanager
async def serve_a2a(
    url: str,
    agent: Any,
    policy: Policy | None = None,
    settings: WebSettings | None = None,
    durability: Durability = "off",
) -> AsyncIterator[A2AServer]:
    """Run an agent on the database at a URL behind the A2A door, for the keys of `CALLERS`."""
    settings = settings or web_settings()
    names = {caller.name: "" for caller in CALLERS.values()}
    async with run_behind_doors(url, agent, names, policy, durability=durability) as running:
        routes = make_a2a_routes(running.doors, settings.public_url)
        async with run_server(settings, CALLERS.get, routes, make_file_routes(running.doors)):
            yield A2AServer(settings, running)


def message_of(text: str, ident: str, **fields: Any) -> a2a_pb2.SendMessageRequest:
    """Make the request with a message of text."""
    message = a2a_pb2.Message(message_id=ident, role=a2a_pb2.ROLE_USER, parts=[a2a_pb2.Part(text=text)], **fields)
    return a2a_pb2.SendMessageRequest(message=message)


async def send(client: Client, request: a2a_pb2.SendMessageRequest) -> a2a_pb2.Task:
    """Send a message, and return the task of the last event that has one, with the artifacts of the others."""
    task = a2a_pb2.Task()
    async for event in client.send_message(request):
        apply(task, event)
    return task


def apply(task: a2a_pb2.Task, event: a2a_pb2.StreamResponse) -> None:
    """Change a task by an event, as a client does."""
    match event.WhichOneof("payload"):
        case "task":
            task.CopyFrom(event.task)
        case "status_update":
            task.status.CopyFrom(event.status_update.status)
        case "artifact_update":
            update = event.artifact_update
            for artifact in task.artifacts:
                if artifact.artifact_id == update.artifact.artifact_id:
                    if not update.append:
                        del artifact.parts[:]
                    artifact.parts.extend(update.artifact.parts)
                    return
            task.artifacts.add().CopyFrom(update.artifact)


def text_of(task: a2a_pb2.Task) -> str:
    """Return the text of all artifacts of a task."""
    return "|".join("".join(part.text for part in artifact.parts) for artifact in task.artifacts)


def state_of(task: a2a_pb2.Task) -> str:
    """Return the name of the state of a task."""
    name: str = a2a_pb2.TaskState.Name(task.status.state)
    return name.removeprefix("TASK_STATE_")
