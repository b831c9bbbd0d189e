"""The mailboxes of one agent: order, capacity, pause and withdrawal of requests.

A mailbox holds the requests of one sender on one thread, in order. It also holds the loaded `ActiveConversation`, and stays in
memory while that conversation is active. A request goes in by `Mailboxes.put`, which starts a worker (`turns.worker`): one task
for each mailbox takes its items one after the other, and many mailboxes are worked on at once.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import replace
from typing import Any

from ...domain.messages import SCHEDULE, InboundRequest
from ...storage import AgentRepository
from .archive_hold import ArchiveHold
from .conversation_cache import ConversationCache
from .mailbox import Mailbox, MailboxTask, QueuedRequest, SenderState
from .program_requests import InFlightRequests
from .quota_limit import QuotaLimit
from .thread_resolver import ThreadResolver

LARGE_CHARACTERS = 2**18
MAX_LARGE_REQUESTS = 4
"""Number of requests of one sender with more than `LARGE_CHARACTERS` that are queued or worked on at once."""
_MAX_QUEUES_PER_SENDER = 10  # a sender may have as many queued requests as so many full mailboxes hold
_POLL_S = 1.0
_CANCEL_S = 2.0


class Mailboxes:
    """The mailboxes of one agent, by sender and thread, and by conversation id once that is known.

    `quota_limit` has the slots for turns: one sender gets a share only, so that many threads of theirs leave room for others.
    At most `max_queued` requests of one conversation are queued, and ten times as many of one sender.
    `remembered_turns` is the number of turns whose thread is known without the database.
    """

    def __init__(
        self,
        repository: AgentRepository,
        quota_limit: QuotaLimit,
        max_queued: int,
        remembered_turns: int,
    ) -> None:
        self._repository, self._inbox = repository, repository.inbox
        self.max_queued = max_queued
        """The largest number of queued requests of one conversation."""
        self.max_queued_per_sender = max_queued * _MAX_QUEUES_PER_SENDER
        self._slots_of = quota_limit.slots_of
        self._mailboxes: dict[tuple[str, str | None], Mailbox] = {}
        self.conversations = ConversationCache()
        """The conversations in memory."""
        self._senders: weakref.WeakValueDictionary[str, SenderState] = weakref.WeakValueDictionary()
        self._remembered_turns = remembered_turns
        self._recent_threads: OrderedDict[int, tuple[str, str | None]] = OrderedDict()
        """The sender and the thread of the latest turns, by the integers of their keys."""
        self._thread_resolver = ThreadResolver(repository, self._recent_threads)
        self._unresolved: dict[str, deque[QueuedRequest]] = {}
        """Requests by sender that wait until the thread of the first of them is found; the rest wait for their order."""
        self._resolver_tasks: dict[str, asyncio.Task[None]] = {}
        self._unopened: list[tuple[str, QueuedRequest]] = []
        """The requests, with their senders, that run after the next start only."""
        self.program_requests = InFlightRequests()
        """The requests of programs that are here, to which a repeated one is attached."""
        self.is_paused = False
        """True while an operator has paused the agent."""
        self._holds = 0
        self.starts_none = False
        """True while the agent is paused or held for the end of the platform. `may_start` tells what is started then."""
        self.archive_hold = ArchiveHold(self._start_workers)
        """The requests that wait while the archive is read."""
        self.is_accepting = False
        """True from `start` until `drain`. At other times what is put in waits for the next start."""
        self.is_cancelling_turns = False
        """True while a stop cancels the running turns. Their requests run again after the next start."""
        self.cut_off_rows: set[int] = set()
        """The rows in the inbox of the requests whose turns a stop has cancelled."""

    def __iter__(self) -> Iterator[Mailbox]:
        return iter(list(self._mailboxes.values()))

    # Putting in and taking out

    def start(self, work: Callable[[Mailbox], Coroutine[Any, Any, None]]) -> None:
        """Begin to work on what is put in: `work` empties a mailbox. Call it in the event loop."""
        self._work = work
        self._loop = asyncio.get_running_loop()
        self.is_accepting, self.is_cancelling_turns = True, False
        self.cut_off_rows.clear()

    def resolve_thread(self, incoming: InboundRequest, sender: str) -> InboundRequest:
        """Return a request of a sender (a bare JID) with the thread of what it replies to, if that is known by now."""
        thread = self._thread_resolver.find_recent(incoming, sender)
        return incoming if thread is None else replace(incoming, thread=thread)

    def put(self, queued: QueuedRequest, sender: str) -> None:
        """Queue a request of a sender (a bare JID) behind their earlier ones, and start the worker of its mailbox.

        Before the start and after `drain` it is kept for the next start.
        """
        if not self.is_accepting:
            self.put_unopened(queued, sender)
            return
        if queued.digest:
            self.program_requests.add(queued.key, queued.incoming, queued.digest, queued.stored)
        if sender in self._unresolved:
            self._unresolved[sender].append(queued)
        elif queued.incoming.thread is None and self._thread_resolver.needs_search(queued.incoming):
            self._unresolved[sender] = deque([queued])
            self._resolver_tasks[sender] = self._loop.create_task(self._resolve_threads(sender))
        else:
            self._enqueue(queued, sender)

    def put_back(self, mailbox: Mailbox, queued: QueuedRequest, delay_s: float) -> None:
        """Put a request at the head of its mailbox again. The mailbox waits until the database takes writes.

        `delay_s` is the wait after a failure of this request alone. Requests behind it that cannot be stored do not wait.
        After `drain` nothing is put back: the inbox has the request.
        """
        if not self.is_accepting:
            return

        def retry() -> None:
            mailbox.retry = None
            if self._repository.database.writes.is_failing and mailbox.queue:
                mailbox.retry = self._loop.call_later(_POLL_S, retry)
            elif self.get(*mailbox.key) is mailbox:
                self._start_worker(mailbox)

        mailbox.retry = self._loop.call_later(_POLL_S if self._repository.database.writes.is_failing else delay_s, retry)
        for item in mailbox.queue:
            self._watch(mailbox, item)
        mailbox.requeue(queued)

    def _watch(self, mailbox: Mailbox, item: QueuedRequest | MailboxTask) -> None:
        """Start the worker of a mailbox that waits if a request there cannot be stored: its sender is told."""
        item.stored.on_failed(lambda _: self._start_worker(mailbox))

    def put_task(self, mailbox: Mailbox, task: MailboxTask) -> None:
        """Queue a task behind the requests of a mailbox, and start its worker."""
        mailbox.queue.append(task)
        mailbox.sender_state.queued_count += 1
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

    def has_due(self, sender: str, schedule: str) -> bool:
        """Return True if a request of a schedule of a sender (a bare JID) waits for its turn."""
        running = [mailbox.current for mailbox in self.of_sender(sender)]
        return any(
            queued.incoming.metadata.get(SCHEDULE) == schedule and queued.stored.error is None and queued not in running
            for queued in self._unanswered(sender)
        )

    def withdraw_replaced(self, correction: QueuedRequest, is_new: bool) -> None:
        """Withdraw the version that a stored correction replaces.

        A correction that is not new may have come live, before the archive delivered the message that it corrects.
        """
        incoming = correction.incoming
        self.withdraw(incoming.owner, incoming.replaces, incoming.author, before_row=correction.inbox_row, is_late=not is_new)

    def _unanswered(self, sender: str) -> Iterator[QueuedRequest]:
        """Iterate over the requests of a sender (a bare JID) that wait or run and are not cancelled."""
        for mailbox in self.of_sender(sender):
            if mailbox.current is not None and not mailbox.is_cancelled:
                yield mailbox.current
            for item in mailbox.queue:
                if isinstance(item, QueuedRequest):
                    yield item
        yield from self._unresolved.get(sender, ())
        for found, queued in self._unopened:
            if found == sender:
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
        else:
            self._unopened.remove((sender, queued))
        self.close_request(queued)

    def drop_unqueued(self, sender: str, *threads: str | None) -> None:
        """Remove the requests of a sender for good that are in no mailbox yet: of these threads, or of all without any."""
        elsewhere = [queued for found, queued in self._unopened if found == sender]
        for queued in (*self._unresolved.get(sender, ()), *elsewhere):
            if not threads or queued.incoming.thread in threads:
                self._withdraw(queued, sender)

    def drop_matching(self, is_dropped: Callable[[InboundRequest], bool]) -> list[QueuedRequest]:
        """Remove the requests that wait and that a function chooses, for good. Return them."""
        everywhere = [(mailbox.sender, item) for mailbox in self for item in mailbox.queue if isinstance(item, QueuedRequest)]
        everywhere += [(sender, queued) for sender, unresolved in self._unresolved.items() for queued in unresolved]
        everywhere += self._unopened
        dropped = [(sender, queued) for sender, queued in everywhere if is_dropped(queued.incoming)]
        for sender, queued in dropped:
            self._withdraw(queued, sender)
        return [queued for _, queued in dropped]

    def drop(self, mailbox: Mailbox, item: QueuedRequest | MailboxTask) -> None:
        """Remove an item from the queue of a mailbox for good: close the request, or cancel the future of the task."""
        mailbox.remove(item)
        if isinstance(item, MailboxTask):
            item.future.cancel()
        else:
            self.close_request(item)

    def drop_all(self, mailbox: Mailbox) -> None:
        """Remove all items from the queue of a mailbox for good."""
        for item in list(mailbox.queue):
            self.drop(mailbox, item)

    def close_request(self, queued: QueuedRequest) -> None:
        """Close a request that gets no turn."""
        self._inbox.close(queued.inbox_row)
        self.end_program_request(queued)

    def end_program_request(self, queued: QueuedRequest) -> None:
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
            if self.archive_hold.is_archive_read and not self._resolver_tasks:
                self.archive_hold.release()

    def _enqueue(self, queued: QueuedRequest, sender: str) -> None:
        self._recent_threads[queued.key.int] = sender, queued.incoming.thread
        if len(self._recent_threads) > self._remembered_turns:
            self._recent_threads.popitem(last=False)
        mailbox = self.get_or_create(sender, queued.incoming.thread)
        if queued.is_archived and self.archive_hold.rows:
            mailbox.enqueue_archived(queued, self.archive_hold.rows)
        else:
            mailbox.queue.append(queued)
            mailbox.sender_state.queued_count += 1
            if mailbox.retry is not None:
                self._watch(mailbox, queued)
            if self.archive_hold.timer is not None and self.archive_hold.add(queued):
                is_large = len(queued.incoming.content) > LARGE_CHARACTERS
                if 2 * self.count_queued(sender) >= self.max_queued or (is_large and self.is_full_for_large(sender)):
                    self.archive_hold.release()  # before further ones are refused, though the agent is free
        self._start_worker(mailbox)

    def _start_worker(self, mailbox: Mailbox) -> None:
        if mailbox.worker is None:
            # With a name, because asyncio formats a default one for each task.
            mailbox.worker = self._loop.create_task(self._work(mailbox), name=mailbox.key[0])

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
            elif self.archive_hold.rows:
                self.archive_hold.release()  # they fill the queues, and wait for the archive, which waits for room
            else:
                await asyncio.sleep(_POLL_S)  # the agent is paused; nothing here is called when the pause ends

    def count_queued(self, sender: str) -> int:
        """Count the queued items of a sender (a bare JID), over all threads."""
        state = self._senders.get(sender)
        return (0 if state is None else state.queued_count) + len(self._unresolved.get(sender, ()))

    @property
    def waiting_count(self) -> int:
        """The number of requests that wait for their turn. Other threads may read it."""
        queued = sum(isinstance(item, QueuedRequest) for mailbox in self for item in list(mailbox.queue))
        return queued + sum(map(len, list(self._unresolved.values()))) + len(self._unopened)

    def _is_mailbox_full(self, sender: str, thread: str | None) -> bool:
        mailbox = self._mailboxes.get((sender, thread))
        return mailbox is not None and len(mailbox.queue) >= self.max_queued

    # Pausing, waiting and stopping

    def pause(self) -> None:
        """Start no further items for the agent, until `resume`. Running turns finish; commands of the platform still run."""
        self.is_paused = self.starts_none = True

    def resume(self) -> None:
        """End a pause: start what waits, unless it is held."""
        self.is_paused = False
        self._start_unless_held()

    def may_start(self, item: QueuedRequest | MailboxTask) -> bool:
        """Return False for an item for the agent while it is paused or held.

        A hold lets through what another agent has passed on: a turn that has to finish may wait for its answer.
        """
        if not (self.starts_none and item.is_for_agent):
            return True
        return not self.is_paused and isinstance(item, QueuedRequest) and item.incoming.hops > 0

    def hold(self) -> None:
        """Start no further requests of people, until `release` was called as often. It is no pause: they are not told."""
        self._holds += 1
        self.starts_none = True

    def release(self) -> None:
        """End a hold: start what waits, unless it is held or paused otherwise."""
        self._holds -= 1
        self._start_unless_held()

    def _start_unless_held(self) -> None:
        self.starts_none = self.is_paused or self._holds > 0
        if not self.starts_none:
            self._start_workers()

    def _start_workers(self) -> None:
        for mailbox in self:
            if mailbox.queue:
                self._start_worker(mailbox)

    def release_when_resolved(self) -> None:
        """End the hold once the threads of all requests are found: those of the archive may wait for that too."""
        self.archive_hold.is_archive_read = True
        if not self._resolver_tasks:
            self.archive_hold.release()

    def cancel(self, mailbox: Mailbox) -> bool:
        """Stop the current turn of a mailbox, or drop the request whose turn is held back. False if there is none."""
        if mailbox.cancel_current():
            return True
        if (held := self.archive_hold.find(mailbox)) is not None:
            self.drop(mailbox, held)
        return held is not None

    @property
    def busy_count(self) -> int:
        """The number of conversations with a turn that runs or waits. Other threads may read it."""
        return sum(mailbox.worker is not None for mailbox in self) + len(self._unresolved)

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
        self.is_accepting = False
        self.archive_hold.drop()
        for sender, unresolved in self._unresolved.items():
            self._unopened += [(sender, queued) for queued in unresolved]
            unresolved.clear()  # the inbox has them
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

    def evict_if_idle(self, mailbox: Mailbox) -> None:
        """Remove a mailbox without work, unless its conversation stays in memory."""
        if mailbox.queue or mailbox.worker is not None or self.conversations.keep(mailbox, len(self._mailboxes)):
            return
        self.conversations.remove(mailbox)
        self._mailboxes.pop(mailbox.key, None)
        mailbox.sender_state.mailboxes.pop(mailbox.key[1], None)

    def _sender_state_of(self, sender: str) -> SenderState:
        state = self._senders.get(sender)
        if state is None:
            state = self._senders[sender] = SenderState(self._slots_of(sender, is_room=False))
        return state


def _is_late(incoming: InboundRequest, ids: set[str]) -> bool:
    return "delayed_since" in incoming.metadata and not ids.isdisjoint((incoming.stanza_id, incoming.origin_id))
