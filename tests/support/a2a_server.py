"""An A2A agent of the SDK, on its own server: uvicorn on a free port of loopback, both bindings."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from a2a.helpers import (
    new_data_part,
    new_raw_part,
    new_task_from_user_message,
    new_text_message,
    new_text_part,
    new_url_part,
)
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentProvider, AgentSkill
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.types import ASGIApp

from spade_coreason.xmpp.servers.process import find_free_ports

JSONRPC, REST = "JSONRPC", "HTTP+JSON"


@dataclass(eq=False)
class ScriptedExecutor(AgentExecutor):  # type: ignore[misc]  # the SDK is not checked
    """An agent that does what the first word of a message says, and records the messages."""

    messages: list[tuple[str, str, str]] = field(default_factory=list)
    """The messages: id, text, and id of the context."""
    parts: list[Any] = field(default_factory=list)
    """The parts of the last message."""
    cancelled: list[str] = field(default_factory=list)
    """The ids of the cancelled tasks."""
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a `slow` task may end."""
    contexts: set[str] = field(default_factory=set)

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        text = context.get_user_input()
        message = context.message
        self.messages.append((message.message_id, text, context.context_id))
        self.parts = list(message.parts)
        command, _, rest = text.partition(" ")
        if command == "say":
            await event_queue.enqueue_event(new_text_message(rest, context_id=context.context_id))
            return
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        if context.current_task is None:
            await event_queue.enqueue_event(new_task_from_user_message(message))
        else:
            command, rest = "answer", text
        await updater.start_work(updater.new_agent_message([new_text_part(f"Working on {command}")]))
        await getattr(self, f"_do_{command}")(updater, rest)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.cancelled.append(context.task_id)
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()

    async def _do_stream(self, updater: TaskUpdater, rest: str) -> None:
        words = rest.split(" ")
        for number, word in enumerate(words):
            is_last = number == len(words) - 1
            part = new_text_part(word if is_last else f"{word} ")
            await updater.add_artifact([part], artifact_id="text", name="Words", append=number > 0, last_chunk=is_last)
        await updater.complete()

    async def _do_data(self, updater: TaskUpdater, rest: str) -> None:
        await updater.add_artifact([new_data_part({"rain": True, "degrees": 7, "wind": 2.5})], name="Weather")
        await updater.add_artifact([new_data_part([1, 2])])
        await updater.complete(updater.new_agent_message([new_text_part("That is all.")]))

    async def _do_files(self, updater: TaskUpdater, rest: str) -> None:
        await updater.add_artifact([new_raw_part(b"a picture", "image/png", "map.png")])
        await updater.add_artifact([new_url_part("https://example.org/a.pdf", "application/pdf", "a [1].pdf")])
        await updater.add_artifact([new_url_part("javascript:alert(1)", "", "bad")])
        await updater.complete()

    async def _do_slow(self, updater: TaskUpdater, rest: str) -> None:
        await updater.add_artifact([new_text_part("Begun. ")], artifact_id="text")
        await self.released.wait()
        await updater.add_artifact([new_text_part("Done.")], artifact_id="text", append=True, last_chunk=True)
        await updater.complete()

    async def _do_ask(self, updater: TaskUpdater, rest: str) -> None:
        await updater.add_artifact([new_text_part("I know the sky. ")], artifact_id="text")
        await updater.requires_input(updater.new_agent_message([new_text_part("Which city?")]))

    async def _do_form(self, updater: TaskUpdater, rest: str) -> None:
        parts = [new_text_part("Which city?"), new_data_part(json.loads(rest))]
        await updater.requires_input(updater.new_agent_message(parts))

    async def _do_answer(self, updater: TaskUpdater, rest: str) -> None:
        if rest == "again":
            await updater.requires_input(updater.new_agent_message([new_text_part("Which one, then?")]))
            return
        await updater.add_artifact([new_text_part(f"Sunny in {rest}.")])
        await updater.complete()

    async def _do_auth(self, updater: TaskUpdater, rest: str) -> None:
        await updater.requires_auth(updater.new_agent_message([new_text_part("Sign in at the bank.")]))

    async def _do_fail(self, updater: TaskUpdater, rest: str) -> None:
        await updater.failed(updater.new_agent_message([new_text_part("The printer is on fire.")]))

    async def _do_reject(self, updater: TaskUpdater, rest: str) -> None:
        await updater.reject()

    async def _do_huge(self, updater: TaskUpdater, rest: str) -> None:
        await updater.add_artifact([new_text_part("x" * 5_000_000)])
        await updater.complete()


