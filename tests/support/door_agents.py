"""An agent for tests of doors, and its doors without a server: callers ask it as HTTP does, by `DoorAgent`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from spade_coreason import AgentDefinition, AgentRequest, Response, Session
from spade_coreason.contracts import CloudEvent, Interceptor
from spade_coreason.domain.access import AccessPolicy
from spade_coreason.domain.callers import caller_address
from spade_coreason.domain.channel_kinds import DOOR_CHANNEL
from spade_coreason.doors.agents import DoorAgent, DoorAgents
from spade_coreason.doors.caller import Caller
from spade_coreason.doors.channel import DoorEvent, DoorReply
from spade_coreason.memory import USAGE_EVENT
from spade_coreason.operations.host import OperationHost, RunningAgent
from spade_coreason.runtime import AgentRuntime
from spade_coreason.storage.backends.group_commit import Durability
from spade_coreason.testing import Policy
from tests.support.channel_hosts import run_on_channels
from tests.support.doors import FRONT_END_KEY, KEY, OTHER_KEY
from tests.support.records import AGENT, ALICE

ALL_DOORS = ("openai", "a2a", "mcp", "webhook")


def make_caller(name: str = "website", account: str = "", *, names_users: bool = False) -> Caller:
    """Make the caller of a key."""
    return Caller(name, caller_address(name), account, frozenset({AGENT}), names_users)


CALLERS = {
    KEY: make_caller("website"),
    OTHER_KEY: make_caller("shop"),
    FRONT_END_KEY: make_caller("chat", names_users=True),
}
"""The callers of an agent, by the secrets of their keys."""


class Desk:
    """An agent that does what the words of a query say, and notes what it was asked."""

    manifest = AgentDefinition.simple("Desk", description="Does what you say.")

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.greeting = "hello"
        self.requests: list[AgentRequest] = []
        self.seen: list[tuple[str, str]] = []
        """Who has asked, and what."""
        self.done: list[str] = []
        self.cancelled = 0

    @property
    def sessions(self) -> list[UUID]:
        """The conversations of the requests."""
        return [request.session_id for request in self.requests]

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Answer."""
        query = str(request.payload.get("query", ""))
        self.requests.append(request)
        self.seen.append((session.identity.id, query))
        if (numbers := request.payload.get("numbers")) is not None:
            await response.data({"sum": sum(numbers)}, title="The sum")
            return
        for word in query.split():
            match word:
                case "wait":
                    try:
                        await self.release.wait()
                    except asyncio.CancelledError:
                        self.cancelled += 1
                        raise
                case "think":
                    await response.thought("let me see")
                case "data":
                    await response.data({"celsius": 12}, title="Today")
                case "tokens":
                    used = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}
                    await response.emit(CloudEvent(type=USAGE_EVENT, source="urn:test", data=used))
                case "fail":
                    raise RuntimeError("a secret of the agent")
                case "refuse":
                    await response.error("The station is closed.")
                    return
                case "greet":
                    await response.markdown(self.greeting)
                    return
                case "link":
                    await response.markdown("https://files.example.org/a/report%201.pdf")
                    return
                case "stream":
                    stream = await response.create_stream()
                    for piece in ("one ", "two ", "three"):
                        await stream.write(piece)
                    await stream.close()
                    return
                case "report":
                    stream = await response.create_stream("Report")
                    await stream.write("one ")
                    await self.release.wait()
                    await stream.write("two")
                    await stream.close()
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
class RunningDoors:
    """A running agent and its doors."""

    doors: DoorAgents
    agent: DoorAgent
    runtime: AgentRuntime


@asynccontextmanager
async def run_behind_doors(
    url: str,
    agent: Any,
    callers: Mapping[str, str] | None = None,
    policy: Policy | None = None,
    send: Callable[[list[str]], object] = lambda stanzas: None,
    durability: Durability = "off",
    interceptors: Sequence[Interceptor] = (),
) -> AsyncIterator[RunningDoors]:
    """Run an agent on the database at a URL, behind all doors.

    `callers` are the names of keys, each with the account for which it stands; by default those of `website` and `shop`.
    """
    access = AccessPolicy(AGENT, operators=() if policy is None else policy.operators)
    keys = {"website": "", "shop": ""} if callers is None else callers
    access.callers = {caller_address(name): account for name, account in keys.items()}
    doors = DoorAgents()
    channel = doors.make_channel(AGENT)
    async with run_on_channels(url, agent, {DOOR_CHANNEL: channel}, policy, access, send, durability, interceptors) as runtime:
        control = runtime.runner.control

        async def running_agent(jid: str, *, changes: bool = False) -> RunningAgent:
            return control

        host = SimpleNamespace(
            is_running=True,
            database=runtime.parts.repository.database,
            repository=lambda jid: runtime.parts.repository,
            running_agent=running_agent,
            open_agent=running_agent,
        )
        doors.host = cast(OperationHost, host)
        doors.add(AGENT, runtime.agent.manifest, ALL_DOORS, lambda: control.is_paused)
        [door_agent] = doors.list_agents("openai")
        yield RunningDoors(doors, door_agent, runtime)


async def read_all(reply: DoorReply) -> list[DoorEvent]:
    """Return all events of a reply."""
    return [event async for event in reply]


def texts_of(events: list[DoorEvent]) -> list[str]:
    """Return the texts among events, and the pieces of streams."""
    return [text for event in events if (text := event.data.get("content", event.data.get("chunk"))) is not None]
