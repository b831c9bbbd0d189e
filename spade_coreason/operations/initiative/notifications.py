"""List what agents send without being asked, and send it again or delete it.

A notification is listed without its content, for seven days after its last change. `retry` and `drop` write an entry to the
audit trail of the agent.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal, TypeAlias

from ... import contracts, storage
from ...exceptions import ConfigError
from ..definition import About, Call, operation
from ..host import OperationHost
from ..lists import OfId, Page, find_row, load_newest, raise_missing
from ..view import TableView, View, format_time, short_id


@dataclass(frozen=True, slots=True)
class ListedNotification:
    """A notification without its content."""

    id: str
    agent: str
    person: str
    """The bare JID of the person or the room."""
    state: contracts.NotificationState
    reason: str
    """One line: why it is in its state, and what to do; "" if it waits or is sent."""
    attempts: int
    created_at: datetime
    due_at: datetime
    changed_at: datetime


NotificationStateName: TypeAlias = Literal["waiting", "sent", "bounced", "failed", "refused"]


class ListNotifications(Page):
    """The notifications of agents: those of a person (a JID) and in a state, if these are given."""

    state: Annotated[NotificationStateName | None, About("Only those in this state.")] = None


def _describe_reason(one: ListedNotification) -> str:
    due = f"due {format_time(one.due_at)}" if one.state == "waiting" else ""
    return "; ".join(filter(None, (due, one.reason)))


@operation(
    "notifications.list",
    view=View(
        examples=["notifications list --agent kitchen", "notifications list --state bounced"],
        table=TableView(
            "notifications",
            cursor="id",
            columns=[("id", short_id), "agent", "person", "state", ("since", "changed_at"), ("reason", _describe_reason)],
            texts=["reason"],
        ),
        links=["notifications.retry", "notifications.drop"],
    ),
)
async def list_notifications(call: Call, arguments: ListNotifications) -> list[ListedNotification]:
    """List notifications without their contents, the newest first, with their states and reasons."""
    kind = storage.NOTIFICATION
    found = await load_newest(call.host, storage.TaskQueue, kind, arguments, kind=kind, state=arguments.state)
    return list(map(_summary, found))


@operation(
    "notifications.retry",
    is_change=True,
    view=View(
        examples=["notifications retry 1f0c9a77"],
        given=["id"],
        done="The notification to {person} will be sent again; `spade-coreason notifications list` shows its state.",
        offered=lambda row: row.state != "waiting",
    ),
)
async def retry_notification(call: Call, arguments: OfId) -> ListedNotification:
    """Send a notification again, for example one that has bounced.

    It is sent now, or at the next start if the platform does not run. A notification that is still waiting cannot be sent
    again: it is sent when it is due.

    ID is from `notifications list`.
    """
    stored = await find_task(call.host, arguments, storage.NOTIFICATION)
    if stored.state == contracts.NotificationState.WAITING:
        due = f"{stored.due:%Y-%m-%d %H:%M} UTC"
        raise ConfigError("id", f"the notification {stored.key} is still waiting; it is sent at {due}")
    await call.record(stored.agent, "notifications.retry", f"notification {stored.key}", person=stored.owner)
    if not await (await call.host.open_agent(stored.agent, changes=True)).notifications.retry(stored.key):
        raise_missing(arguments.id, storage.NOTIFICATION)
    return _summary(await find_task(call.host, arguments, storage.NOTIFICATION))


@operation(
    "notifications.drop",
    is_change=True,
    view=View(
        examples=["notifications drop 1f0c9a77"],
        given=["id"],
        question="delete the notification {id}",
        done="The notification to {person} is deleted.",
    ),
)
async def drop_notification(call: Call, arguments: OfId) -> ListedNotification:
    """Delete a notification. One that waits is not sent.

    ID is from `notifications list`.
    """
    stored = await find_task(call.host, arguments, storage.NOTIFICATION)
    await call.record(stored.agent, "notifications.drop", f"notification {stored.key}", person=stored.owner)
    await (await call.host.open_agent(stored.agent, changes=True)).notifications.drop(stored.key)
    return _summary(stored)


async def find_task(host: OperationHost, arguments: OfId, kind: str) -> storage.Task:
    """Return the one task of a kind that is meant. ConfigError without it."""
    return await find_row(host, storage.TaskQueue, arguments.agent, arguments.id, kind, kind=kind)


def _summary(stored: storage.Task) -> ListedNotification:
    found = storage.to_notification(stored)
    return ListedNotification(
        found.id,
        stored.agent,
        found.person,
        found.state,
        found.reason,
        found.attempts,
        found.created_at,
        found.due_at,
        found.changed_at,
    )
