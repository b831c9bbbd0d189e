"""A mailbox: the requests of one sender on one thread, in order, and the conversation that they belong to."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Set
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Protocol
from uuid import UUID

from ...concurrency import Semaphore
from ...domain.forms.command_parser import ParsedCommand
from ...domain.identifiers import NO_DIGEST
from ...domain.messages import InboundRequest
from ...domain.value import value
from ...memory import ActiveConversation
from ...storage import SPARE_SLOT, Commit

LARGE_CHARACTERS = 2**18
MAX_LARGE_REQUESTS = 4
"""Number of requests of one sender with more than `LARGE_CHARACTERS` that are queued or worked on at once."""


@value
class QueuedRequest:
    """A received request that waits for its turn."""

    incoming: InboundRequest
    key: UUID
    inbox_row: int
    stored: Commit[bool]
    """The commit of the request in the inbox: True for a new request, False for a duplicate."""
    received_at_s: float
    """Time of arrival, in seconds of `time.monotonic`."""
    may_start_early: bool = False
    """True if the turn may begin before `stored` is done."""
    is_redelivered: bool = False
    """True if an earlier run of this request was interrupted, or failed in the store."""
    command: ParsedCommand | str | None = None
    """The command that the request is, or the text of one that does not exist; None if the request is for `assist`."""
    may_be_duplicate: bool = False
    """True if the inbox may have the request already, so that `receive` of the interceptors was not called for it."""
    is_for_agent: bool = True
    """True if the agent handles the request, so that a pause delays it; False for a command of the platform."""
    digest: bytes = NO_DIGEST
    """The hash of what a program's request asks, by which a repeated one is recognised; empty for other requests."""
    is_archived: bool = False
    """True if the request was fetched from the archive of the network, or from what it keeps for those who are away."""
    missed_at: datetime | None = None
    """The time after which the request of a due time is dropped if its turn has not begun; None if it comes late."""

    @property
    def may_be_in_archive(self) -> bool:
        """True if the request came by itself, and earlier ones of its conversation may still be in the archive."""
        return self.incoming.kind.may_have_archive and not (
            self.is_archived or self.is_redelivered or self.incoming.is_from_room
        )


@dataclass(slots=True, eq=False)
class MailboxTask:
    """Work in a conversation between two turns, for example a command. `future` is done when the work is."""

    work: Callable[[], Awaitable[Any]]
    is_for_agent: bool
    """True if the agent does the work, so that a pause delays it."""
    future: asyncio.Future[Any]
    inbox_row: ClassVar[int] = 0
    stored: ClassVar[Commit[bool]] = Commit.completed(True)

    async def run(self) -> None:
        """Do the work, and set its result or exception on `future`."""
        try:
            result = await self.work()
        except asyncio.CancelledError:
            self.future.cancel()
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - the caller gets it through the future
            if not self.future.done():
                self.future.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
        else:
            if not self.future.done():
                self.future.set_result(result)


class AssistingTurn(Protocol):
    """A turn in which the agent runs."""

    queued: QueuedRequest
    started_at: datetime

    @property
    def work(self) -> object:
        """The call of the agent, once it has begun."""
        ...

    @property
    def last_step(self) -> str:
        """The name of its last durable step; empty before the first."""
        ...


class SenderState:
    """The state of one sender, over all threads: slots for turns, and the number of queued requests."""

    __slots__ = ("__weakref__", "kept_characters", "mailboxes", "queued_count", "slots")

    def __init__(self, slots: Semaphore) -> None:
        self.slots = slots
        self.queued_count = 0
        """The number of items that wait: for their turn in the mailbox, or for a slot."""
        self.kept_characters = 0
        """The characters of the turns of all idle conversations in memory."""
        self.mailboxes: dict[str | None, Mailbox] = {}
        """The mailboxes of the sender in memory, by thread."""

    def count_large(self) -> int:
        """Count the requests with more than `LARGE_CHARACTERS` that are queued or worked on."""
        return sum(
            isinstance(item, QueuedRequest) and len(item.incoming.content) > LARGE_CHARACTERS
            for mailbox in self.mailboxes.values()
            for item in (mailbox.current, *mailbox.queue)
        )


