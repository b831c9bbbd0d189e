"""The syncs of a turn: what it adds to interaction memories is synced once, at its end, and not addition by addition."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextvars import ContextVar
from typing import Protocol

log = logging.getLogger(__name__)


_LOCK = threading.Lock()  # one for all turns: it is held for the length of an addition to a set


class DeferredSyncTarget(Protocol):
    """An interaction memory, of which something was written and not synced yet."""

    async def asettle(self) -> None:
        """Syncs it, beside the event loop."""


class DeferredSyncs:
    """What one turn has to sync before it is answered. Threads share it.

    `activate` and `close` are around the agent's work. What the work adds there, in its task, in tasks and in threads that it begins
    (`asyncio.to_thread`), leaves its sync to `run`; what is added later is synced by itself.
    """

    __slots__ = ("_is_closed", "memories")

    def __init__(self) -> None:
        self.memories: set[DeferredSyncTarget] = set()
        """Those whose sync was left."""
        self._is_closed = False

    def activate(self) -> None:
        """From here on the work of this task leaves its syncs."""
        CURRENT_DEFERRED_SYNCS.set(self)

    def close(self) -> None:
        """The work is over."""
        with _LOCK:
            self._is_closed = True

    def defer(self, memory: DeferredSyncTarget) -> bool:
        """Leaves the sync of a memory to `run`; False if the work is over, and who adds has to sync."""
        with _LOCK:
            if not self._is_closed:
                self.memories.add(memory)
            return not self._is_closed

    async def run(self) -> None:
        """After the work: syncs what was left, beside the event loop. StoreError if something of it cannot be stored.

        Where that is so of several memories, the log has the others.
        """
        outcomes = await asyncio.gather(*(memory.asettle() for memory in self.memories), return_exceptions=True)
        self.memories.clear()
        problems = [problem for problem in outcomes if problem is not None]
        for further in problems[1:]:
            log.error("%s", further)
        if problems:
            raise problems[0]


CURRENT_DEFERRED_SYNCS: ContextVar[DeferredSyncs | None] = ContextVar("current_syncs", default=None)
"""Those of the turn that runs in this task, or ran there last."""
