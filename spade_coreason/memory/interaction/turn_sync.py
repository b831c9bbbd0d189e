"""Deferred syncs of a turn: its additions to interaction memories are synced once, at its end."""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

log = logging.getLogger(__name__)


class DeferredSyncTarget(Protocol):
    """An interaction memory with additions that are written and not synced yet."""

    async def asettle(self) -> None:
        """Sync the additions without blocking the event loop."""


@dataclass(slots=True, eq=False)
class DeferredSyncs:
    """The interaction memories that one turn has to sync before its reply is stored. Threads share it.

    The agent's work begins when the turn sets `CURRENT_DEFERRED_SYNCS`, and ends with `close`. Its additions leave their sync
    to `run`, also in tasks and in threads (`asyncio.to_thread`) that it starts. Later additions sync themselves.
    """

    memories: set[DeferredSyncTarget] = field(default_factory=set)
    """The memories whose sync is deferred."""
    _is_closed: bool = False

    def close(self) -> None:
        """End the deferral: later additions sync themselves."""
        self._is_closed = True

    def defer(self, memory: DeferredSyncTarget) -> bool:
        """Leave the sync of a memory to `run`. Return False after `close`: then the caller has to sync."""
        if not self._is_closed:
            self.memories.add(memory)
        # If `close` was called in between, `run` may have missed this memory.
        return not self._is_closed

    async def run(self) -> None:
        """Sync the deferred memories without blocking the event loop. Call it after the agent's work.

        Raises StoreError if one cannot be stored. If several fail, the others are logged.
        """
        memories = list(self.memories)  # at once: a thread may still add one, which it syncs itself
        self.memories.clear()
        outcomes = await asyncio.gather(*(memory.asettle() for memory in memories), return_exceptions=True)
        errors = [error for error in outcomes if error is not None]
        for error in errors[1:]:
            log.error("%s", error)
        if errors:
            raise errors[0]


CURRENT_DEFERRED_SYNCS: ContextVar[DeferredSyncs | None] = ContextVar("current_syncs", default=None)
"""The deferred syncs of the turn that runs in this task, or ran there last."""
