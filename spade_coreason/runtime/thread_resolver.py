"""The thread of a request: its own, or that of the message of the agent that it replies to (XEP-0461)."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from uuid import UUID

from ..domain.identifiers import recover_thread
from ..domain.messages import InboundRequest
from ..domain.value import replace
from ..exceptions import StoreError
from ..storage import AgentRepository
from .mailbox import QueuedRequest

log = logging.getLogger(__name__)


class ThreadResolver:
    """The queue before the mailboxes: it passes the requests of each sender to `enqueue` in order, once their thread is known.

    A reply without a thread belongs to the conversation of the message that it replies to, if that is one of the sender's.
    A reply to any other message counts as a message without a thread. The threads of the newest `remembered` turns are in
    memory; the database is searched for older ones.
    """

    def __init__(self, repository: AgentRepository, enqueue: Callable[[QueuedRequest, str], None], remembered: int) -> None:
        self._repository = repository
        self._remembered = remembered
        self._enqueue = enqueue
        self._recent_threads: OrderedDict[int, tuple[str, str | None]] = OrderedDict()
        """The sender and the thread of the latest turns, by the integers of their keys."""
        self._queues: dict[str, deque[QueuedRequest]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def count_queued(self, sender: str) -> int:
        """Count the requests of a sender (a bare JID) whose thread is not known yet."""
        return len(self._queues.get(sender, ()))

    def resolve_now(self, incoming: InboundRequest, sender: str) -> InboundRequest:
        """Return a request with its thread, if that is known without the database."""
        if (turn := _replied_turn(incoming)) is None:
            return incoming
        turn_sender, thread = self._recent_threads.get(turn.int, ("", None))
        return replace(incoming, thread=thread) if thread is not None and turn_sender == sender else incoming

    def resolve_and_enqueue(self, queued: QueuedRequest, sender: str) -> None:
        """Find the thread of a request of a sender (a bare JID), then pass the request on."""
        queue = self._queues.get(sender)
        if queue is not None:
            queue.append(queued)
        elif self._needs_lookup(queued):
            self._queues[sender] = deque([queued])
            self._tasks[sender] = asyncio.create_task(self._resolve_queue(sender))
        else:
            self._enqueue_resolved(queued, sender)

    def cancel(self, sender: str, message_id: str) -> QueuedRequest | None:
        """Remove and return the sender's request with this message id, if its thread is not known yet."""
        queue = self._queues.get(sender, deque())
        cancelled = next((queued for queued in queue if queued.has_message_id(message_id)), None)
        if cancelled is not None:
            queue.remove(cancelled)
        return cancelled

    async def wait_until_idle(self) -> None:
        """Wait until all requests are passed on."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    def stop(self) -> None:
        """Pass no further requests on; the inbox has them."""
        for queue in self._queues.values():
            queue.clear()

    def _needs_lookup(self, queued: QueuedRequest) -> bool:
        turn = _replied_turn(queued.incoming)
        return turn is not None and turn.int not in self._recent_threads

    def _enqueue_resolved(self, queued: QueuedRequest, sender: str) -> None:
        self._recent_threads[queued.key.int] = sender, queued.incoming.thread
        if len(self._recent_threads) > self._remembered:
            self._recent_threads.popitem(last=False)
        self._enqueue(queued, sender)

    async def _resolve_queue(self, sender: str) -> None:
        queue = self._queues[sender]
        try:
            while queue:
                queued = queue[0]
                incoming = queued.incoming
                if self._needs_lookup(queued):
                    incoming = replace(incoming, thread=await self._find_thread(sender, incoming))
                if queue and queue[0] is queued:  # else it was cancelled during the search
                    queue.popleft()
                    self._enqueue_resolved(replace(queued, incoming=incoming), sender)
        finally:
            del self._queues[sender], self._tasks[sender]

    async def _find_thread(self, sender: str, incoming: InboundRequest) -> str | None:
        try:
            conversation_id = await self._repository.find_conversation_id(str(_replied_turn(incoming)), sender)
        except StoreError as error:
            log.error("%s: what %s replies to is not found: %s", self._repository.agent, sender, error)
            return None
        return recover_thread(conversation_id, sender, self._repository.agent) if conversation_id is not None else None


def _replied_turn(incoming: InboundRequest) -> UUID | None:
    """Return the key of the turn that a request without a thread replies to, if the id can be one of the agent's.

    The ids of the agent's messages begin with the key of their turn.
    """
    if incoming.thread is not None or incoming.channel not in ("person", "room"):
        return None
    if (replied_to := incoming.metadata.get("reply_to")) is None:
        return None
    try:
        return UUID(replied_to[:36])
    except ValueError:
        return None
