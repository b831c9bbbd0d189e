"""The A2A SDK for Python: JSON-RPC over uvicorn, and the SDK's client. Nothing is stored.

It runs in the environment of `make bench-peers`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import uvicorn
from a2a.client import ClientConfig, ClientFactory
from a2a.helpers import get_message_text, new_text_message
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, Role, SendMessageRequest
from starlette.applications import Starlette

from .pair import TIMEOUT_S, AskInConversation, Place, ask_in_turn

KEEPALIVE_S = 600
"""Connections stay open between two rounds."""


class Echo(AgentExecutor):  # type: ignore[misc]  # the types of the SDK are in an environment of its own
    """Answers every message with one of the same text."""

    async def execute(self, context: Any, event_queue: Any) -> None:
        """Answer."""
        await event_queue.enqueue_event(new_text_message(get_message_text(context.message), context_id=context.context_id))

    async def cancel(self, context: Any, event_queue: Any) -> None:
        """Do nothing: it has answered."""


@asynccontextmanager
async def answerer(place: Place) -> AsyncIterator[str]:
    """Serve the agent on a free port; yield its URL."""
    # With another protocol number asyncio leaves Nagle's algorithm on, and each reply takes 40 ms longer.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        handler = DefaultRequestHandler(Echo(), InMemoryTaskStore(), _card(url))
        application = Starlette(routes=create_jsonrpc_routes(handler, "/"))
        server = uvicorn.Server(
            uvicorn.Config(application, log_level="warning", access_log=False, timeout_keep_alive=KEEPALIVE_S)
        )
        serving = asyncio.create_task(server.serve([listener]))
        yield url
        server.should_exit = True
        await serving


@asynccontextmanager
async def asker(place: Place) -> AsyncIterator[AskInConversation]:
    """Run the client of the SDK, with connections that stay open."""
    limits = httpx.Limits(max_connections=64, max_keepalive_connections=64, keepalive_expiry=KEEPALIVE_S)
    async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits) as http:
        client = ClientFactory(ClientConfig(streaming=False, httpx_client=http)).create(_card(place.address))

        async def ask(context_id: str, text: str) -> str:
            message = new_text_message(text, context_id=context_id, role=Role.ROLE_USER)
            texts = [
                get_message_text(reply.message) async for reply in client.send_message(SendMessageRequest(message=message))
            ]
            return "".join(texts)

        yield lambda conversation, numbers: ask_in_turn(partial(ask, f"conversation-{conversation}"), numbers)


def _card(url: str) -> Any:
    interface = AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0")
    return AgentCard(
        name="echo",
        description="Repeats what you say.",
        version="1",
        supported_interfaces=[interface],
        capabilities=AgentCapabilities(streaming=False),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
    )
