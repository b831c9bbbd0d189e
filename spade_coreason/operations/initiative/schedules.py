"""The operations on schedules: reminders, jobs, and the methods of agents that run at times."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, NoReturn

from pydantic import Field

from ...exceptions import ConfigError, ServerError
from ...storage import StoredSchedule, from_micros
from ..definition import PERSON, Arguments, Call, operation
from ..host import OperationHost, stored_agents
from .notifications import MAX_LISTED, MIN_ID_CHARACTERS


@dataclass(frozen=True, slots=True)
class ListedSchedule:
    """A schedule without its payload."""

    id: str
    agent: str
    kind: str
    """The kind: "every" (`@every`), "reminder" or "job"."""
    owner: str
    """The bare JID of the person, the room or the agent in whose conversation it is due."""
    cron: str
    """The times at which it repeats; "" for a time that comes once."""
    zone: str
    state: str
    """The state: "waiting" or "suspended"."""
    reason: str
    runs: bool
    """False if the platform runs without the agent: it is not in the configuration any more, and nothing is due."""
    created_at: datetime
    due_at: datetime


class Schedules(Arguments):
    """The schedules of agents, all without a name; and of one owner (a bare JID), if it is given."""

    agent: str | None = None
    owner: str | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_LISTED)] = 100


@operation("schedules.list")
async def list_schedules(call: Call, arguments: Schedules) -> list[ListedSchedule]:
    """List schedules, the next due ones first, without their payloads."""
    found = [
        stored
        for agent in await stored_agents(call.host, arguments.agent)
        for stored in await call.host.repository(agent).schedules.load_all(arguments.owner, limit=arguments.limit)
    ]
    found.sort(key=lambda stored: stored.due_at)
    return [await _summary(call.host, stored) for stored in found[: arguments.limit]]


class OfSchedule(Arguments):
    """A schedule, by its id or the first characters of it, 8 at least."""

    id: Annotated[str, Field(min_length=MIN_ID_CHARACTERS, max_length=36)]
    agent: str | None = None


class CancelledSchedule(OfSchedule):
    """A schedule to cancel; only if it is of a person (a bare JID), who is given."""

    person: str | None = None


@operation("schedules.cancel", PERSON, is_change=True)
async def cancel_schedule(call: Call, arguments: CancelledSchedule) -> ListedSchedule:
    """Cancel a schedule. One of `@every` comes back at the next start of its agent."""
    stored = await _find(call.host, arguments)
    if arguments.person not in (None, stored.owner):
        _raise_missing(arguments.id)
    await call.record(stored.agent, "schedules.cancel", f"schedule {stored.schedule_id}", person=_person_of(stored))
    running = await call.host.running_agent(stored.agent, changes=True)
    cancel = call.host.repository(stored.agent).schedules.delete if running is None else running.cancel_schedule
    if not await cancel(stored.schedule_id):
        _raise_missing(arguments.id)  # it has come due meanwhile
    return await _summary(call.host, stored)


@operation("schedules.run", is_change=True, needs_platform=True)
async def run_schedule(call: Call, arguments: OfSchedule) -> ListedSchedule:
    """Run a schedule now. One that repeats goes on with its next due time, and one with a single due time is over."""
    stored = await _find(call.host, arguments)
    running = await call.host.running_agent(stored.agent, changes=True)
    if running is None:
        raise ServerError(f"{stored.agent} does not run here; add it to the configuration and start it, then run the schedule")
    await call.record(stored.agent, "schedules.run", f"schedule {stored.schedule_id}", person=_person_of(stored))
    try:
        if not await running.run_schedule(stored.schedule_id):
            _raise_missing(arguments.id)
    except ValueError as error:
        raise ConfigError("id", f"it is refused now: {error}") from error
    return await _summary(call.host, stored)


async def _find(host: OperationHost, arguments: OfSchedule) -> StoredSchedule:
    found = [
        stored
        for agent in await stored_agents(host, arguments.agent)
        for stored in await host.repository(agent).schedules.find_by_prefix(arguments.id.lower())
    ]
    if len(found) != 1:
        _raise_missing(arguments.id, has_many=bool(found))
    return found[0]


def _raise_missing(ident: str, *, has_many: bool = False) -> NoReturn:
    problem = "several schedules begin with" if has_many else "there is no schedule"
    raise ConfigError("id", f"{problem} {ident}; `schedules list` shows them")


def _person_of(stored: StoredSchedule) -> str:
    return "" if stored.owner == stored.agent else stored.owner


async def _summary(host: OperationHost, stored: StoredSchedule) -> ListedSchedule:
    return ListedSchedule(
        stored.schedule_id,
        stored.agent,
        stored.kind,
        stored.owner,
        stored.cron,
        stored.zone,
        stored.state,
        stored.reason,
        not host.is_running or await host.running_agent(stored.agent) is not None,
        from_micros(stored.created_at),
        stored.due,
    )
