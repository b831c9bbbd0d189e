"""The mailboxes of one agent: the one index of its requests, from their arrival to the end of their turns.

A mailbox holds the requests of one sender on one thread, in order. It also holds the loaded `ActiveConversation`, and stays in
memory while that conversation is active. A request goes in by `Mailboxes.put`, which starts a worker (`workers`): one task
for each mailbox takes its items one after the other, and many mailboxes are worked on at once.

Where a request is tells its state: in the queue of its mailbox it waits; as `handled` its worker has taken it, and as `current`
its turn runs. Before the start and after `drain` no worker takes it. A request that replies to a message whose thread only the
database knows waits in a mailbox of its sender that has no conversation, with all that follow, until the thread is found.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

from ...concurrency import Semaphore
from ...domain.identifiers import recover_thread
from ...domain.messages import InboundRequest
from ...exceptions import StoreError
from ...storage import SPARE_SLOT, AgentRepository
from ..crash_guard import CrashGuard
from ..replies.program_requests import InFlightRequests
from .archive_hold import ArchiveHold
from .conversation_cache import ConversationCache
from .gate import TurnGate
from .limits import QuotaLimit
from .mailbox import LARGE_CHARACTERS, MAX_LARGE_REQUESTS, Mailbox, MailboxTask, QueuedRequest, SenderState

log = logging.getLogger(__name__)

_RESOLVING = "\0"
"""In place of a thread: the mailbox of a sender's requests whose thread is being found. No thread is this."""
_POLL_S = 1.0
_CANCEL_S = 2.0
_LARGE_PAUSE_S = 0.1
"""The time from the beginning of a large request to that of the next of its sender. Each costs as much as a hundred others."""


class ThreadResolver:
    """The threads of the turns of one agent, to find that of a request that replies to one without a thread of its own.

    Such a request belongs to the conversation of the message that it replies to, if that is one of the sender's. A reply to any
    other message counts as a message without a thread. The latest turns are in memory; the database has all.
    """

    def __init__(self, repository: AgentRepository) -> None:
        self._agent, self._turns = repository.agent, repository.turns
        self.recent: OrderedDict[int, tuple[str, str | None]] = OrderedDict()
        """The sender and the thread of the latest turns, by the integers of their keys."""

    def find_recent(self, incoming: InboundRequest, sender: str) -> str | None:
        """Return the thread of a request of a sender (a bare JID), if that is known without the database."""
        if (turn := _replied_turn(incoming)) is None:
            return incoming.thread
        turn_sender, thread = self.recent.get(turn.int, ("", None))
        return thread if turn_sender == sender else None

    def needs_search(self, incoming: InboundRequest) -> bool:
        """Return True if only the database may know the thread of a request."""
        turn = _replied_turn(incoming)
        return turn is not None and turn.int not in self.recent

    async def search(self, incoming: InboundRequest, sender: str) -> str | None:
        """Return the thread of a request of a sender (a bare JID) by the database; None if it has none."""
        try:
            conversation_id = await self._turns.find_conversation_id(str(_replied_turn(incoming)), sender)
        except StoreError as error:
            log.error("%s: cannot find the message that %s replies to: %s", self._agent, sender, error)
            return None
        return recover_thread(conversation_id, sender, self._agent) if conversation_id is not None else None


