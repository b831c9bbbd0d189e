"""A lock for what outlives event loops."""

from __future__ import annotations

import asyncio


class LoopLock:
    """`async with loop_lock.lock():`, in any event loop; one of asyncio's belongs to the first that waits for it.

    Each loop has its own, and the one before is forgotten: it is for one loop after another, not for several at once.
    """

    def __init__(self) -> None:
        self._of: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None

    def lock(self) -> asyncio.Lock:
        """That of the running loop."""
        loop = asyncio.get_running_loop()
        if self._of is None or self._of[0] is not loop:
            self._of = (loop, asyncio.Lock())
        return self._of[1]
