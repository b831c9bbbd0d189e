"""Show the audit trails of agents, and verify that they are unchanged.

A trail holds the entries that the agent writes with `response.audit`. For agents with a language model it also holds each
tool call and each decision of a guardrail. Every entry contains the hash of the one before it. The trail "platform" is for
what concerns no agent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, MaxLen

from ..exceptions import ConfigError
from .definition import PLATFORM_TRAIL, About, Call, OfAgents, operation
from .host import OperationHost, stored_agents
from .lists import read_time
from .view import TableView, View, read_moment

if TYPE_CHECKING:
    from ..storage import AuditRecord, AuditTrail


_OLDER = 1000
"""So many entries in a row that are older than a time end the search: a single one may be of a clock that was wrong."""


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
    problems: tuple[str, ...]


def _dump_entry(one: TrailEntry) -> dict[str, Any]:
    place = {"agent": one.agent, "number": one.number, "person": one.person, "integrity_hash": one.integrity_hash}
    return {**place, "forgotten": True} if one.entry is None else {**one.entry, **place}


def _of_entry(name: str) -> tuple[str, Callable[[TrailEntry], object]]:
    return name, lambda one: (one.entry or {}).get(name)


class ListEntries(OfAgents):
    """A choice of entries. `limit` counts the newest of each trail. The agent "platform" has the trail of the platform."""

    person: Annotated[str | None, About("Show only entries about this person.", "JID")] = None
    action: Annotated[str | None, About("Show only entries of this action, by its whole name, such as agents.pause.")] = None
    since: Annotated[str | None, About("Show only entries from this time on.", "TIME")] = None
    before: Annotated[str | None, MaxLen(40), About("Show only entries before this number or time.", "NUMBER|TIME")] = None
    limit: Annotated[int, Ge(1), About("Show at most this many entries of each agent, the newest.")] = 100


@operation(
    "audit.list",
    view=View(
        examples=["audit list --agent assistant --limit 20", "audit list --action agents.pause --since 2026-11-01"],
        table=TableView(
            "audit entries",
            columns=[
                "agent",
                "number",
                ("when", lambda one: "forgotten" if one.entry is None else read_moment(str(one.entry.get("timestamp", "")))),
                *map(_of_entry, ("actor", "action", "resource", "outcome")),
                "person",
            ],
        ),
        beside=["audit.verify"],
        dump=lambda found: list(map(_dump_entry, found)),
    ),
)
async def list_entries(call: Call, arguments: ListEntries) -> list[TrailEntry]:
    """List the newest entries of each trail in chronological order.

    Entries of deleted people have no action and no time: --action, --since and a time in --before leave them out.
    """
    found = []
    for agent in await _trails(call.host, arguments.agent):
        own = await _find_entries(call.host.repository(agent).audit_trail, arguments)
        found += [TrailEntry(agent, *record) for record in reversed(own)]
    return found


async def _find_entries(trail: AuditTrail, wanted: ListEntries) -> list[AuditRecord]:
    """Return the newest entries of a trail that are wanted, the newest first."""
    is_number = wanted.before is not None and wanted.before.isascii() and wanted.before.isdecimal()
    since, until = read_time(wanted.since, "since"), None if is_number else read_time(wanted.before, "before")
    found: list[AuditRecord] = []
    number, older = int(wanted.before or 0) if is_number else None, 0
    async for record in trail.iterate_newest(wanted.person, number, wanted.limit):
        entry = record.entry or {}
        try:
            at = read_time(entry.get("timestamp"), "timestamp")
        except (ConfigError, TypeError):  # it was changed
            at = None
        if at is not None and since is not None and at < since:
            if (older := older + 1) == _OLDER:
                break
            continue
        older = 0
        is_within = until is None or at < until if at is not None else since is None and until is None
        if is_within and wanted.action in (None, entry.get("action")):
            found.append(record)
        if len(found) == wanted.limit:
            break
    return found


class VerifyTrails(OfAgents):
    """A choice of trails, and a hash from an earlier verification that the trail must still contain."""

    through: Annotated[
        str | None, About("A hash from an earlier verification, which the trail must still contain.", "HASH")
    ] = None


@operation(
    "audit.verify",
    view=View(
        examples=["audit verify", "audit verify --agent assistant --through 5f1c…"],
        table=TableView("audit entries"),
        dump=lambda found: {one.agent: {"ok": not one.problems, **asdict(one)} for one in found},
    ),
)
async def verify_trails(call: Call, arguments: VerifyTrails) -> list[TrailVerdict]:
    """Verify that no entry was changed, removed or moved.

    Exit code: 0 no problem, 1 a trail was changed. A program with write access to the database can rewrite a whole trail.
    To detect that, store the printed hash elsewhere, and pass it later as --through.
    """
    agents = await _trails(call.host, arguments.agent)
    if arguments.through is not None and len(agents) > 1:
        raise ConfigError("agent", f"is missing: --through applies to one agent; name one of {', '.join(agents)}")
    found = [(agent, await call.host.repository(agent).audit_trail.verify(arguments.through)) for agent in agents]
    return [TrailVerdict(agent, *one) for agent, one in found]


async def _trails(host: OperationHost, agent: str | None) -> tuple[str, ...]:
    if agent == PLATFORM_TRAIL:
        return (PLATFORM_TRAIL,) if host.database is not None else ()
    agents = await stored_agents(host, agent)
    if agent is None and agents and await host.repository(PLATFORM_TRAIL).audit_trail.load_newest(1):
        return (*agents, PLATFORM_TRAIL)
    return agents