class Mailboxes:
    """The mailboxes of one agent, by sender and thread, and by conversation id once that is known.

    `quota_limit` has the slots for turns: one sender gets a share only, so that many threads of theirs leave room for others.
    While the archive is read, a conversation with half of `max_queued` requests is held no more. `remembered_turns` is the
    number of turns whose thread is known without the database. `cancelling` is set while a stop cancels the running turns,
    whose requests run again after the next start.
    """

    def __init__(
        self,
        repository: AgentRepository,
        quota_limit: QuotaLimit,
        gate: TurnGate,
        program_requests: InFlightRequests,
        cancelling: asyncio.Event,
        *,
        max_queued: int,
        remembered_turns: int,
    ) -> None:
        self._writes, self._inbox = repository.database.writes, repository.inbox
        self._slots_of = quota_limit.slots_of
        self.gate = gate
        """Decides whether further turns may start."""
        self.program_requests = program_requests
        self.cancelling = cancelling
        self._max_queued = max_queued
        self._mailboxes: dict[tuple[str, str | None], Mailbox] = {}
        self.conversations = ConversationCache()
        """The conversations in memory."""
        self.senders: weakref.WeakValueDictionary[str, SenderState] = weakref.WeakValueDictionary()
        """The states of senders, by bare JID."""
        self._threads = ThreadResolver(repository)
        self._remembered_turns = remembered_turns
        self._resolving: dict[str, Mailbox] = {}
        """The mailboxes of the requests whose threads are being found, by sender."""
        self.archive_hold = ArchiveHold(self._start_workers)
        """The requests that wait while the archive is read."""
        self.is_accepting = False
        """True from `start` until `drain`. At other times what is put in waits for the next start."""
        gate.opened.subscribe(self._start_workers)

    def __iter__(self) -> Iterator[Mailbox]:
        return iter(list(self._mailboxes.values()))

    # Putting in

    def start(self, work: Callable[[Mailbox], Coroutine[Any, Any, None]]) -> None:
        """Begin to work on what is put in: `work` empties a mailbox. Call it in the event loop."""
        self._work = work
        self._loop = asyncio.get_running_loop()
        self.is_accepting = True
        self.cancelling.clear()

    def take_waiting(self) -> list[QueuedRequest]:
        """Remove and return the requests that came before the start, in their order."""
        waiting = []
        for mailbox in self:
            waiting += [item for item in mailbox.queue if isinstance(item, QueuedRequest)]
            mailbox.clear()
            self.evict_if_idle(mailbox)
        return sorted(waiting, key=lambda queued: queued.inbox_row)

    def resolve_thread(self, incoming: InboundRequest, sender: str) -> InboundRequest:
        """Return a request of a sender (a bare JID) with the thread of what it replies to, if that is known by now."""
        thread = self._threads.find_recent(incoming, sender)
        return incoming if thread is None else replace(incoming, thread=thread)

    def put(self, queued: QueuedRequest, sender: str) -> None:
        """Queue a request of a sender (a bare JID) behind their earlier ones, and start the worker of its mailbox.

        Before the start and after `drain` it is kept for the next start.
        """
        incoming = queued.incoming
        if not self.is_accepting:
            self.get_or_create(sender, incoming.thread).enqueue(queued)
            return
        if queued.digest:
            self.program_requests.add(queued.key, incoming, queued.digest, queued.stored)
        resolving = self._resolving.get(sender)
        if resolving is not None:
            resolving.enqueue(queued)
        elif incoming.thread is None and self._threads.needs_search(incoming):
            resolving = self._resolving[sender] = self.get_or_create(sender, _RESOLVING)
            resolving.enqueue(queued)
            resolving.worker = self._loop.create_task(self._resolve_threads(resolving))
        else:
            self._enqueue(queued, sender)

    async def _resolve_threads(self, resolving: Mailbox) -> None:
        """Find the threads of the waiting requests of a sender, and enqueue each in its order."""
        sender = resolving.sender
        try:
            while resolving.queue and self.is_accepting:
                queued = resolving.queue[0]
                assert isinstance(queued, QueuedRequest)
                if self._threads.needs_search(incoming := queued.incoming):
                    incoming = replace(incoming, thread=await self._threads.search(incoming, sender))
                if self.is_accepting and resolving.queue and resolving.queue[0] is queued:  # else it was withdrawn meanwhile
                    resolving.remove(queued)
                    self._enqueue(replace(queued, incoming=incoming), sender)
        finally:
            resolving.worker = None
            del self._resolving[sender]
            self.evict_if_idle(resolving)
            if self.archive_hold.is_archive_read:
                self.release_when_resolved()

    def _enqueue(self, queued: QueuedRequest, sender: str) -> None:
        recent = self._threads.recent
        recent[queued.key.int] = sender, queued.incoming.thread
        if len(recent) > self._remembered_turns:
            recent.popitem(last=False)
        mailbox, hold = self.get_or_create(sender, queued.incoming.thread), self.archive_hold
        if queued.is_archived and hold.rows:
            mailbox.enqueue_archived(queued, hold.rows)
        else:
            mailbox.queue.append(queued)
            mailbox.sender_state.queued_count += 1
            if mailbox.retry is not None:
                self._watch(mailbox, queued)
            if hold.timer is not None and hold.add(queued):
                is_large = len(queued.incoming.content) > LARGE_CHARACTERS
                has_many_large = is_large and mailbox.sender_state.count_large() >= MAX_LARGE_REQUESTS
                if 2 * mailbox.sender_state.queued_count >= self._max_queued or has_many_large:
                    hold.release()  # before further ones are refused, though the agent is free
        self._start_worker(mailbox)

    def put_task(self, mailbox: Mailbox, task: MailboxTask) -> None:
        """Queue a task behind the requests of a mailbox, and start its worker."""
        mailbox.enqueue(task)
        self._start_worker(mailbox)

    def put_back(self, mailbox: Mailbox, queued: QueuedRequest, delay_s: float) -> None:
        """Put a request at the head of its mailbox again. The mailbox waits until the database takes writes.

        `delay_s` is the wait after a failure of this request alone. Requests behind it that cannot be stored do not wait.
        After `drain` nothing is put back: the inbox has the request.
        """
        if not self.is_accepting:
            return

        def retry() -> None:
            mailbox.retry = None
            if self._writes.is_failing and mailbox.queue:
                mailbox.retry = self._loop.call_later(_POLL_S, retry)
            elif self.get(*mailbox.key) is mailbox:
                self._start_worker(mailbox)

        mailbox.retry = self._loop.call_later(_POLL_S if self._writes.is_failing else delay_s, retry)
        for item in mailbox.queue:
            self._watch(mailbox, item)
        mailbox.requeue(queued)

    def _watch(self, mailbox: Mailbox, item: QueuedRequest | MailboxTask) -> None:
        """Start the worker of a mailbox that waits if a request there cannot be stored: its sender is told."""
        item.stored.on_failed(lambda _: self._start_worker(mailbox))

    def _start_worker(self, mailbox: Mailbox) -> None:
        if mailbox.worker is None:
            # With a name, because asyncio formats a default one for each task.
            mailbox.worker = self._loop.create_task(self._work(mailbox), name=mailbox.key[0])

    def _start_workers(self) -> None:
        for mailbox in self:
            if mailbox.queue:
                self._start_worker(mailbox)

    def release_when_resolved(self) -> None:
        """End the hold once the threads of all requests are found: those of the archive may wait for that too."""
        self.archive_hold.is_archive_read = True
        if not self._resolving:
            self.archive_hold.release()

    def close_request(self, queued: QueuedRequest) -> None:
        """Close a request that gets no turn."""
        self._inbox.close(queued.inbox_row)
        self.end_program_request(queued)

    def end_program_request(self, queued: QueuedRequest) -> None:
        """Forget a program's request, and close its repetitions, which had the same reply."""
        repeated_rows = self.program_requests.remove(queued.key, queued.stored)
        if not self.cancelling.is_set():  # then it runs again after the next start, and answers them all
            for inbox_row in repeated_rows:
                self._inbox.close(inbox_row)

    # Counting

    def count_queued(self, sender: str) -> int:
        """Count the queued items of a sender (a bare JID), over all threads."""
        state = self.senders.get(sender)
        return 0 if state is None else state.queued_count

    @property
    def waiting_count(self) -> int:
        """The number of requests that wait for their turn. Other threads may read it."""
        return sum(isinstance(item, QueuedRequest) for mailbox in self for item in list(mailbox.queue))

    @property
    def busy_count(self) -> int:
        """The number of conversations with a turn that runs or waits. Other threads may read it."""
        return sum(mailbox.worker is not None for mailbox in self)

    # Waiting and stopping

    async def wait_until_idle(self, *mailbox_key: str | None) -> None:
        """Wait until no worker runs: of any mailbox, or of that with `mailbox_key`, a sender (a bare JID) and a thread."""
        while workers := [
            mailbox.worker
            for mailbox in self._mailboxes.values()
            if mailbox.worker is not None and (mailbox_key in ((), mailbox.key) or mailbox.key[1] == _RESOLVING)
        ]:
            await asyncio.wait(workers)

    async def drain(self, grace_s: float) -> bool:
        """Begin no further items, and wait for the running turns. After `grace_s`, cancel those that still run; False then.

        The requests that wait stay where they are: the inbox has them too.
        """
        self.is_accepting = False
        self.archive_hold.drop()
        for mailbox in self:
            for task in [item for item in mailbox.queue if isinstance(item, MailboxTask)]:
                mailbox.remove(task)
                task.future.cancel()
        workers = [mailbox.worker for mailbox in self._mailboxes.values() if mailbox.worker is not None]
        if not workers:
            return True
        _, late = await asyncio.wait(workers, timeout=grace_s)
        self.cancelling.set()
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

    # Finding

    def get_or_create(self, sender: str, thread: str | None) -> Mailbox:
        """Return the mailbox of a sender (a bare JID) on a thread; create it if there is none."""
        key = sender, thread
        mailbox = self._mailboxes.get(key)
        if mailbox is None:
            state = self.senders.get(sender)
            if state is None:
                state = self.senders[sender] = SenderState(self._slots_of(sender, is_room=False))
            mailbox = self._mailboxes[key] = state.mailboxes[thread] = Mailbox(sender, thread, state)
        return mailbox

    def get(self, sender: str, thread: str | None) -> Mailbox | None:
        """Return the mailbox of a sender (a bare JID) on a thread, or None."""
        return self._mailboxes.get((sender, thread))

    def of_sender(self, sender: str) -> list[Mailbox]:
        """Return all mailboxes of a sender (a bare JID)."""
        state = self.senders.get(sender)
        return [] if state is None else list(state.mailboxes.values())

    def evict_if_idle(self, mailbox: Mailbox) -> None:
        """Remove a mailbox without work, unless its conversation stays in memory."""
        if mailbox.queue or mailbox.worker is not None or self.conversations.keep(mailbox, len(self._mailboxes)):
            return
        self.conversations.remove(mailbox)
        self._mailboxes.pop(mailbox.key, None)
        mailbox.sender_state.mailboxes.pop(mailbox.key[1], None)


