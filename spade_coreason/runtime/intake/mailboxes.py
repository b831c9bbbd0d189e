"""The mailboxes of one agent: order, capacity, pause and withdrawal of requests, and the workers that take them out.

A mailbox holds the requests of one sender on one thread, in order. It also holds the loaded `ActiveConversation`, and stays in
memory while that conversation is active. A request goes in by `Mailboxes.put` and is given to the handler in a worker: one task
for each mailbox takes its items one after the other, and many mailboxes are worked on at once.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol
from uuid import UUID

from ...concurrency import Semaphore
from ...domain.identifiers import NO_DIGEST
from ...domain.jid import bare_jid, jid_domain
from ...domain.messages import InboundRequest
from ...domain.quotas import Quotas
from ...domain.value import value
from ...memory import ActiveConversation
from ...storage import AgentRepository, Commit
from ..commands.parser import ParsedCommand
from ..crash_guard import CrashGuard
from .repeated_requests import InFlightRequests
from .thread_resolver import ThreadResolver

_MAX_MAILBOXES = 10_000
LARGE_CHARACTERS = 2**18
_LARGE_PAUSE_S = 0.1
"""The time from the beginning of a large request to that of the next of its sender. Each costs as much as a hundred others."""
MAX_LARGE_REQUESTS = 4
"""Number of requests of one sender with more than `LARGE_CHARACTERS` that are queued or worked on at once."""
_SHORT_CHARACTERS = 2**12
"""The turns of a conversation that are shorter together are not counted."""
_MAX_KEPT_CHARACTERS = 128 * 2**20
_MAX_KEPT_CHARACTERS_PER_SENDER = 2 * 2**20
_QUOTA_DIVISOR = 4  # one sender gets a quarter of an agent's turns at most, if nothing else is configured
_MAX_QUEUES_PER_SENDER = 10  # a sender may have as many queued requests as so many full mailboxes hold
_POLL_S = 1.0
_CANCEL_S = 2.0


@value
class QueuedRequest:
    """A received request that waits for its turn."""

    incoming: InboundRequest
    key: UUID
    inbox_row: int
    stored: Commit[bool]
    """The commit of the request in the inbox: True for a new request, False for a duplicate."""
    received_at_s: float
    """Time of arrival, in seconds of the clock `Metrics.now`."""
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

    @property
    def may_be_in_archive(self) -> bool:
        """True if the request came by itself, and earlier ones of its conversation may still be in the archive."""
        return self.incoming.channel in ("person", "spade") and not (
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


class Mailbox:
    """Queue of one conversation: the requests of one sender on one thread, run one at a time and in order."""

    __slots__ = (
        "active",
        "conversation_id",
        "current",
        "has_cancelled_turn",
        "is_assisting",
        "is_cancelled",
        "kept_characters",
        "key",
        "queue",
        "sender_state",
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
        self.sender_state.queued_count += 1

    def requeue(self, item: QueuedRequest | MailboxTask) -> None:
        """Put an item back at the head of the queue."""
        self.queue.appendleft(item)
        self.sender_state.queued_count += 1

    def dequeue(self, *, for_agent: bool, held_rows: Set[int]) -> QueuedRequest | MailboxTask | None:
        """Remove and return the first item, or the first that is not for the agent; None if there is none before a held one.

        It still counts as queued, until it has a slot.
        """
        for number, item in enumerate(self.queue):
            if held_rows and item.inbox_row in held_rows:
                return None
            if for_agent or not item.is_for_agent:
                del self.queue[number]
                return item
        return None

    def enqueue_archived(self, archived: QueuedRequest, held_rows: set[int]) -> None:
        """Add a request from the archive before the held ones. If one of them is the same message, it takes this place."""
        place = next((number for number, item in enumerate(self.queue) if item.inbox_row in held_rows), len(self.queue))
        server_id = archived.incoming.evidence.server_id
        held = [item for item in self.queue if isinstance(item, QueuedRequest) and item.inbox_row in held_rows]
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
        if self.is_assisting:
            self.worker.cancel()
        return True

    def clear(self) -> None:
        """Empty the queue, and cancel the futures of its tasks. The requests stay in the inbox."""
        self.sender_state.queued_count -= len(self.queue)
        for item in self.queue:
            if isinstance(item, MailboxTask):
                item.future.cancel()
        self.queue.clear()


class RequestHandler(Protocol):
    """The work on requests: `handle` answers one in the worker of its mailbox, and raises nothing but cancellation."""

    async def handle(self, mailbox: Mailbox, queued: QueuedRequest) -> None:
        """Answer a request."""


class Mailboxes:
    """The mailboxes of one agent, by sender and thread, and by conversation id once that is known.

    `max_turns` of them are worked on at once; one sender gets a share only, so that many threads of theirs leave room for
    others. At most `max_queued` requests of one conversation are queued, and ten times as many of one sender.
    `remembered_turns` is the number of turns whose thread is known without the database.
    """

    def __init__(
        self,
        repository: AgentRepository,
        max_turns: int,
        max_queued: int,
        remembered_turns: int,
        crash_guard: CrashGuard,
        quotas: Quotas | None = None,
    ) -> None:
        self._inbox = repository.inbox
        self.max_queued = max_queued
        """The largest number of queued requests of one conversation."""
        self.max_queued_per_sender = max_queued * _MAX_QUEUES_PER_SENDER
        self._crash_guard = crash_guard
        self._quotas = quotas or Quotas()
        self._max_turns = min(max_turns, self._quotas.total.turns or max_turns)
        self._slots = Semaphore(self._max_turns)
        self._slots_by_holder: weakref.WeakValueDictionary[tuple[str, str], Semaphore] = weakref.WeakValueDictionary()
        """The slots of people, rooms and domains, by kind and holder."""
        self._mailboxes: dict[tuple[str, str | None], Mailbox] = {}
        self._by_id: dict[str, Mailbox] = {}
        self._kept_characters = 0
        self._senders: weakref.WeakValueDictionary[str, SenderState] = weakref.WeakValueDictionary()
        self._remembered_turns = remembered_turns
        self._recent_threads: OrderedDict[int, tuple[str, str | None]] = OrderedDict()
        """The sender and the thread of the latest turns, by the integers of their keys."""
        self._thread_resolver = ThreadResolver(repository, self._recent_threads)
        self._unresolved: dict[str, deque[QueuedRequest]] = {}
        """Requests by sender that wait until the thread of the first of them is found; the rest wait for their order."""
        self._resolver_tasks: dict[str, asyncio.Task[None]] = {}
        self._retries: dict[int, tuple[asyncio.TimerHandle, str, QueuedRequest]] = {}
        """The requests that `put_later` has taken, by row of the inbox, each with its timer and its sender."""
        self._unopened: list[tuple[str, QueuedRequest]] = []
        """The requests, with their senders, that run after the next start only."""
        self.program_requests = InFlightRequests()
        """The requests of programs that are here, to which a repeated one is attached."""
        self.is_paused = False
        """True while no item for the agent is started."""
        self._held_rows: set[int] = set()
        """The inbox rows of requests that came by themselves while the archive is read."""
        self._hold_timer: asyncio.TimerHandle | None = None
        self._is_archive_read = False
        """True if the hold ends when the threads of all requests are found."""
        self._is_draining = False
        self.is_cancelling_turns = False
        """True while a stop cancels the running turns. Their requests run again after the next start."""

    def __iter__(self) -> Iterator[Mailbox]:
        return iter(list(self._mailboxes.values()))

    # Putting in and taking out

    def start(self, handler: RequestHandler) -> None:
        """Begin to work on what is put in. Call it in the event loop."""
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._is_draining = self.is_cancelling_turns = False

    def resolve_thread(self, incoming: InboundRequest, sender: str) -> InboundRequest:
        """Return a request of a sender (a bare JID) with the thread of what it replies to, if that is known by now."""
        thread = self._thread_resolver.find_recent(incoming, sender)
        return incoming if thread is None else replace(incoming, thread=thread)

    def put(self, queued: QueuedRequest, sender: str) -> None:
        """Queue a request of a sender (a bare JID) behind their earlier ones, and start the worker of its mailbox."""
        if queued.digest:
            self.program_requests.add(queued.key, queued.incoming, queued.digest, queued.stored)
        if sender in self._unresolved:
            self._unresolved[sender].append(queued)
        elif queued.incoming.thread is None and self._thread_resolver.needs_search(queued.incoming):
            self._unresolved[sender] = deque([queued])
            self._resolver_tasks[sender] = self._loop.create_task(self._resolve_threads(sender))
        else:
            self._enqueue(queued, sender)

    def put_later(self, queued: QueuedRequest, sender: str, delay_s: float) -> None:
        """Queue a request again after a delay, unless the mailboxes are drained before."""
        if self._is_draining:
            return

        def put() -> None:
            del self._retries[queued.inbox_row]
            self._enqueue(queued, sender)

        self._retries[queued.inbox_row] = self._loop.call_later(delay_s, put), sender, queued

    def put_task(self, mailbox: Mailbox, task: MailboxTask) -> None:
        """Queue a task behind the requests of a mailbox, and start its worker."""
        mailbox.enqueue(task)
        self._start_worker(mailbox)

    def take_unopened(self) -> list[tuple[str, QueuedRequest]]:
        """Remove and return what `put_unopened` has kept, with the senders."""
        unopened, self._unopened = self._unopened, []
        return unopened

    def put_unopened(self, queued: QueuedRequest, sender: str) -> None:
        """Keep a request of a sender (a bare JID) that comes before the start, or after `drain`."""
        self._unopened.append((sender, queued))

    def withdraw(
        self,
        sender: str,
        message_ids: Iterable[str],
        author: str | None = "",
        *,
        before_row: float = math.inf,
        is_late: bool = False,
    ) -> InboundRequest | None:
        """Withdraw the latest unanswered version of a message: remove it from its queue, or stop its turn, and close it.

        The message is one of a sender (a bare JID) and an author (`InboundRequest.author`; None for any), with one of these
        ids. `before_row` limits it to requests with a lower row in the inbox, and `is_late` to messages that bear
        such an id themselves and were sent while the agent was away. Return the request, or None if there is none.
        """
        ids = set(message_ids)
        versions = [
            queued
            for queued in self._unanswered(sender)
            if not ids.isdisjoint(queued.incoming.message_ids)
            and (author is None or author == queued.incoming.author)
            and queued.inbox_row < before_row
            and (not is_late or _is_late(queued.incoming, ids))
        ]
        if not versions:
            return None
        latest = max(versions, key=lambda queued: (not queued.may_be_duplicate, queued.inbox_row))
        for queued in versions:
            if queued.key == latest.key:  # itself, or a repetition
                self._withdraw(queued, sender)
        return latest.incoming

    def _unanswered(self, sender: str) -> Iterator[QueuedRequest]:
        """Iterate over the requests of a sender (a bare JID) that wait or run and are not cancelled."""
        for mailbox in self.of_sender(sender):
            if mailbox.current is not None and not mailbox.is_cancelled:
                yield mailbox.current
            for item in mailbox.queue:
                if isinstance(item, QueuedRequest):
                    yield item
        yield from self._unresolved.get(sender, ())
        for retry_sender, queued in (*(retry[1:] for retry in self._retries.values()), *self._unopened):
            if retry_sender == sender:
                yield queued

    def _withdraw(self, queued: QueuedRequest, sender: str) -> None:
        for mailbox in self.of_sender(sender):
            if mailbox.current is queued:
                mailbox.cancel_current()
                self._inbox.close(queued.inbox_row)  # now: a stop may come before the turn has ended
                return
            if queued in mailbox.queue:
                self.drop(mailbox, queued)
                return
        if queued in (unresolved := self._unresolved.get(sender, deque())):
            unresolved.remove(queued)
        elif queued.inbox_row in self._retries:
            self._retries.pop(queued.inbox_row)[0].cancel()
        else:
            self._unopened.remove((sender, queued))
        self._close_request(queued)

    def drop(self, mailbox: Mailbox, item: QueuedRequest | MailboxTask) -> None:
        """Remove an item from the queue of a mailbox for good: close the request, or cancel the future of the task."""
        mailbox.remove(item)
        if isinstance(item, MailboxTask):
            item.future.cancel()
        else:
            self._close_request(item)

    def drop_all(self, mailbox: Mailbox) -> None:
        """Remove all items from the queue of a mailbox for good."""
        for item in list(mailbox.queue):
            self.drop(mailbox, item)

    def _close_request(self, queued: QueuedRequest) -> None:
        self._inbox.close(queued.inbox_row)
        self._end_program_request(queued)

    def _end_program_request(self, queued: QueuedRequest) -> None:
        """Forget a program's request, and close its repetitions, which had the same reply."""
        repeated_rows = self.program_requests.remove(queued.key, queued.stored)
        if not self.is_cancelling_turns:  # then it runs again after the next start, and answers them all
            for inbox_row in repeated_rows:
                self._inbox.close(inbox_row)

    async def _resolve_threads(self, sender: str) -> None:
        """Find the threads of the waiting requests of a sender, and enqueue each in its order."""
        unresolved = self._unresolved[sender]
        try:
            while unresolved:
                queued = unresolved[0]
                incoming = queued.incoming
                if self._thread_resolver.needs_search(incoming):
                    incoming = replace(incoming, thread=await self._thread_resolver.search(incoming, sender))
                if unresolved and unresolved[0] is queued:  # else it was withdrawn during the search
                    unresolved.popleft()
                    self._enqueue(replace(queued, incoming=incoming), sender)
        finally:
            del self._unresolved[sender], self._resolver_tasks[sender]
            if self._is_archive_read and not self._resolver_tasks:
                self.release()

    def _enqueue(self, queued: QueuedRequest, sender: str) -> None:
        self._recent_threads[queued.key.int] = sender, queued.incoming.thread
        if len(self._recent_threads) > self._remembered_turns:
            self._recent_threads.popitem(last=False)
        mailbox = self.get_or_create(sender, queued.incoming.thread)
        if queued.is_archived and self._held_rows:
            mailbox.enqueue_archived(queued, self._held_rows)
        else:
            mailbox.enqueue(queued)
            if self._hold_timer is not None and queued.may_be_in_archive:
                self._held_rows.add(queued.inbox_row)
                is_large = len(queued.incoming.content) > LARGE_CHARACTERS
                if 2 * self.count_queued(sender) >= self.max_queued or (is_large and self.is_full_for_large(sender)):
                    self.release()  # before further ones are refused, though the agent is free
        self._start_worker(mailbox)

    # Capacity

    def is_full(self, sender: str, thread: str | None) -> bool:
        """Return True if no further request of a sender (a bare JID) may be queued on a thread."""
        queued_count = self.count_queued(sender)
        return queued_count >= self.max_queued and (
            queued_count >= self.max_queued_per_sender or self._is_mailbox_full(sender, thread)
        )

    def is_full_for_large(self, sender: str) -> bool:
        """Return True if no further request with more than `LARGE_CHARACTERS` may be queued for a sender (a bare JID)."""
        large_count = sum(
            isinstance(item, QueuedRequest) and len(item.incoming.content) > LARGE_CHARACTERS
            for mailbox in self.of_sender(sender)
            for item in (mailbox.current, *mailbox.queue)
        )
        return large_count >= MAX_LARGE_REQUESTS

    async def wait_for_capacity(self, sender: str, thread: str | None, *, is_large: bool = False) -> None:
        """Wait until the queues have room for a request of a sender (a bare JID) on a thread."""
        while self.is_full(sender, thread) or (is_large and self.is_full_for_large(sender)):
            workers = [mailbox.worker for mailbox in self.of_sender(sender) if mailbox.worker is not None]
            if workers:
                await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
            elif self._held_rows:
                self.release()  # they fill the queues, and wait for the archive, which waits for room
            else:
                await asyncio.sleep(_POLL_S)  # the agent is paused; nothing here is called when the pause ends

    def count_queued(self, sender: str) -> int:
        """Count the queued items of a sender (a bare JID), over all threads."""
        state = self._senders.get(sender)
        return (0 if state is None else state.queued_count) + len(self._unresolved.get(sender, ()))

    def _is_mailbox_full(self, sender: str, thread: str | None) -> bool:
        mailbox = self._mailboxes.get((sender, thread))
        return mailbox is not None and len(mailbox.queue) >= self.max_queued

    # Pausing, waiting and stopping

    def pause(self) -> None:
        """Start no further items for the agent, until `resume`. Running turns finish; commands of the platform still run."""
        self.is_paused = True

    def resume(self) -> None:
        """End a pause: start what waits."""
        self.is_paused = False
        self._start_workers()

    def _start_workers(self) -> None:
        for mailbox in self:
            if mailbox.queue:
                self._start_worker(mailbox)

    def hold(self, at_most_s: float) -> None:
        """Start none of the requests that come by themselves until `release`, so that older ones of the archive go first.

        Those that wait already do not wait longer, however many sessions follow each other.
        """
        self._is_archive_read = False
        if self._held_rows:
            return
        self._stop_hold_timer()
        self._hold_timer = asyncio.get_running_loop().call_later(at_most_s, self.release)

    def release(self) -> None:
        """Start what `hold` has held, in the order of its arrival."""
        self._is_archive_read = False
        self._stop_hold_timer()
        if self._held_rows:
            self._held_rows.clear()
            self._start_workers()

    def release_when_resolved(self) -> None:
        """Call `release` once the threads of all requests are found: those of the archive may wait for that too."""
        self._is_archive_read = True
        if not self._resolver_tasks:
            self.release()

    def find_held(self, mailbox: Mailbox) -> QueuedRequest | MailboxTask | None:
        """Return the first request for the agent whose turn would run without `hold`, or None."""
        return next((item for item in mailbox.queue if item.inbox_row in self._held_rows and item.is_for_agent), None)

    def cancel(self, mailbox: Mailbox) -> bool:
        """Stop the current turn of a mailbox, or drop the request whose turn waits for the archive. False if there is none."""
        if mailbox.cancel_current():
            return True
        if (held := self.find_held(mailbox)) is not None:
            self.drop(mailbox, held)
        return held is not None

    def _stop_hold_timer(self) -> None:
        if self._hold_timer is not None:
            self._hold_timer.cancel()
            self._hold_timer = None

    @property
    def busy_count(self) -> int:
        """The number of conversations with a turn that runs or waits."""
        return sum(mailbox.worker is not None for mailbox in self._mailboxes.values()) + len(self._unresolved)

    async def wait_until_idle(self, *mailbox_key: str | None) -> None:
        """Wait until no worker runs: of any mailbox, or of that with `mailbox_key`, a sender (a bare JID) and a thread."""
        while self._resolver_tasks:
            await asyncio.wait(self._resolver_tasks.values())
        while workers := [
            mailbox.worker
            for mailbox in self._mailboxes.values()
            if mailbox.worker is not None and mailbox_key in ((), mailbox.key)
        ]:
            await asyncio.wait(workers)

    async def drain(self, grace_s: float) -> bool:
        """Empty all mailboxes and wait for the running turns. After `grace_s`, cancel those that still run and return False."""
        self._is_draining = True
        self._stop_hold_timer()
        self._held_rows.clear()
        for sender, unresolved in self._unresolved.items():
            self._unopened += [(sender, queued) for queued in unresolved]
            unresolved.clear()  # the inbox has them
        for timer, sender, queued in self._retries.values():
            timer.cancel()
            self._unopened.append((sender, queued))
        self._retries.clear()
        for mailbox in self:
            self._unopened += [(mailbox.sender, item) for item in mailbox.queue if isinstance(item, QueuedRequest)]
            mailbox.clear()
        workers = [mailbox.worker for mailbox in self._mailboxes.values() if mailbox.worker is not None]
        if not workers:
            return True
        _, late = await asyncio.wait(workers, timeout=grace_s)
        self.is_cancelling_turns = True
        for worker in late:
            worker.cancel()
        if late:
            await asyncio.wait(late, timeout=_CANCEL_S)
        return not late

    def cancel_workers(self) -> list[str]:
        """Cancel the workers that still run after `drain`. Return their senders (bare JIDs)."""
        running = [mailbox for mailbox in self._mailboxes.values() if mailbox.worker is not None]
        for mailbox in running:
            if mailbox.worker is not None:
                mailbox.worker.cancel()
        return [mailbox.sender for mailbox in running]

    # Workers

    def _start_worker(self, mailbox: Mailbox) -> None:
        if mailbox.worker is None:
            # With a name, because asyncio formats a default one for each task.
            mailbox.worker = self._loop.create_task(self._run_worker(mailbox), name=mailbox.sender)

    async def _run_worker(self, mailbox: Mailbox) -> None:
        suspects = self._crash_guard.suspects
        try:
            while (item := mailbox.dequeue(for_agent=not self.is_paused, held_rows=self._held_rows)) is not None:
                mailbox.is_cancelled = False
                mailbox.current = item if isinstance(item, QueuedRequest) else None
                if suspects and isinstance(item, QueuedRequest):
                    async with self._crash_guard.permit(item.inbox_row):
                        await self._run_item(mailbox, item)
                else:
                    await self._run_item(mailbox, item)
        finally:
            mailbox.worker = mailbox.current = None
            self.evict_if_idle(mailbox)

    async def _run_item(self, mailbox: Mailbox, item: QueuedRequest | MailboxTask) -> None:
        slots = mailbox.sender_state.slots
        if isinstance(item, QueuedRequest):
            incoming = item.incoming
            if incoming.context.root_sender or incoming.channel == "room":
                slots = self._slots_of(incoming.root_owner, is_room=incoming.channel == "room")
        is_waiting = True
        try:
            if isinstance(item, QueuedRequest) and len(item.incoming.content) > LARGE_CHARACTERS:
                await self._pace_large(item.incoming.root_owner)
            async with slots:
                is_waiting = False
                mailbox.sender_state.queued_count -= 1
                if self._is_draining:  # since it began to wait for its slot; the inbox has the request
                    if isinstance(item, MailboxTask):
                        item.future.cancel()
                    elif not mailbox.is_cancelled:
                        self.put_unopened(item, mailbox.sender)
                elif self.is_paused and item.is_for_agent and not mailbox.is_cancelled:
                    mailbox.requeue(item)  # it was paused while this one waited for its slot
                elif mailbox.is_cancelled and isinstance(item, QueuedRequest) and item.incoming.channel != "program":
                    self._close_request(item)  # it was cancelled while it waited for its slot
                elif isinstance(item, QueuedRequest):
                    await self._handler.handle(mailbox, item)
                    if item.digest and item.inbox_row not in self._retries:
                        self._end_program_request(item)
                else:
                    await item.run()
        finally:
            if is_waiting:
                mailbox.sender_state.queued_count -= 1

    def cancel_turns(self, sender: str) -> int:
        """Cancel the running turns of a sender (a bare JID) in all conversations. Return their number."""
        answering = [
            mailbox for mailbox in self.of_sender(sender) if mailbox.current is not None and mailbox.current.is_for_agent
        ]
        return sum(mailbox.cancel_current() for mailbox in answering)

    # Finding

    def get_or_create(self, sender: str, thread: str | None) -> Mailbox:
        """Return the mailbox of a sender (a bare JID) on a thread; create it if there is none."""
        key = sender, thread
        mailbox = self._mailboxes.get(key)
        if mailbox is None:
            mailbox = self._mailboxes[key] = Mailbox(sender, thread, self._sender_state_of(sender))
            mailbox.sender_state.mailboxes[thread] = mailbox
        return mailbox

    def get(self, sender: str, thread: str | None) -> Mailbox | None:
        """Return the mailbox of a sender (a bare JID) on a thread, or None."""
        return self._mailboxes.get((sender, thread))

    def of_sender(self, sender: str) -> list[Mailbox]:
        """Return all mailboxes of a sender (a bare JID)."""
        state = self._senders.get(sender)
        return [] if state is None else list(state.mailboxes.values())

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

        An active conversation stays in memory while the agent has fewer than 10,000 mailboxes. The turns of one sender may have
        2 Mi characters in all, and those of all senders 128 Mi.
        """
        active = mailbox.active
        if mailbox.queue or mailbox.worker is not None:
            return
        if (
            active is not None
            and active.record.status.is_active
            and len(self._mailboxes) < _MAX_MAILBOXES
            and self._keep(mailbox, active)
        ):
            return
        mailbox.sender_state.kept_characters -= mailbox.kept_characters
        self._kept_characters -= mailbox.kept_characters
        mailbox.kept_characters = 0
        self._mailboxes.pop(mailbox.key, None)
        mailbox.sender_state.mailboxes.pop(mailbox.key[1], None)
        if mailbox.conversation_id is not None and self._by_id.get(mailbox.conversation_id) is mailbox:
            del self._by_id[mailbox.conversation_id]

    def _keep(self, mailbox: Mailbox, active: ActiveConversation) -> bool:
        """Count the turns of an idle conversation, which stay in memory. Return False if they are too much."""
        characters = active.turns.characters
        if characters <= _SHORT_CHARACTERS and not mailbox.kept_characters:
            return True
        state, added = mailbox.sender_state, characters - mailbox.kept_characters
        if added > 0 and (
            state.kept_characters + added > _MAX_KEPT_CHARACTERS_PER_SENDER
            or self._kept_characters + added > _MAX_KEPT_CHARACTERS
        ):
            return False
        mailbox.kept_characters += added
        state.kept_characters += added
        self._kept_characters += added
        return True

    def _sender_state_of(self, sender: str) -> SenderState:
        state = self._senders.get(sender)
        if state is None:
            state = self._senders[sender] = SenderState(self._slots_of(sender, is_room=False))
        return state

    def _slots_of(self, owner: str, *, is_room: bool) -> Semaphore:
        """Return the slots for the turns of a person or a room (a bare JID)."""
        if "/" in owner:  # an occupant who writes privately shares the slots of the room
            owner, is_room = bare_jid(owner), True
        key = ("room" if is_room else "person"), owner
        slots = self._slots_by_holder.get(key)
        if slots is None:
            role, quota = ("", self._quotas.room) if is_room else self._quotas.role_of(owner)
            limit = max(1, self._max_turns // _QUOTA_DIVISOR) if quota.turns is None else quota.turns or self._max_turns
            parent = self._slots if role == "operator" else self._slots_of_domain(jid_domain(owner))
            slots = self._slots_by_holder[key] = Semaphore(min(limit, self._max_turns), parent)
        return slots

    async def _pace_large(self, owner: str) -> None:
        """Wait until the next large request of a sender may begin, which is some time after the one before it."""
        key = "large", owner
        slot = self._slots_by_holder.get(key)
        if slot is None:
            slot = self._slots_by_holder[key] = Semaphore(1)
        await slot.acquire()
        self._loop.call_later(_LARGE_PAUSE_S, slot.release)

    def _slots_of_domain(self, domain: str) -> Semaphore:
        limit = self._quotas.domain.turns
        if not limit:
            return self._slots
        slots = self._slots_by_holder.get(("domain", domain))
        if slots is None:
            slots = self._slots_by_holder["domain", domain] = Semaphore(limit, self._slots)
        return slots


def _is_late(incoming: InboundRequest, ids: set[str]) -> bool:
    return "delayed_since" in incoming.metadata and not ids.isdisjoint((incoming.stanza_id, incoming.origin_id))
