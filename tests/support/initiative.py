"""An agent whose turns a test writes, to notify and to make schedules."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeAlias

from spade_coreason import AgentDefinition, AgentRequest, People, Response, Session

START = datetime(2030, 1, 1, 12, tzinfo=UTC)
TESTER, BOB, STRANGER = "tester@localhost", "bob@localhost", "eve@elsewhere.example"
Work: TypeAlias = "Callable[[ScriptedAgent, AgentRequest, Session, Response], Awaitable[None]]"


class ScriptedAgent:
    """An agent that runs `work`. Due times go to `on_due`, which by default sends the payload's query."""

    manifest = AgentDefinition.simple("scripted")

    def __init__(self, people: People | None, work: Work, on_due: Work | None = None) -> None:
        self.people: Any = people
        self.work = work
        self.on_due = on_due

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        if "schedule" not in request.metadata:
            await self.work(self, request, session, response)
        elif self.on_due is not None:
            await self.on_due(self, request, session, response)
        else:
            await response.markdown(request.payload["query"])


def scripted(work: Work, on_due: Work | None = None) -> Callable[[People], ScriptedAgent]:
    """Return the factory of a `ScriptedAgent`."""

    def build(people: People) -> ScriptedAgent:
        return ScriptedAgent(people, work, on_due)

    return build


async def echo(agent: ScriptedAgent, request: AgentRequest, session: Session, response: Response) -> None:
    """Send the query back."""
    await response.markdown(f"you said {request.payload['query']}")


class Interruption:
    """A point at which the first run of a turn hangs, until the platform is restarted."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    async def __call__(self, request: Any) -> None:
        """Hang, unless the request is redelivered."""
        if not request.metadata.get("redelivered"):
            self.reached.set()
            await asyncio.Event().wait()
