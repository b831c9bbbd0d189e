"""An echo agent behind A2A in a process of its own: `python -m benchmarks.doors_process DIRECTORY KIND`.

`ours` stores each request before it is answered, and each answer before it is sent. `sdk` is the example of a2a-sdk, which has
all in memory. Both have the same HTTP server's protocol.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import uvicorn
from a2a.helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard
from starlette.applications import Starlette

from spade_coreason import AgentDefinition, AgentRequest, Response, Session
from spade_coreason.domain.quotas import Quotas
from spade_coreason.testing import Policy, Rules
from spade_coreason.xmpp.servers.process import find_free_ports
from tests.support.a2a_door import serve_a2a

from .child_process import serve


class EchoAgent:
    """An agent of this platform that repeats each query."""

    manifest = AgentDefinition.simple("echo")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Answer."""
        await response.markdown(str(request.payload["query"]))


class EchoExecutor(AgentExecutor):  # type: ignore[misc]  # a2a-sdk is not read by mypy
    """An agent of the SDK that repeats each query."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Answer."""
        assert context.message is not None
        await event_queue.enqueue_event(new_task_from_user_message(context.message))
        updater = TaskUpdater(event_queue, str(context.task_id), str(context.context_id))
        await updater.start_work()
        await updater.add_artifact([new_text_part(context.get_user_input())])
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Do nothing."""


async def _main(directory: Path, kind: str) -> None:
    async with AsyncExitStack() as stack:
        if kind == "ours":
            database = f"sqlite+aiosqlite:///{directory}/platform.db"
            policy = Policy(rules=Rules(max_interactions=0), quotas=Quotas())
            server = await stack.enter_async_context(serve_a2a(database, EchoAgent(), policy, durability="full"))
            url = server.url
        else:
            [port] = find_free_ports(1)
            url = f"http://127.0.0.1:{port}/"
            card = AgentCard(name="echo", description="Repeats", version="1", capabilities=AgentCapabilities(streaming=True))
            handler = DefaultRequestHandler(agent_executor=EchoExecutor(), task_store=InMemoryTaskStore(), agent_card=card)
            app = Starlette(routes=create_jsonrpc_routes(handler, "/"))
            config = uvicorn.Config(app, port=port, log_level="critical", access_log=False, loop="asyncio", http="h11")
            sdk = uvicorn.Server(config)
            running = asyncio.create_task(sdk.serve())
            while not sdk.started:  # noqa: ASYNC110 - it has no event for it
                await asyncio.sleep(0.01)
            stack.callback(running.cancel)

        async def answer(name: str, arguments: str) -> str:
            return url

        await serve(answer)


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    asyncio.run(_main(Path(sys.argv[1]), sys.argv[2]))