class MailboxWorkers:
    """The workers of one agent's mailboxes: they give each item to `handle`, or run it if it is a task.

    `quota_limit` has the slots for turns: one sender gets a share only, so that many threads of theirs leave room for others.
    `handle` answers a request, and raises nothing but cancellation.
    """

    def __init__(
        self,
        mailboxes: Mailboxes,
        quota_limit: QuotaLimit,
        crash_guard: CrashGuard,
        handle: Callable[[Mailbox, QueuedRequest], Awaitable[None]],
    ) -> None:
        self._mailboxes = mailboxes
        self._gate = mailboxes.gate
        self._slots_of = quota_limit.slots_of
        self._slots_for_large: weakref.WeakValueDictionary[str, Semaphore] = weakref.WeakValueDictionary()
        """A slot for each person or room whose large requests begin one after the other."""
        self._crash_guard = crash_guard
        self._handle = handle
        self.cut_off_rows: set[int] = set()
        """The rows in the inbox of the requests whose turns a stop has cancelled."""

    def start(self) -> None:
        """Begin to work on what is put into the mailboxes. Call it in the event loop."""
        self.cut_off_rows.clear()
        self._mailboxes.start(self.run)

    async def run(self, mailbox: Mailbox) -> None:
        """Work on the items of a mailbox, until there is none that may begin."""
        mailboxes, gate, suspects = self._mailboxes, self._gate, self._crash_guard.suspects
        held_rows = mailboxes.archive_hold.rows
        try:
            while mailbox.queue and mailboxes.is_accepting:
                may_begin = not (gate.is_closed or held_rows or mailbox.retry)
                # It still counts as queued, until it has a slot.
                item = mailbox.queue.popleft() if may_begin else mailbox.dequeue(gate.lets_through, held_rows)
                if item is None:
                    break
                mailbox.is_cancelled = False
                mailbox.handled = mailbox.current = item if isinstance(item, QueuedRequest) else None
                if suspects and isinstance(item, QueuedRequest):
                    async with self._crash_guard.permit(item.inbox_row):
                        await self._run_item(mailbox, item)
                else:
                    await self._run_item(mailbox, item)
        finally:
            mailbox.worker = mailbox.handled = mailbox.current = None
            mailboxes.evict_if_idle(mailbox)

    async def _run_item(self, mailbox: Mailbox, item: QueuedRequest | MailboxTask) -> None:
        mailboxes, slots = self._mailboxes, mailbox.sender_state.slots
        if isinstance(item, QueuedRequest):
            incoming = item.incoming
            if incoming.context.root_sender or incoming.kind.is_room:
                slots = self._slots_of(incoming.root_owner, is_room=incoming.kind.is_room)
        try:
            if isinstance(item, QueuedRequest) and len(item.incoming.content) > LARGE_CHARACTERS:
                await self._pace_large(item.incoming.root_owner)
            if not slots.acquire_nowait():
                await slots.acquire()
        finally:
            mailbox.sender_state.queued_count -= 1
        try:
            if not mailboxes.is_accepting:  # since it began to wait for its slot; the inbox has the request
                if isinstance(item, MailboxTask):
                    item.future.cancel()
                elif not mailbox.is_cancelled:
                    mailbox.requeue(item)
            elif self._gate.is_closed and not self._gate.lets_through(item) and not mailbox.is_cancelled:
                mailbox.requeue(item)  # it was paused while this one waited for its slot
            elif mailbox.is_cancelled and isinstance(item, QueuedRequest) and not item.incoming.kind.is_program:
                mailboxes.close_request(item)  # it was cancelled while it waited for its slot
            elif isinstance(item, QueuedRequest):
                await self._handle(mailbox, item)
                if item.digest and not (mailbox.retry and item.stored.is_stored):
                    mailboxes.end_program_request(item)
            else:
                await item.run()
        finally:
            slots.release()
            if slot := mailbox.running_slot:
                mailbox.running_slot = SPARE_SLOT
                running = self._crash_guard.running
                is_cancelling = mailboxes.cancelling.is_set()
                if is_cancelling:
                    self.cut_off_rows.add(running.slots[slot])
                if not (is_cancelling and running.is_stopping):  # else the next start counts the stop
                    running.slots[slot] = 0
                running.free_slots.append(slot)

    async def _pace_large(self, owner: str) -> None:
        """Wait until the next large request of a sender may begin, which is some time after the one before it."""
        slot = self._slots_for_large.get(owner)
        if slot is None:
            slot = self._slots_for_large[owner] = Semaphore(1)
        await slot.acquire()
        asyncio.get_running_loop().call_later(_LARGE_PAUSE_S, slot.release)


def _replied_turn(incoming: InboundRequest) -> UUID | None:
    """Return the key of the turn that a request without a thread replies to, if the id can be one of the agent's.

    The ids of the agent's messages begin with the key of their turn.
    """
    if incoming.thread is not None or not incoming.kind.is_human:
        return None
    if (replied_to := incoming.metadata.get("reply_to")) is None:
        return None
    try:
        return UUID(replied_to[:36])
    except ValueError:
        return None
