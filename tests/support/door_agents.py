"""An agent behind doors, without a server: callers ask it as HTTP does, by `DoorAgent`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from spade_coreason.domain.access import AccessPolicy
from spade_coreason.domain.callers import caller_address
from spade_coreason.domain.channel_kinds import DOOR_CHANNEL
from spade_coreason.doors.caller import Caller
from spade_coreason.doors.channel import DoorEvent, DoorReply
from spade_coreason.doors.doors import DoorAgent, Doors
from spade_coreason.operations.host import OperationHost
from spade_coreason.runtime import AgentRuntime
from spade_coreason.storage.backends.database import Durability
from spade_coreason.testing import Policy
from tests.support.channel_hosts import run_on_channels
from tests.support.records import AGENT

ALL_DOORS = ("openai", "a2a", "mcp", "webhook")


def make_caller(name: str = "website", account: str = "", *, names_users: bool = False) -> Caller:
    """Make the caller of a key."""
    return Caller(name, caller_address(name), account, frozenset({AGENT}), names_users)


@dataclass
class RunningDoors:
    """A running agent and its doors."""

    doors: Doors
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
) -> AsyncIterator[RunningDoors]:
    """Run an agent on the database at a URL, behind all doors.

    `callers` are the names of keys, each with the account for which it stands; by default those of `website` and `shop`.
    """
    access = AccessPolicy(AGENT, operators=() if policy is None else policy.operators)
    keys = {"website": "", "shop": ""} if callers is None else callers
    access.callers = {caller_address(name): account for name, account in keys.items()}
    doors = Doors()
    channel = doors.make_channel(AGENT)
    async with run_on_channels(url, agent, {DOOR_CHANNEL: channel}, policy, access, send, durability) as runtime:
        control = runtime.runner.control
        host = SimpleNamespace(
            is_running=True, repository=lambda jid: runtime.parts.repository, running_agent=lambda jid: control
        )
        doors.host = cast(OperationHost, host)
        doors.add(AGENT, runtime.agent.manifest, ALL_DOORS)
        [door_agent] = doors.list_agents("openai")
        yield RunningDoors(doors, door_agent, runtime)


async def read_all(reply: DoorReply) -> list[DoorEvent]:
    """Return all events of a reply."""
    return [event async for event in reply]


def texts_of(events: list[DoorEvent]) -> list[str]:
    """Return the texts among events, and the pieces of streams."""
    return [text for event in events if (text := event.data.get("content", event.data.get("chunk"))) is not None]
