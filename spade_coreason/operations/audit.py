"""The operations on audit trails: those of agents, and that of the platform for what concerns no agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import Field

from ..exceptions import ConfigError
from .definition import PLATFORM_TRAIL, Arguments, Call, operation
from .host import OperationHost, stored_agents


@dataclass(frozen=True, slots=True)
class TrailEntry:
    """An entry of a trail. `entry` is None if it was forgotten with the data of its person."""

    agent: str
    number: int
    person: str
    integrity_hash: str
    entry: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class TrailVerdict:
    """The verification of a trail: `head` is the hash of its last entry, and each problem a line."""

    agent: str
    entries: int
    erased: int
    head: str
    problems: list[str]


class ListEntries(Arguments):
    """Which entries. `limit` counts those of each trail, the newest. The agent "platform" has the trail of the platform."""

    agent: str | None = None
    limit: int = Field(100, ge=1)


@operation("audit.list")
async def list_entries(call: Call, arguments: ListEntries) -> list[TrailEntry]:
    """List the newest entries of each trail in chronological order."""
    return [
        TrailEntry(agent, record.number, record.person, record.integrity_hash, record.entry)
        for agent in await _trails(call.host, arguments.agent)
        for record in await call.host.repository(agent).audit_trail.load_newest(arguments.limit)
    ]


class VerifyTrails(Arguments):
    """Which trails, and a hash from an earlier verification that the trail must still contain."""

    agent: str | None = None
    through: str | None = None


@operation("audit.verify")
async def verify_trails(call: Call, arguments: VerifyTrails) -> list[TrailVerdict]:
    """Verify that no entry was changed, removed or moved."""
    agents = await _trails(call.host, arguments.agent)
    if arguments.through is not None and len(agents) > 1:
        raise ConfigError("agent", f"is missing: --through applies to one agent; name one of {', '.join(agents)}")
    found = [(agent, await call.host.repository(agent).audit_trail.verify(arguments.through)) for agent in agents]
    return [TrailVerdict(agent, one.entries, one.erased, one.head, list(one.problems)) for agent, one in found]


async def _trails(host: OperationHost, agent: str | None) -> tuple[str, ...]:
    if agent == PLATFORM_TRAIL:
        return (PLATFORM_TRAIL,) if host.database is not None else ()
    agents = await stored_agents(host, agent)
    if agent is None and agents and await host.repository(PLATFORM_TRAIL).audit_trail.load_newest(1):
        return (*agents, PLATFORM_TRAIL)
    return agents
