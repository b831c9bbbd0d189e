"""Conversations at work: the messages that wait, and what is held in memory while they are active."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ..concurrency import Slots
from ..domain.messages import Incoming
from ..domain.value import value
from ..memory import Memory


@value
class Waiting:
    """A request whose turn has not come. `is_new` is done when it is durable: False for a duplicate.

    Where it `is_surely_new`, its turn begins without waiting for that.
    """

    incoming: Incoming
    key: UUID
    row: int
    is_new: asyncio.Future[bool]
    arrived: float
    """When it came in, by `Activity.now`."""
    is_surely_new: bool = False
    redelivered: bool = False

    def is_named(self, message_id: str) -> bool:
        """Whether its sender calls the message by this id."""
        return bool(message_id) and message_id in (self.incoming.stanza_id, self.incoming.origin_id)


@dataclass(slots=True, eq=False)
class Errand:
    """Something to do in a conversation between its turns. `is_work` is the agent's, which a pause keeps back."""

    work: Callable[[], Awaitable[Any]]
    is_work: bool
    done: asyncio.Future[Any]

    async def run(self) -> None:
        """Does it, and says what came of it to whoever waits."""
        try:
            result = await self.work()
        except asyncio.CancelledError:
            self.done.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - whoever waits has it
            if not self.done.done():
                self.done.set_exception(error)
        else:
            if not self.done.done():
                self.done.set_result(result)

    def is_named(self, message_id: str) -> bool:
        """It is no message."""
        return False


class Share:
    """What one person has of an agent: slots for turns, and how many of their messages wait, on all threads together."""

    __slots__ = ("__weakref__", "slots", "waiting")

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.waiting = 0


class Lane:
    """The messages of one sender on one thread, which is one conversation: one at a time, in order."""

    __slots__ = (
        "conversation_id",
        "current",
        "has_cancelled",
        "is_assisting",
        "is_withdrawn",
        "key",
        "memory",
        "queue",
        "share",
        "worker",
    )

    def __init__(self, sender: str, thread: str | None, share: Share) -> None:
        self.key = (sender, thread)
        self.share = share
        self.queue: deque[Waiting | Errand] = deque()
        self.worker: asyncio.Task[None] | None = None
        self.memory: Memory | None = None
        self.conversation_id: str | None = None
        self.current: Waiting | None = None
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

    def put(self, one: Waiting | Errand) -> None:
        """It waits behind the others."""
        self.queue.append(one)
        self.share.waiting += 1

    def put_back(self, one: Waiting | Errand) -> None:
        """It is the first again."""
        self.queue.appendleft(one)
        self.share.waiting += 1

    def take(self, may_begin: Callable[[Waiting | Errand], bool]) -> Waiting | Errand | None:
        """The first that may begin, which waits no longer."""
        for number, one in enumerate(self.queue):
            if may_begin(one):
                del self.queue[number]
                self.share.waiting -= 1
                return one
        return None

    def remove(self, one: Waiting | Errand) -> None:
        """It waits no longer."""
        self.queue.remove(one)
        self.share.waiting -= 1

    def stop(self) -> bool:
        """Stops the agent at work on a request, if it is; nothing of the turn remains."""
        if self.current is None or self.worker is None:
            return False
        self.is_withdrawn = True
        if self.is_assisting:
            self.worker.cancel()
        return True

    def clear(self) -> None:
        """Nothing waits any more."""
        self.share.waiting -= len(self.queue)
        for one in self.queue:
            if isinstance(one, Errand):
                one.done.cancel()
        self.queue.clear()


class Lanes:
    """The lanes of one agent, by sender and thread, and by conversation id as soon as that is known."""

    def __init__(self, slots: int, slots_of_one: int) -> None:
        self._lanes: dict[tuple[str, str | None], Lane] = {}
        self._by_id: dict[str, Lane] = {}
        self._slots = Slots(slots)
        self._slots_of_one = slots_of_one
        self._shares: weakref.WeakValueDictionary[str, Share] = weakref.WeakValueDictionary()

    def __iter__(self) -> Iterator[Lane]:
        return iter(list(self._lanes.values()))

    def get(self, sender: str, thread: str | None) -> Lane | None:
        """The lane, if there is one."""
        return self._lanes.get((sender, thread))

    def take(self, sender: str, thread: str | None) -> Lane:
        """The lane, a new one if there is none."""
        key = sender, thread
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(sender, thread, self._share(sender))
        return lane

    def of(self, sender: str) -> list[Lane]:
        """All lanes of a person."""
        return [lane for lane in self._lanes.values() if lane.sender == sender]

    def waiting(self, sender: str) -> int:
        """How many messages of a person wait."""
        share = self._shares.get(sender)
        return 0 if share is None else share.waiting

    def _share(self, sender: str) -> Share:
        share = self._shares.get(sender)
        if share is None:
            share = self._shares[sender] = Share(Slots(self._slots_of_one, within=self._slots))
        return share

    def named(self, conversation_id: str) -> Lane | None:
        """The lane of a conversation, if it is at work."""
        return self._by_id.get(conversation_id)

    def name(self, lane: Lane, conversation_id: str) -> None:
        """Says which conversation a lane is. From here on no other sender of this process may take the id."""
        lane.conversation_id = conversation_id
        self._by_id[conversation_id] = lane

    def owners(self, ids: Iterable[str]) -> dict[str, str]:
        """Who has those of the conversation ids that are at work."""
        return {name: self._by_id[name].sender for name in ids if name in self._by_id}

    def let_go(self, lane: Lane) -> None:
        """Frees what a conversation held that is over, or was never begun; an active one stays while there is room."""
        memory = lane.memory
        if lane.queue or lane.worker is not None:
            return
        if memory is not None and memory.row.life.is_active and len(self._lanes) < _IN_MEMORY:
            return
        self._lanes.pop(lane.key, None)
        if lane.conversation_id is not None and self._by_id.get(lane.conversation_id) is lane:
            del self._by_id[lane.conversation_id]


_IN_MEMORY = 10_000
