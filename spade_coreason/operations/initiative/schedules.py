"""List reminders, jobs and what agents do at times; cancel one, or run it now.

A schedule is listed without its payload. `cancel` and `run` write an entry to the audit trail of the agent.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from ... import storage
from ...exceptions import ConfigError
from ..definition import PERSON, About, Call, OfAgents, operation
from ..host import OperationHost, require_agent
from ..lists import Limit, OfId, load_page, raise_missing
from ..view import TableView, View, short_id
from .notifications import find_task


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


class ListSchedules(OfAgents):
    """The schedules of agents: those of one owner (a bare JID), if it is given. They are listed in the order of their times."""

    owner: Annotated[str | None, About("Only those of this person, room or agent.", "ADDRESS")] = None
    limit: Limit = 100
    after: Annotated[str | None, About("List what follows this id, or is due after this time.", "ID|TIME")] = None


@operation(
    "schedules.list",
    prefers_running=True,
    view=View(
        examples=["schedules list --agent kitchen"],
        table=TableView(
            "schedules",
            cursor="id",
            columns=[
                ("id", short_id),
                "agent",
                "kind",
                ("of", lambda one: one.owner if one.owner != one.agent else ""),
                ("due", "due_at"),
                ("times", lambda one: f"{one.cron} {one.zone}".strip()),
                ("state", lambda one: one.reason or (one.state if one.runs else "the agent does not run")),
            ],
            texts=["state"],
        ),
        links=["schedules.run", "schedules.cancel"],
    ),
)
async def list_schedules(call: Call, arguments: ListSchedules) -> list[ListedSchedule]:
    """List schedules without their payloads, the next due ones first.

    Those of an agent that is not in the configuration are listed, and do not run.
    """
    found = await load_page(
        call.host,
        storage.ScheduleRows,
        storage.SCHEDULE,
        arguments.agent,
        person=arguments.owner,
        limit=arguments.limit,
        cursor=arguments.after,
        place="after",
        kind=storage.SCHEDULE,
    )
    runs = {agent: await _runs(call.host, agent) for agent in {stored.agent for stored in found}}
    return [_summary(stored, runs[stored.agent]) for stored in found]


class CancelledSchedule(OfId):
    """A schedule to cancel; only if it is of a person (a bare JID), who is given."""

    person: str | None = None


def _name(one: ListedSchedule) -> str:
    owner = "its own" if one.owner == one.agent else f"of {one.owner}"
    return f"The schedule {short_id(one)} of {one.agent} ({one.kind}, {owner})"


@operation(
    "schedules.cancel",
    PERSON,
    is_change=True,
    view=View(
        examples=["schedules cancel 1f0c9a77"],
        given=["id"],
        question="cancel the schedule {id}",
        done=lambda one: f"{_name(one)} is cancelled.",
    ),
)
async def cancel_schedule(call: Call, arguments: CancelledSchedule) -> ListedSchedule:
    """Cancel a schedule. One of `@every` comes back at the next start of its agent.

    ID is from `schedules list`.
    """
    stored = await find_task(call.host, arguments, storage.SCHEDULE)
    if arguments.person not in (None, stored.owner):
        raise_missing(arguments.id, storage.SCHEDULE)
    await call.record(stored.agent, "schedules.cancel", f"schedule {stored.key}", person=_person_of(stored))
    if not await (await call.host.open_agent(stored.agent, changes=True)).schedules.cancel(stored.key):
        raise_missing(arguments.id, storage.SCHEDULE)  # it has come due meanwhile
    return _summary(stored, await _runs(call.host, stored.agent))


@operation(
    "schedules.run",
    is_change=True,
    needs_platform=True,
    view=View(examples=["schedules run 1f0c9a77"], given=["id"], done=lambda one: f"{_name(one)} runs now."),
)
async def run_schedule(call: Call, arguments: OfId) -> ListedSchedule:
    """Run a schedule now.

    One that repeats goes on with its next due time, and one with a single due time is over.

    ID is from `schedules list`.
    """
    stored = await find_task(call.host, arguments, storage.SCHEDULE)
    running = await require_agent(call.host, stored.agent, "run the schedule")
    await call.record(stored.agent, "schedules.run", f"schedule {stored.key}", person=_person_of(stored))
    try:
        if not await running.schedules.run_now(stored.key):
            raise_missing(arguments.id, storage.SCHEDULE)
    except ValueError as error:
        raise ConfigError("id", f"it is refused now: {error}") from error
    return _summary(stored, await _runs(call.host, stored.agent))


def _person_of(stored: storage.Task) -> str:
    return "" if stored.owner == stored.agent else stored.owner


async def _runs(host: OperationHost, agent: str) -> bool:
    return not host.is_running or await host.running_agent(agent) is not None


def _summary(stored: storage.Task, runs: bool) -> ListedSchedule:
    values = stored.values
    return ListedSchedule(
        stored.key,
        stored.agent,
        values["kind"],
        stored.owner,
        values["cron"],
        values["zone"],
        stored.state,
        stored.reason,
        runs,
        storage.from_micros(stored.created_at),
        stored.due,
    )
