"""AutoGen's gRPC runtime: a host, and a worker for each agent. Nothing is stored.

It runs in the environment of `make bench-peers`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from autogen_core import AgentId, MessageContext, RoutedAgent, message_handler, try_get_known_serializers_for_type
from autogen_ext.runtimes.grpc import GrpcWorkerAgentRuntime, GrpcWorkerAgentRuntimeHost

from .pair import TIMEOUT_S, AskInConversation, Place, ask_in_turn


@dataclass
class Text:
    """A message of one text."""

    content: str


class Echo(RoutedAgent):  # type: ignore[misc]  # the types of AutoGen are in an environment of its own
    """Answers every message with itself."""

    @message_handler  # type: ignore[untyped-decorator]  # as above
    async def answer(self, message: Text, context: MessageContext) -> Text:
        """Answer."""
        return message


@asynccontextmanager
async def host(place: Place) -> AsyncIterator[str]:
    """Run the host, through which the workers exchange messages; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    service = GrpcWorkerAgentRuntimeHost(address)
    service.start()
    yield address
    await service.stop(grace=1)


@asynccontextmanager
async def answerer(place: Place) -> AsyncIterator[str]:
    """Run the worker of the agent that answers; yield the address of the host."""
    async with _worker(place) as runtime:
        await Echo.register(runtime, "echo", lambda: Echo("Repeats what you say."))
        yield place.address


@asynccontextmanager
async def asker(place: Place) -> AsyncIterator[AskInConversation]:
    """Run the worker that asks. Each conversation has an echo agent of its own."""
    async with _worker(place) as runtime:

        async def ask(key: str, text: str) -> str:
            reply = await asyncio.wait_for(runtime.send_message(Text(text), AgentId("echo", key)), TIMEOUT_S)
            return str(reply.content)

        yield lambda conversation, numbers: ask_in_turn(partial(ask, f"conversation-{conversation}"), numbers)


@asynccontextmanager
async def _worker(place: Place) -> AsyncIterator[Any]:
    runtime = GrpcWorkerAgentRuntime(place.address)
    runtime.add_message_serializer(try_get_known_serializers_for_type(Text))
    await runtime.start()
    yield runtime
    await runtime.stop()
