"""Conversations at work: the messages that wait, and what is held in memory while they are active."""

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
    """A request whose turn has not come. `stored` is done when it is durable: False for a duplicate.

    Where it `may_start_early`, its turn begins without waiting for that.
    """

    incoming: InboundRequest
    key: UUID
    inbox_row: int
    stored: asyncio.Future[bool]
    received_at_s: float
    """When it came in, by `Metrics.now`."""
    may_start_early: bool = False
    is_redelivered: bool = False

    def has_message_id(self, message_id: str) -> bool:
        """Whether its sender calls the message by this id."""
        return bool(message_id) and message_id in (self.incoming.stanza_id, self.incoming.origin_id)


@dataclass(slots=True, eq=False)
class MailboxTask:
    """Something to do in a conversation between its turns. `is_for_agent` is the agent's, which a pause keeps back."""

    work: Callable[[], Awaitable[Any]]
    is_for_agent: bool
    future: asyncio.Future[Any]

    async def run(self) -> None:
        """Does it, and says what came of it to whoever waits."""
        try:
            result = await self.work()
        except asyncio.CancelledError:
            self.future.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - whoever waits has it
            if not self.future.done():
                self.future.set_exception(error)
        else:
            if not self.future.done():
                self.future.set_result(result)

    def has_message_id(self, message_id: str) -> bool:
        """It is no message."""
        return False


class SenderQuota:
    """What one person has of an agent: slots for turns, and how many of their messages wait, on all threads together."""

    __slots__ = ("__weakref__", "queued_count", "slots")

    def __init__(self, slots: Semaphore) -> None:
        self.slots = slots
        self.queued_count = 0


class Mailbox:
    """The messages of one sender on one thread, which is one conversation: one at a time, in order."""

    __slots__ = (
        "conversation",
        "conversation_id",
        "current",
        "has_cancelled",
        "is_assisting",
        "is_withdrawn",
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
        self.conversation: ActiveConversation | None = None
        self.conversation_id: str | None = None
        self.current: QueuedRequest | None = None
        """The request whose turn it is, until `assist` returns."""
        self.is_assisting = False
        self.has_cancelled = False
        """Whether a `/cancel` that is still to be answered has stopped something."""
        self.is_withdrawn = False
        """Whether whoever asked has taken that request back."""

    @property
    def sender(self) -> str:
        """Whose messages they are, a bare JID."""
        return self.key[0]

    def enqueue(self, item: QueuedRequest | MailboxTask) -> None:
        """It waits behind the others."""
        self.queue.append(item)
        self.quota.queued_count += 1

    def requeue(self, item: QueuedRequest | MailboxTask) -> None:
        """It is the first again."""
        self.queue.appendleft(item)
        self.quota.queued_count += 1

    def dequeue(self, may_start: Callable[[QueuedRequest | MailboxTask], bool]) -> QueuedRequest | MailboxTask | None:
        """The first that may begin, which waits no longer."""
        for number, one in enumerate(self.queue):
            if may_start(one):
                del self.queue[number]
                self.quota.queued_count -= 1
                return one
        return None

    def remove(self, item: QueuedRequest | MailboxTask) -> None:
        """It waits no longer."""
        self.queue.remove(item)
        self.quota.queued_count -= 1

    def cancel_current(self) -> bool:
        """Stops the agent at work on a request, if it is; nothing of the turn remains."""
        if self.current is None or self.worker is None:
            return False
        self.is_withdrawn = True
        if self.is_assisting:
            self.worker.cancel()
        return True

    def clear(self) -> None:
        """Nothing waits any more."""
        self.quota.queued_count -= len(self.queue)
        for one in self.queue:
            if isinstance(one, MailboxTask):
                one.future.cancel()
        self.queue.clear()


class Mailboxes:
    """The lanes of one agent, by sender and thread, and by conversation id as soon as that is known."""

    def __init__(self, max_turns: int, max_turns_per_sender: int) -> None:
        self._mailboxes: dict[tuple[str, str | None], Mailbox] = {}
        self._by_id: dict[str, Mailbox] = {}
        self._slots = Semaphore(max_turns)
        self._max_turns_per_sender = max_turns_per_sender
        self._quotas: weakref.WeakValueDictionary[str, SenderQuota] = weakref.WeakValueDictionary()

    def __iter__(self) -> Iterator[Mailbox]:
        return iter(list(self._mailboxes.values()))

    def get(self, sender: str, thread: str | None) -> Mailbox | None:
        """The lane, if there is one."""
        return self._mailboxes.get((sender, thread))

    def get_or_create(self, sender: str, thread: str | None) -> Mailbox:
        """The lane, a new one if there is none."""
        key = sender, thread
        lane = self._mailboxes.get(key)
        if lane is None:
            lane = self._mailboxes[key] = Mailbox(sender, thread, self._quota_of(sender))
        return lane

    def of_sender(self, sender: str) -> list[Mailbox]:
        """All lanes of a person."""
        return [lane for lane in self._mailboxes.values() if lane.sender == sender]

    def count_queued(self, sender: str) -> int:
        """How many messages of a person wait."""
        share = self._quotas.get(sender)
        return 0 if share is None else share.queued_count

    def _quota_of(self, sender: str) -> SenderQuota:
        share = self._quotas.get(sender)
        if share is None:
            share = self._quotas[sender] = SenderQuota(Semaphore(self._max_turns_per_sender, parent=self._slots))
        return share

    def find_by_conversation(self, conversation_id: str) -> Mailbox | None:
        """The lane of a conversation, if it is at work."""
        return self._by_id.get(conversation_id)

    def assign_conversation(self, mailbox: Mailbox, conversation_id: str) -> None:
        """Says which conversation a lane is. From here on no other sender of this process may take the id."""
        mailbox.conversation_id = conversation_id
        self._by_id[conversation_id] = mailbox

    def find_owners(self, conversation_ids: Iterable[str]) -> dict[str, str]:
        """Who has those of the conversation ids that are at work."""
        return {name: self._by_id[name].sender for name in conversation_ids if name in self._by_id}

    def evict_if_idle(self, mailbox: Mailbox) -> None:
        """Frees what a conversation held that is over, or was never begun; an active one stays while there is room."""
        memory = mailbox.conversation
        if mailbox.queue or mailbox.worker is not None:
            return
        if memory is not None and memory.record.status.is_active and len(self._mailboxes) < _MAX_MAILBOXES:
            return
        self._mailboxes.pop(mailbox.key, None)
        if mailbox.conversation_id is not None and self._by_id.get(mailbox.conversation_id) is mailbox:
            del self._by_id[mailbox.conversation_id]


_MAX_MAILBOXES = 10_000
