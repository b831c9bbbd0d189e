"""In which conversation a message is: on its own thread, or on that of the message of ours that it replies to (XEP-0461)."""

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
    """Hands the requests of each sender to `enqueue` in order, a reply without a thread when it is known where it belongs.

    It belongs to the conversation of the message that it replies to, where that is one of the sender's; a reply to anything
    else is a message like any other. `remembered` turns are known at once; older ones are looked for in the database.
    """

    def __init__(self, store: AgentRepository, enqueue: Callable[[QueuedRequest, str], None], remembered: int) -> None:
        self._store = store
        self._remembered = remembered
        self._enqueue = enqueue
        self._recent_threads: OrderedDict[int, tuple[str, str | None]] = OrderedDict()
        """Whose turns are on which thread, by the numbers of their keys; the latest of them."""
        self._queues: dict[str, deque[QueuedRequest]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def count_queued(self, sender: str) -> int:
        """How many requests of a sender have no place yet."""
        return len(self._queues.get(sender, ()))

    def resolve_now(self, incoming: InboundRequest, sender: str) -> InboundRequest:
        """The request of a sender on the thread where it belongs, as far as that is known at once."""
        if (turn := _replied_turn(incoming)) is None:
            return incoming
        of, thread = self._recent_threads.get(turn.int, ("", None))
        return replace(incoming, thread=thread) if thread is not None and of == sender else incoming

    def resolve_and_enqueue(self, queued: QueuedRequest, sender: str) -> None:
        """Takes a request of a sender."""
        queue = self._queues.get(sender)
        if queue is not None:
            queue.append(queued)
        elif self._needs_lookup(queued):
            self._queues[sender] = deque([queued])
            self._tasks[sender] = asyncio.create_task(self._resolve_queue(sender))
        else:
            self._enqueue_resolved(queued, sender)

    def cancel(self, sender: str, message_id: str) -> QueuedRequest | None:
        """A request of the sender's own that has no place yet, and gets none."""
        queue = self._queues.get(sender, deque())
        found = next((waiting for waiting in queue if waiting.has_message_id(message_id)), None)
        if found is not None:
            queue.remove(found)
        return found

    async def wait_until_idle(self) -> None:
        """Waits until everything has its place."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    def stop(self) -> None:
        """Hands on nothing more; the inbox has it."""
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
                waiting = queue[0]
                incoming = waiting.incoming
                if self._needs_lookup(waiting):
                    incoming = replace(incoming, thread=await self._find_thread(sender, incoming))
                if queue and queue[0] is waiting:  # else it was taken back meanwhile
                    queue.popleft()
                    self._enqueue_resolved(replace(waiting, incoming=incoming), sender)
        finally:
            del self._queues[sender], self._tasks[sender]

    async def _find_thread(self, sender: str, incoming: InboundRequest) -> str | None:
        try:
            conversation_id = await self._store.find_conversation_id(str(_replied_turn(incoming)), sender)
        except StoreError as error:
            log.error("%s: what %s replies to is not found: %s", self._store.agent, sender, error)
            return None
        return recover_thread(conversation_id, sender, self._store.agent) if conversation_id is not None else None


def _replied_turn(incoming: InboundRequest) -> UUID | None:
    """The turn of ours whose message a request without a thread may be a reply to: with its key our ids begin."""
    if incoming.thread is not None or incoming.channel not in ("person", "room"):
        return None
    if (replied_to := incoming.metadata.get("reply_to")) is None:
        return None
    try:
        return UUID(replied_to[:36])
    except ValueError:
        return None