@dataclass(eq=False)
class A2AServer:
    """A running server. `url` is its base address."""

    port: int
    executor: ScriptedExecutor
    store: InMemoryTaskStore
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    """The requests: method, path and headers."""
    refusals: list[ASGIApp] = field(default_factory=list)
    """Responses to the next requests in place of those of the agent, except to those for its card."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def make_card(url: str, bindings: Sequence[str] = (JSONRPC, REST), *, streaming: bool = True, **fields: Any) -> AgentCard:
    """Make the card of an agent whose interfaces are below a URL."""
    paths = {JSONRPC: "/rpc", REST: "/rest"}
    interfaces = [
        AgentInterface(url=f"{url}{paths[binding]}", protocol_binding=binding, protocol_version="1.0") for binding in bindings
    ]
    defaults: dict[str, Any] = {
        "name": "Weather desk",
        "description": "Knows the weather",
        "version": "1.2",
        "provider": AgentProvider(organization="Example Met", url="https://example.org"),
        "supported_interfaces": interfaces,
        "capabilities": AgentCapabilities(streaming=streaming),
        "default_input_modes": ["text/plain"],
        "default_output_modes": ["text/plain"],
        "skills": [
            AgentSkill(id="forecast", name="Forecast", description="Tells tomorrow's weather", tags=["rain", "sun"]),
            AgentSkill(id="chat", name="Chat", description="Talks", tags=["talk"]),
        ],
    }
    return AgentCard(**{**defaults, **fields})


class _QuietServer(uvicorn.Server):
    """A server that leaves the signals of the process alone."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def run_a2a_server(
    bindings: Sequence[str] = (JSONRPC, REST),
    *,
    streaming: bool = True,
    port: int = 0,
    executor: ScriptedExecutor | None = None,
    store: InMemoryTaskStore | None = None,
) -> AsyncIterator[A2AServer]:
    """Run an agent of the SDK."""
    executor, store = executor or ScriptedExecutor(), store or InMemoryTaskStore()
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port or find_free_ports(1)[0]))  # no connection takes it while the agent is started again
        running = A2AServer(listener.getsockname()[1], executor, store)
        card = make_card(running.url, bindings, streaming=streaming)
        handler = DefaultRequestHandler(agent_executor=executor, task_store=store, agent_card=card)
        routes = [
            *create_agent_card_routes(card),
            *create_jsonrpc_routes(handler, "/rpc"),
            *create_rest_routes(handler, path_prefix="/rest"),
        ]
        app = Starlette(routes=routes)

        async def recording_app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                request = Request(scope)
                running.requests.append((request.method, request.url.path, dict(request.headers)))
                if running.refusals and not request.url.path.endswith(".json"):
                    await running.refusals.pop(0)(scope, receive, send)
                    return
            await app(scope, receive, send)

        config = uvicorn.Config(recording_app, log_level="error", lifespan="off", ws="none")
        server = _QuietServer(config)
        serving = asyncio.create_task(server.serve([listener]))
        while not server.started:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
        try:
            yield running
        finally:
            server.should_exit = server.force_exit = True
            while server.servers[0].is_serving():  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
            while not serving.done():  # from Python 3.12 on it waits until its connections are closed
                await handler.aclose()  # ends the streams
                await asyncio.wait({serving}, timeout=0.01)
            await serving