class Mailbox:
    """Queue of one conversation: the requests of one sender on one thread, run one at a time and in order."""

    __slots__ = (
        "active",
        "answered",
        "conversation_id",
        "current",
        "handled",
        "has_cancelled_turn",
        "is_cancelled",
        "kept_characters",
        "key",
        "queue",
        "retry",
        "running_slot",
        "sender_state",
        "turn",
        "worker",
    )

    def __init__(self, sender: str, thread: str | None, sender_state: SenderState) -> None:
        self.key = (sender, thread)
        self.sender_state = sender_state
        self.queue: deque[QueuedRequest | MailboxTask] = deque()
        self.worker: asyncio.Task[None] | None = None
        self.active: ActiveConversation | None = None
        self.conversation_id: str | None = None
        self.kept_characters = 0
        """The characters of the turns that stay in memory while the mailbox is idle."""
        self.current: QueuedRequest | None = None
        """The request whose turn runs, until `assist` returns."""
        self.handled: QueuedRequest | None = None
        """The request that the worker has taken, until its reply is stored."""
        self.turn: AssistingTurn | None = None
        """The turn in which the agent runs."""
        self.retry: asyncio.TimerHandle | None = None
        """The timer of the next attempt, while the first request waits for the database."""
        self.running_slot = SPARE_SLOT
        """The slot of the turn in `RunningRequests`, until it is stored."""
        self.has_cancelled_turn = False
        """True if a `/cancel` that is still unanswered has stopped a turn."""
        self.is_cancelled = False
        """True if the sender has cancelled the current request."""
        self.answered = 0, 0.0
        """The hash of the last text that was an answer, and when it came, in seconds of `time.monotonic`."""

    @property
    def sender(self) -> str:
        """The bare JID of the sender of all requests here."""
        return self.key[0]

    def enqueue(self, item: QueuedRequest | MailboxTask) -> None:
        """Put an item behind the others."""
        self.queue.append(item)
        self.sender_state.queued_count += 1

    def requeue(self, item: QueuedRequest | MailboxTask) -> None:
        """Put an item back at the head of the queue."""
        self.queue.appendleft(item)
        self.sender_state.queued_count += 1

    def dequeue(
        self, may_start: Callable[[QueuedRequest | MailboxTask], bool], held_rows: Set[int]
    ) -> QueuedRequest | MailboxTask | None:
        """Remove and return the first item that may start. None before a held one.

        While the first request waits for the database, only one that could not be stored starts: it is refused.
        It still counts as queued, until it has a slot.
        """
        for number, item in enumerate(self.queue):
            if item.inbox_row in held_rows:
                return None
            if may_start(item) and not (self.retry and item.stored.error is None):
                del self.queue[number]
                return item
        return None

    def enqueue_archived(self, archived: QueuedRequest, held_rows: set[int]) -> None:
        """Add a request from the archive before the held ones. If one of them is the same message, it takes this place.

        Those that the server has stored earlier are held no more: the archive, which is read in order, has nothing before them.
        """
        server_id, sent_at = archived.incoming.evidence.server_id, archived.incoming.evidence.stored_at
        held = [item for item in self.queue if isinstance(item, QueuedRequest) and item.inbox_row in held_rows]
        for item in held:
            stored_at = item.incoming.evidence.stored_at
            if stored_at is not None and sent_at is not None and stored_at < sent_at:
                held_rows.discard(item.inbox_row)
        place = next((number for number, item in enumerate(self.queue) if item.inbox_row in held_rows), len(self.queue))
        same = next((item for item in held if server_id and item.incoming.evidence.server_id == server_id), None)
        if same is not None:
            held_rows.discard(same.inbox_row)
            self.queue.remove(same)
            self.queue.insert(place, same)
            place += 1
        self.queue.insert(place, archived)
        self.sender_state.queued_count += 1

    def remove(self, item: QueuedRequest | MailboxTask) -> None:
        """Remove an item from the queue."""
        self.queue.remove(item)
        self.sender_state.queued_count -= 1

    def cancel_current(self) -> bool:
        """Stop the current turn and discard it. Return False if no turn runs."""
        if self.current is None or self.worker is None:
            return False
        self.is_cancelled = True
        if self.turn is not None:
            self.worker.cancel()
        return True

    def clear(self) -> None:
        """Empty the queue, and cancel the futures of its tasks. The requests stay in the inbox."""
        self.sender_state.queued_count -= len(self.queue)
        for item in self.queue:
            if isinstance(item, MailboxTask):
                item.future.cancel()
        self.queue.clear()


ERASING_MAILBOX: ContextVar[Mailbox | None] = ContextVar("erasing_mailbox", default=None)
"""The mailbox whose request is a command that erases, also in the tasks by which it asks several agents."""
