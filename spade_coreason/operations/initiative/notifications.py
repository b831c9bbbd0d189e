"""The operations on notifications: what agents send first. Their contents are private, and not shown."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, NoReturn

from pydantic import Field

from ...contracts import NotificationState
from ...contracts.base import utc_now
from ...exceptions import ConfigError
from ...storage import StoredNotification
from ..definition import Arguments, Call, operation
from ..host import OperationHost, stored_agents

MAX_LISTED = 1000
MIN_ID_CHARACTERS = 8


@dataclass(frozen=True, slots=True)
class ListedNotification:
    """A notification without its content."""

    id: str
    agent: str
    person: str
    """The bare JID of the person or the room."""
    state: NotificationState
    reason: str
    """One line: why it is in its state, and what to do; "" if it waits or is sent."""
    attempts: int
    created_at: datetime
    due_at: datetime
    changed_at: datetime


class Notifications(Arguments):
    """The notifications of agents, all without a name; of a person (a JID), and in a state, if these are given."""

    agent: str | None = None
    person: str | None = None
    state: NotificationState | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_LISTED)] = 100


@operation("notifications.list")
async def list_notifications(call: Call, arguments: Notifications) -> list[ListedNotification]:
    """List notifications, the newest first, without their contents."""
    found = [
        stored
        for agent in await stored_agents(call.host, arguments.agent)
        for stored in await call.host.repository(agent).notifications.load_newest(
            arguments.person, arguments.state, limit=arguments.limit
        )
    ]
    found.sort(key=lambda stored: stored.created_at, reverse=True)
    return [_summary(stored) for stored in found[: arguments.limit]]


class OfNotification(Arguments):
    """A notification, by its id or the first characters of it, 8 at least."""

    id: Annotated[str, Field(min_length=MIN_ID_CHARACTERS, max_length=36)]
    agent: str | None = None


@operation("notifications.retry", is_change=True)
async def retry_notification(call: Call, arguments: OfNotification) -> ListedNotification:
    """Send a notification again, unless it is waiting: now, or at the next start of the platform."""
    stored = await _find(call.host, arguments)
    if stored.state == NotificationState.WAITING:
        due = f"{stored.to_public().due_at:%Y-%m-%d %H:%M} UTC"
        raise ConfigError("id", f"the notification {stored.notification_id} is still waiting; it is sent at {due}")
    await call.record(stored.agent, "notifications.retry", f"notification {stored.notification_id}", person=stored.person)
    if (running := await call.host.running_agent(stored.agent, changes=True)) is not None:
        if not await running.retry_notification(stored.notification_id):
            _raise_missing(arguments.id)
    else:
        now = utc_now()
        again = stored.moved(NotificationState.WAITING, now, due_at=now)._replace(attempts=0)
        await call.host.repository(stored.agent).notifications.save(again)
    return _summary(await _find(call.host, arguments))


@operation("notifications.drop", is_change=True)
async def drop_notification(call: Call, arguments: OfNotification) -> ListedNotification:
    """Delete a notification. One that waits is not sent."""
    stored = await _find(call.host, arguments)
    await call.record(stored.agent, "notifications.drop", f"notification {stored.notification_id}", person=stored.person)
    if (running := await call.host.running_agent(stored.agent, changes=True)) is not None:
        await running.drop_notification(stored.notification_id)
    else:
        await call.host.repository(stored.agent).notifications.delete(stored.notification_id)
    return _summary(stored)


async def _find(host: OperationHost, arguments: OfNotification) -> StoredNotification:
    found = [
        stored
        for agent in await stored_agents(host, arguments.agent)
        for stored in await host.repository(agent).notifications.find_by_prefix(arguments.id.lower())
    ]
    if len(found) != 1:
        _raise_missing(arguments.id, has_many=bool(found))
    return found[0]


def _raise_missing(ident: str, *, has_many: bool = False) -> NoReturn:
    problem = "several notifications begin with" if has_many else "there is no notification"
    raise ConfigError("id", f"{problem} {ident}; `notifications list` shows them, for seven days after their last change")


def _summary(stored: StoredNotification) -> ListedNotification:
    found = stored.to_public()
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
