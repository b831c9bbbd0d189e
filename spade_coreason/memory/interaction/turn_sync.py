"""Additions to interaction memories on their way, and their syncs: those of a turn are synced once, at its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

log = logging.getLogger(__name__)


class Addition(Future[None]):
    """An entry that is to be written: a future that is done when the entry is stored.

    `defer_sync` registers a later call of the store's `sync` and returns True. It returns False if there will be no such call.
    """

    def __init__(self, conversation_id: str, line: bytes, defer_sync: Callable[[], bool]) -> None:
        super().__init__()
        self.defer_sync = defer_sync
        self.conversation_id = conversation_id
        self.line = line


def complete(additions: Iterable[Addition], error: BaseException | None = None) -> None:
    """Complete the additions that are not done: they are stored, or all have failed with this error."""
    for addition in additions:
        if addition.done():
            continue
        if error is None:
            addition.set_result(None)
        else:
            addition.set_exception(error)


class DeferredSyncTarget(Protocol):
    """An interaction memory with additions that are written and not synced yet."""

    async def asettle(self) -> None:
        """Sync the additions without blocking the event loop."""


@dataclass(slots=True, eq=False)
class DeferredSyncs:
    """The interaction memories that one turn has to sync before its reply is stored. Threads share it.

    The agent's work begins when the turn sets `CURRENT_DEFERRED_SYNCS`, and ends when it sets `is_closed`. Its additions leave
    their sync to `run`, also in tasks and in threads (`asyncio.to_thread`) that it starts. Later additions sync themselves.
    """

    memories: set[DeferredSyncTarget] = field(default_factory=set)
    """The memories whose sync is deferred."""
    is_closed: bool = False
    """True once later additions have to sync themselves."""

    def defer(self, memory: DeferredSyncTarget) -> bool:
        """Leave the sync of a memory to `run`. Return False once it is closed: then the caller has to sync."""
        if not self.is_closed:
            self.memories.add(memory)
        # If it was closed in between, `run` may have missed this memory.
        return not self.is_closed

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
