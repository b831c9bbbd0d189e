"""The notifications of one agent: stored with a decision, listed and changed. `notifier` sends them when they are due.

`domain/initiative/notifications.py` has the decisions as tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

from pydantic import TypeAdapter, ValidationError

from ...contracts import AnyBlock, MarkdownBlock, Notification
from ...domain.access import AccessPolicy
from ...domain.callers import is_caller
from ...domain.channel_kinds import DEFAULT_CHANNEL
from ...domain.identifiers import NOTIFICATION_NAMESPACE
from ...domain.initiative.notifications import NotificationDecision, NotificationPolicy, decide_notification, describe_reason
from ...domain.messages import REPLY_THREAD, InboundRequest
from ...domain.preferences import DEFAULT_PREFERENCES, Preferences
from ...storage import NOTIFICATION, AgentRepository, Rows, Task, addition_of, from_micros, send_again, to_notification
from ..channels import AgentNetwork
from ..conversations.persons import Persons
from ..tasks import AgentTasks

MAX_CONTENT_BYTES = 2**18
"""The largest content of a notification, as JSON in UTF-8."""
_PER_DAY = timedelta(days=1)
_BLOCKS: TypeAdapter[list[AnyBlock]] = TypeAdapter(list[AnyBlock])


class AgentNotifications:
    """The stored notifications of one agent.

    The data of a task are `content`, the blocks or a question, and `messages`, once its turn is stored: what the server gets.
    """

    def __init__(
        self,
        repository: AgentRepository,
        tasks: AgentTasks,
        persons: Persons,
        access: AccessPolicy,
        network: AgentNetwork,
        policy: NotificationPolicy,
    ) -> None:
        self.queue = repository.notifications
        self.tasks = tasks
        self.channel = network.channels[DEFAULT_CHANNEL]
        """The channel by which notifications go to people and rooms."""
        self._persons = persons
        self._access = access
        self._policy = policy

    async def notify(self, notification_id: str, person: str, thread: str | None, content: str, root: str) -> Notification:
        """Store a notification, unless there is one with its id, and return it. StoreError if it cannot be stored."""
        now, preferences = self.tasks.now(), await self.find_preferences(person)
        new = self.queue.make_notification(notification_id, person, thread, root, content, now)
        is_own, is_room = not new.root, self.channel.is_room(person)

        def decide(own: int, of_others: int) -> Task:
            count = self._policy.count_today(own, of_others, is_own=is_own, is_room=is_room)
            return decided(new, self.decide(person, preferences, now, count), now)

        stored = await self.queue.create(new, decide, since=now - _PER_DAY) or new
        self.tasks.alarm.wake_at(from_micros(stored.wake_at))
        return to_notification(stored)

    async def find(self, notification_id: str) -> Notification | None:
        """Return a notification, or None. StoreError if it cannot be read."""
        found = await self.queue.find(notification_id)
        return None if found is None else to_notification(found)

    async def retry(self, notification_id: str) -> bool:
        """Send a notification again. Return False if there is none, or if it is waiting. StoreError."""
        now = self.tasks.now()
        async with self.tasks.reserve(NOTIFICATION, notification_id):
            return await self.queue.change(lambda task: send_again(task, now), key=notification_id)

    async def drop(self, notification_id: str) -> bool:
        """Delete a notification, also one that waits. Return False if there is none. StoreError."""
        self.tasks.forget(lambda task: (task.kind, task.key) == (NOTIFICATION, notification_id))
        async with self.tasks.reserve(NOTIFICATION, notification_id):
            return await self.queue.delete(notification_id)

    def make_of_job(self, incoming: InboundRequest, key: UUID, blocks: Sequence[AnyBlock]) -> Rows:
        """Return the rows of the notification with the reply of a job; none if no person is told, or nothing is said."""
        if not blocks or REPLY_THREAD not in incoming.metadata:
            return ()
        notification_id, thread = str(uuid5(NOTIFICATION_NAMESPACE, f"job\0{key}")), incoming.metadata[REPLY_THREAD]
        root, content = incoming.stored_root or "", dump_reply_blocks(blocks)
        made = self.queue.make_notification(notification_id, incoming.owner, thread, root, content, self.tasks.now())
        return (addition_of(made),)

    # Decisions

    async def find_preferences(self, person: str) -> Preferences:
        """Return what a person or a room (a bare JID) wants."""
        if self.channel.is_room(person):
            return DEFAULT_PREFERENCES
        return await self._persons.get_preferences(person)

    def decide(self, person: str, preferences: Preferences, now: datetime, count_today: int | None) -> NotificationDecision:
        """Decide on a notification now. `count_today` is None for one that was counted before."""
        decision = decide_notification(
            is_allowed=self.channel.is_room(person) or (self._access.is_allowed(person) and not is_caller(person)),
            is_on=preferences.notifications is not False,
            count_today=count_today,
            policy=self._policy,
            zone=preferences.zone or self._policy.zone,
            now=now,
        )
        return decision._replace(reason=describe_reason(decision.reason)) if decision.reason else decision


def decided(task: Task, decision: NotificationDecision, now: datetime) -> Task:
    """Return a notification as a decision leaves it."""
    return task.moved(now, decision.state.value, decision.reason, decision.due_at)


def dump_blocks(content: Any) -> str:
    """Return the JSON text of a text or of blocks, for storage. ValueError if they cannot be sent."""
    if isinstance(content, str):
        content = [MarkdownBlock(content=content)]
    elif not isinstance(content, Sequence):
        content = [content]
    try:
        blocks = _BLOCKS.validate_python(list(content))
    except ValidationError as error:
        raise ValueError(f"people.notify takes a text or blocks, not {content!r:.200}: {error.error_count()} errors") from error
    if not any(block.block_type != "MARKDOWN" or block.content.strip() for block in blocks):
        raise ValueError("people.notify: there is nothing to send; give it a text")
    text = dump_reply_blocks(blocks)
    if (size := len(text.encode())) > MAX_CONTENT_BYTES:
        raise ValueError(
            f"people.notify: the content has {size:,} bytes (limit: {MAX_CONTENT_BYTES:,}); upload it and send the link"
        )
    return text


def dump_reply_blocks(blocks: Sequence[AnyBlock]) -> str:
    """Return the JSON text of the blocks of a reply, of any size, for storage."""
    # The ids of blocks are made at random: with them no two runs of a turn would be the same.
    return _BLOCKS.dump_json([block.model_copy(update={"id": UUID(int=0)}) for block in blocks]).decode()


def load_blocks(content: object) -> list[AnyBlock]:
    """Return the blocks of a stored content."""
    return _BLOCKS.validate_python(content)
