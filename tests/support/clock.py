"""Clocks that tests set."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from tests.support.wait import TIMEOUT_S

_ROUNDS = 10  # of the loop: one for an alarm, one for its callback, one for the write at the end of a round


class Clock:
    """A clock that stands still until it is advanced."""

    def __init__(self, now: datetime = datetime(2025, 11, 20, 12, tzinfo=UTC)) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **by: float) -> None:
        """Advance the clock by the arguments of a timedelta: `seconds=5`."""
        self.now += timedelta(**by)


class LoopClock:
    """The time of the running event loop: it stands still until the test advances it.

    `with LoopClock() as clock: await clock.advance(0.2)`

    Timers, sleeps, timeouts and alarms of the loop wait for that, however busy the machine is. Sockets, threads and
    processes run as usual. So a test must not wait with `asyncio.sleep` in the block; `wait_for` and sockets need no timer.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._now = 0.0

    def __enter__(self) -> LoopClock:
        self._now = self._loop.time()
        self._loop.time = self.time  # type: ignore[method-assign]  # the loop asks itself for the time
        return self

    def __exit__(self, *exc_info: object) -> None:
        # Time continues from where it stands, so timers that were set in the block are not late.
        ahead = self._now - time.monotonic()
        self._loop.time = lambda: time.monotonic() + ahead  # type: ignore[method-assign]  # as above

    def time(self) -> float:
        """Return the time of the loop."""
        return self._now

    async def advance(self, seconds: float) -> None:
        """Let time pass and run the timers that are due. Everything that they send has left on return."""
        await self._go_round()  # tasks that are about to wait start waiting
        self._now += seconds
        await self._go_round()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Poll a condition that has no event, while the loop's time stands still."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError
            await asyncio.to_thread(time.sleep, 0.005)

    async def _go_round(self) -> None:
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
