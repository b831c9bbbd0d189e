"""The syncs of a turn: what it adds to interaction memories is synced once, at its end, and not addition by addition."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextvars import ContextVar, Token
from typing import Protocol

log = logging.getLogger(__name__)


class Unsettled(Protocol):
    """An interaction memory, of which something was written and not synced yet."""

    async def asettle(self) -> None:
        """Syncs it, beside the event loop."""


class Syncs:
    """What one turn has to sync before it is answered. Threads share it.

    `with syncs:` is around the agent's work. What the work adds there, in its task, in tasks and in threads that it begins
    (`asyncio.to_thread`), leaves its sync to `carry_out`; what such a task adds later is synced by itself.
    """

    def __init__(self) -> None:
        self._memories: set[Unsettled] = set()
        self._is_over = False
        self._lock = threading.Lock()
        self._token: Token[Syncs | None] | None = None

    def __enter__(self) -> Syncs:
        self._token = CURRENT_SYNCS.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            CURRENT_SYNCS.reset(self._token)
        with self._lock:
            self._is_over = True

    def leave(self, memory: Unsettled) -> bool:
        """Leaves the sync of a memory to `carry_out`; False if the work is over, and who adds has to sync."""
        with self._lock:
            if not self._is_over:
                self._memories.add(memory)
            return not self._is_over

    async def carry_out(self) -> None:
        """After the work: syncs what was left, beside the event loop. StoreError if something of it cannot be stored.

        Where that is so of several memories, the log has the others.
        """
        if not self._memories:
            return
        outcomes = await asyncio.gather(*(memory.asettle() for memory in self._memories), return_exceptions=True)
        self._memories.clear()
        problems = [problem for problem in outcomes if problem is not None]
        for further in problems[1:]:
            log.error("%s", further)
        if problems:
            raise problems[0]


CURRENT_SYNCS: ContextVar[Syncs | None] = ContextVar("current_syncs", default=None)
"""Those of the turn that runs in this task."""
