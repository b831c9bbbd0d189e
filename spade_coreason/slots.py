"""Slots: so many may be at work at once."""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """So many at once: `if not slots.take(): await slots.wait()`, and then `give`. Who waits first is served first.

    One of slots that are `within` others needs one of those as well. No coroutine is made where one is free, as nearly always.
    """

    __slots__ = ("_free", "_waiting", "_within")

    def __init__(self, count: int, within: Slots | None = None) -> None:
        self._free = count  # none is free while somebody waits: it is handed on
        self._within = within
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Takes one, if one is free."""
        if not self._free or (self._within is not None and not self._within.take()):
            return False
        self._free -= 1
        return True

    async def wait(self) -> None:
        """Takes one as soon as one is free."""
        if self._free:
            self._free -= 1
        else:
            await self._wait_here()
        if self._within is not None and not self._within.take():
            try:
                await self._within.wait()
            except asyncio.CancelledError:
                self._hand_on()
                raise

    def give(self) -> None:
        """Gives one back."""
        if self._within is not None:
            self._within.give()
        if self._waiting:
            self._hand_on()
        else:
            self._free += 1

    async def _wait_here(self) -> None:
        handed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(handed)
        try:
            await handed
        except asyncio.CancelledError:
            if not handed.cancelled():  # it was handed over at the same moment
                self._hand_on()
            raise

    def _hand_on(self) -> None:
        while self._waiting:
            handed = self._waiting.popleft()
            if not handed.cancelled():
                handed.set_result(None)
                return
        self._free += 1
