"""Mailboxes: one queue of requests for each conversation in memory.

A mailbox holds the requests of one sender on one thread, in order. Its worker (see `dispatcher`) runs one turn at a time.
It also holds the loaded `ActiveConversation`, and stays in memory while that conversation is active.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ..concurrency import Semaphore
from ..domain.messages import InboundRequest
from ..domain.value import value
from ..memory import ActiveConversation


@value
class QueuedRequest:
    """A received request that waits for its turn."""

    incoming: InboundRequest
    key: UUID
    inbox_row: int
    stored: asyncio.Future[bool]
    """Done when the request is durable in the inbox: True for a new request, False for a duplicate."""
    received_at_s: float
    """Time of arrival, in seconds of the clock `Metrics.now`."""
    may_start_early: bool = False
    """True if the turn may begin before `stored` is done."""
    is_redelivered: bool = False
    """True if an earlier run of this request was interrupted, or failed in the store."""

    def has_message_id(self, message_id: str) -> bool:
        """Return True if the sender uses this id for the message: the id of the stanza, or its origin id (XEP-0359)."""
        return bool(message_id) and message_id in (self.incoming.stanza_id, self.incoming.origin_id)


@dataclass(slots=True, eq=False)
class MailboxTask:
    """Work in a conversation between two turns, for example a command. `future` is done when the work is."""

    work: Callable[[], Awaitable[Any]]
    is_for_agent: bool
    """True if the agent does the work, so that a pause delays it."""
    future: asyncio.Future[Any]

    async def run(self) -> None:
        """Do the work, and set its result or exception on `future`."""
        try:
            result = await self.work()
        except asyncio.CancelledError:
            self.future.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - the caller gets it through the future
            if not self.future.done():
                self.future.set_exception(error)
        else:
            if not self.future.done():
                self.future.set_result(result)

    def has_message_id(self, message_id: str) -> bool:
        """Return False: a task has no message."""
        return False


class SenderQuota:
    """The share of one sender in an agent, over all threads: slots for turns, and the number of queued requests."""

    __slots__ = ("__weakref__", "queued_count", "slots")

    def __init__(self, slots: Semaphore) -> None:
        self.slots = slots
        self.queued_count = 0


class Mailbox:
    """Queue of one conversation: the requests of one sender on one thread, run one at a time and in order."""

    __slots__ = (
        "active",
        "conversation_id",
        "current",
        "has_cancelled_turn",
        "is_assisting",
        "is_cancelled",
        "key",
        "queue",
        "quota",
        "worker",
    )

    def __init__(self, sender: str, thread: str | None, quota: SenderQuota) -> None:
        self.key = (sender, thread)
        self.quota = quota
        self.queue: deque[QueuedRequest | MailboxTask] = deque()
        self.worker: asyncio.Task[None] | None = None
        self.active: ActiveConversation | None = None
        self.conversation_id: str | None = None
        self.current: QueuedRequest | None = None
        """The request whose turn runs, until `assist` returns."""
        self.is_assisting = False
        """True while the agent runs."""
        self.has_cancelled_turn = False
        """True if a `/cancel` that is still unanswered has stopped a turn."""
        self.is_cancelled = False
        """True if the sender has cancelled the current request."""

    @property
    def sender(self) -> str:
        """The bare JID of the sender of all requests here."""
        return self.key[0]

    def enqueue(self, item: QueuedRequest | MailboxTask) -> None:
        """Add an item at the end of the queue."""
        self.queue.append(item)
        self.quota.queued_count += 1

    def requeue(self, item: QueuedRequest | MailboxTask) -> None:
        """Put an item back at the head of the queue."""
        self.queue.appendleft(item)
        self.quota.queued_count += 1

    def dequeue(self, may_start: Callable[[QueuedRequest | MailboxTask], bool]) -> QueuedRequest | MailboxTask | None:
        """Remove and return the first item that may start; None if there is none."""
        for number, item in enumerate(self.queue):
            if may_start(item):
                del self.queue[number]
                self.quota.queued_count -= 1
                return item
        return None

    def remove(self, item: QueuedRequest | MailboxTask) -> None:
        """Remove an item from the queue."""
        self.queue.remove(item)
        self.quota.queued_count -= 1

    def cancel_current(self) -> bool:
        """Stop the current turn and discard it. Return False if no turn runs."""
        if self.current is None or self.worker is None:
            return False
        self.is_cancelled = True
        if self.is_assisting:
            self.worker.cancel()
        return True

    def clear(self) -> None:
        """Empty the queue, and cancel the futures of its tasks."""
        self.quota.queued_count -= len(self.queue)
        for item in self.queue:
            if isinstance(item, MailboxTask):
                item.future.cancel()
        self.queue.clear()


class Mailboxes:
    """The mailboxes of one agent, by sender and thread, and by conversation id once that is known."""

    def __init__(self, max_turns: int, max_turns_per_sender: int) -> None:
        self._mailboxes: dict[tuple[str, str | None], Mailbox] = {}
        self._by_id: dict[str, Mailbox] = {}
        self._slots = Semaphore(max_turns)
        self._max_turns_per_sender = max_turns_per_sender
        self._quotas: weakref.WeakValueDictionary[str, SenderQuota] = weakref.WeakValueDictionary()

    def __iter__(self) -> Iterator[Mailbox]:
        return iter(list(self._mailboxes.values()))

    def get(self, sender: str, thread: str | None) -> Mailbox | None:
        """Return the mailbox of a sender (a bare JID) on a thread, or None."""
        return self._mailboxes.get((sender, thread))

    def get_or_create(self, sender: str, thread: str | None) -> Mailbox:
        """Return the mailbox of a sender (a bare JID) on a thread; create it if there is none."""
        key = sender, thread
        mailbox = self._mailboxes.get(key)
        if mailbox is None:
            mailbox = self._mailboxes[key] = Mailbox(sender, thread, self._quota_of(sender))
        return mailbox

    def of_sender(self, sender: str) -> list[Mailbox]:
        """Return all mailboxes of a sender (a bare JID)."""
        return [mailbox for mailbox in self._mailboxes.values() if mailbox.sender == sender]

    def count_queued(self, sender: str) -> int:
        """Count the queued items of a sender (a bare JID), over all threads."""
        quota = self._quotas.get(sender)
        return 0 if quota is None else quota.queued_count

    def _quota_of(self, sender: str) -> SenderQuota:
        quota = self._quotas.get(sender)
        if quota is None:
            quota = self._quotas[sender] = SenderQuota(Semaphore(self._max_turns_per_sender, parent=self._slots))
        return quota

    def find_by_conversation(self, conversation_id: str) -> Mailbox | None:
        """Return the mailbox of a conversation, or None if the conversation is not in memory."""
        return self._by_id.get(conversation_id)

    def assign_conversation(self, mailbox: Mailbox, conversation_id: str) -> None:
        """Link a mailbox to its conversation. From now on no other sender of this process may take the id."""
        mailbox.conversation_id = conversation_id
        self._by_id[conversation_id] = mailbox

    def find_owners(self, conversation_ids: Iterable[str]) -> dict[str, str]:
        """Return the owner of each of these conversations that is in memory."""
        return {
            conversation_id: self._by_id[conversation_id].sender
            for conversation_id in conversation_ids
            if conversation_id in self._by_id
        }

    def evict_if_idle(self, mailbox: Mailbox) -> None:
        """Remove a mailbox without work, unless its conversation is active.

        An active conversation stays in memory while the agent has fewer than 10,000 mailboxes.
        """
        active = mailbox.active
        if mailbox.queue or mailbox.worker is not None:
            return
        if active is not None and active.record.status.is_active and len(self._mailboxes) < _MAX_MAILBOXES:
            return
        self._mailboxes.pop(mailbox.key, None)
        if mailbox.conversation_id is not None and self._by_id.get(mailbox.conversation_id) is mailbox:
            del self._by_id[mailbox.conversation_id]


_MAX_MAILBOXES = 10_000
