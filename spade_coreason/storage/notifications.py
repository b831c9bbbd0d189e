"""Notifications: what an agent sends without being asked. Their table is their outbox."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, case, delete, func, insert, or_, select, update

from ..contracts import Notification, NotificationState
from ..domain.initiative.notifications import NotificationDecision
from .backends.database import Commit, Database, Row
from .backends.statements import ADD_INTERACTION, ADD_NOTIFICATION, SAVE_CONVERSATION, UPDATE_NOTIFICATION
from .records import StoredConversation, TurnRecord, conversation_columns, from_micros, to_micros
from .schema import notifications

KEPT_DAYS = 7
"""The days for which a notification is kept after its last change."""
_PER_DAY = timedelta(days=1)
_WAITING = NotificationState.WAITING.value


class StoredNotification(NamedTuple):
    """A row of the table. Times are in microseconds, `content` and `messages` are JSON texts."""

    id: int
    agent: str
    notification_id: str
    person: str
    thread: str | None
    root: str
    state: str
    reason: str
    attempts: int
    content: str
    messages: str | None
    created_at: int
    changed_at: int
    due_at: int

    def to_public(self) -> Notification:
        """Return it as agents and operators read it."""
        state = NotificationState(self.state)
        changed_at = from_micros(self.changed_at)
        return Notification(
            self.notification_id,
            self.person,
            self.thread,
            state,
            self.reason,
            self.attempts,
            from_micros(self.created_at),
            from_micros(self.due_at),
            changed_at,
        )

    def moved(
        self, state: NotificationState, now: datetime, reason: str = "", due_at: datetime | None = None
    ) -> StoredNotification:
        """Return it in another state."""
        due = self.due_at if due_at is None else to_micros(due_at)
        return self._replace(state=state.value, reason=reason, changed_at=to_micros(now), due_at=due)

    @property
    def update(self) -> tuple[int, Row]:
        """The row that stores its state."""
        return UPDATE_NOTIFICATION, (
            self.id,
            self.state,
            self.reason,
            self.attempts,
            self.messages,
            self.changed_at,
            self.due_at,
        )


class NotificationRepository:
    """The notifications of one agent (a bare JID). Methods raise StoreError if the database fails."""

    def __init__(self, database: Database, agent: str) -> None:
        self._database = database
        self._agent = agent

    def make(
        self, notification_id: str, person: str, thread: str | None, root: str, content: str, now: datetime
    ) -> StoredNotification:
        """Return a new notification that is due now, not stored yet."""
        micros = to_micros(now)
        return StoredNotification(
            self._database.next_id(),
            self._agent,
            notification_id,
            person,
            thread,
            root,
            _WAITING,
            "",
            0,
            content,
            None,
            micros,
            micros,
            micros,
        )

    def add_row(self, notification: StoredNotification) -> tuple[int, Row]:
        """Return the row that stores a new notification, for a transaction of the caller."""
        return ADD_NOTIFICATION, notification

    async def create(
        self, new: StoredNotification, decide: Callable[[int, int], NotificationDecision], now: datetime
    ) -> StoredNotification:
        """Store a new notification as `decide` says. It gets the numbers of those that its person had within a day.

        The first number is of those without a root, the second one of those that others have caused.
        If there is one with its id, return that one.
        """
        own = notifications.c.agent == self._agent
        since = to_micros(now - _PER_DAY)

        def work(connection: Connection) -> StoredNotification:
            known = connection.execute(
                select(notifications).where(own, notifications.c.notification_id == new.notification_id)
            ).one_or_none()
            if known is not None:
                return StoredNotification._make(known)
            is_own = notifications.c.root == ""
            counted = select(func.count(case((is_own, 1))), func.count(case((~is_own, 1)))).where(
                own,
                notifications.c.person == new.person,
                notifications.c.created_at > since,
                notifications.c.state != NotificationState.REFUSED.value,
            )
            decision = decide(*connection.execute(counted).one())
            stored = new.moved(decision.state, now, decision.reason, decision.due_at)
            connection.execute(insert(notifications).values(stored._asdict()))
            return stored

        return await self._database.write(work)

    def store_turn(self, notification: StoredNotification, conversation: StoredConversation, turn: TurnRecord) -> Commit[bool]:
        """Store the turn of a notification with its conversation and its messages, in one transaction."""
        interaction = (
            next(self._database.row_ids),
            conversation.id,
            conversation.turns,
            turn.interaction_id,
            to_micros(turn.timestamp),
            turn.body,
        )
        return self._database.submit(
            [
                (SAVE_CONVERSATION, conversation_columns(self._agent, conversation)),
                (ADD_INTERACTION, interaction),
                notification.update,
            ],
            is_turn_end=True,
        )

    def add(self, new: Sequence[StoredNotification]) -> Commit[bool]:
        """Store new notifications as they are."""
        return self._database.submit([self.add_row(notification) for notification in new])

    def save(self, notification: StoredNotification) -> Commit[bool]:
        """Store the state of a notification, unless it was deleted."""
        return self._database.submit([notification.update])

    def store_bounce(
        self, notification_id: str, decide: Callable[[StoredNotification], StoredNotification | None]
    ) -> Commit[bool]:
        """Store what `decide` makes of a notification that came back. The commit has False if it, or `decide`, is None."""
        found = select(notifications).where(
            notifications.c.agent == self._agent, notifications.c.notification_id == notification_id
        )

        def work(connection: Connection) -> bool:
            row = connection.execute(found).one_or_none()
            changed = None if row is None else decide(StoredNotification._make(row))
            if changed is None:
                return False
            connection.execute(update(notifications).where(notifications.c.id == changed.id).values(changed._asdict()))
            return True

        return self._database.run(work)

    async def find(self, notification_id: str) -> StoredNotification | None:
        """Return a notification, or None."""
        found = await self._load(notifications.c.notification_id == notification_id)
        return found[0] if found else None

    async def load_due(self, now: datetime, limit: int, *, without: Collection[int] = ()) -> list[StoredNotification]:
        """Return at most `limit` notifications that are due, the first due ones first, without those of some rows."""
        without = frozenset(without)  # as it is before the read: what is sent meanwhile was read as waiting
        is_due = notifications.c.state == _WAITING, notifications.c.due_at <= to_micros(now)
        found = await self._load(*is_due, limit=limit + len(without))
        return [notification for notification in found if notification.id not in without][:limit]

    async def find_next_due(self, *, without: Collection[int] = ()) -> datetime | None:
        """Return when the first of the waiting notifications is due, without those of some rows; None without one."""
        query = (
            select(notifications.c.id, notifications.c.due_at)
            .where(notifications.c.agent == self._agent, notifications.c.state == _WAITING)
            .order_by(notifications.c.due_at)
            .limit(len(without) + 1)
        )
        rows = await self._database.fetch(query)
        return next((from_micros(row.due_at) for row in rows if row.id not in without), None)

    async def load_newest(
        self, person: str | None = None, state: NotificationState | None = None, *, limit: int = 1000
    ) -> list[StoredNotification]:
        """Return the newest notifications, the newest first: to one person (a bare JID) or to all, in one state or in any."""
        of_person = () if person is None else (notifications.c.person == person,)
        in_state = () if state is None else (notifications.c.state == state.value,)
        return await self._load(*of_person, *in_state, order=notifications.c.id.desc(), limit=limit)

    async def count_by_state(self) -> dict[str, int]:
        """Return the number of notifications in each state that any is in."""
        counts = select(notifications.c.state, func.count().label("number")).where(notifications.c.agent == self._agent)
        query = counts.group_by(notifications.c.state).order_by(notifications.c.state)
        rows = await self._database.fetch(query)
        return {row.state: row.number for row in rows}

    async def find_by_prefix(self, prefix: str, limit: int = 2) -> list[StoredNotification]:
        """Return at most `limit` notifications whose ids begin with a text."""
        return await self._load(notifications.c.notification_id.startswith(prefix, autoescape=True), limit=limit)

    async def load_about(self, person: str) -> Sequence[StoredNotification]:
        """Return all notifications to a person (a bare JID), and those that a request of theirs led to, oldest first."""
        return await self._load(_is_about(person), order=notifications.c.id)

    async def delete(self, notification_id: str) -> bool:
        """Delete a notification. Return False if there is none."""
        statement = delete(notifications).where(
            notifications.c.agent == self._agent, notifications.c.notification_id == notification_id
        )
        return bool(await self._database.erase(lambda connection: connection.execute(statement).rowcount))

    async def _load(
        self, *conditions: ColumnElement[bool], order: Any = notifications.c.due_at, limit: int | None = None
    ) -> list[StoredNotification]:
        query = select(notifications).where(notifications.c.agent == self._agent, *conditions).order_by(order).limit(limit)
        rows = await self._database.fetch(query)
        return [StoredNotification._make(row) for row in rows]


def delete_old_notifications(connection: Connection, agent: str, now: datetime) -> None:
    """Delete the notifications of an agent that do not wait, seven days after their last change, in a transaction."""
    before = to_micros(now - timedelta(days=KEPT_DAYS))
    is_old = notifications.c.state != _WAITING, notifications.c.changed_at < before
    connection.execute(delete(notifications).where(notifications.c.agent == agent, *is_old))


def delete_notifications_about(connection: Connection, agent: str, person: str) -> int:
    """Delete the notifications to a person, and those that a request of theirs led to, in a transaction of the writer."""
    return connection.execute(delete(notifications).where(notifications.c.agent == agent, _is_about(person))).rowcount


def delete_notifications_in(connection: Connection, agent: str, person: str, thread: str | None) -> int:
    """Delete the notifications in a conversation, in a transaction of the writer."""
    is_there = notifications.c.agent == agent, notifications.c.person == person, notifications.c.thread == thread
    return connection.execute(delete(notifications).where(*is_there)).rowcount


def _is_about(person: str) -> ColumnElement[bool]:
    return or_(notifications.c.person == person, notifications.c.root == person)
