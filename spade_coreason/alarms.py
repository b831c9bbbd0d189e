"""Many waits of one length on one timer of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType


class Alarms:
    """Calls back after `delay_s`. Waits of one length end in the order in which they began, so one timer serves all.

    Nearly every turn ends long before its alarms; setting one and taking it back costs a tenth of `loop.call_later`.
    """

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self._waits: dict[Callable[[], None], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def set(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once in `delay_s`; it is not set already."""
        loop = asyncio.get_running_loop()
        self._waits[callback] = when = loop.time() + self.delay_s
        if self._timer is None:
            self._timer = loop.call_at(when, self._ring)

    def take_back(self, callback: Callable[[], None]) -> None:
        """Does not call `callback`, if it has not been called yet."""
        self._waits.pop(callback, None)

    def stop(self) -> None:
        """Takes all back."""
        self._waits.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._timer = None
        try:
            while self._waits:
                callback, when = next(iter(self._waits.items()))
                if when > now:
                    break
                del self._waits[callback]
                callback()
        finally:
            if self._waits and self._timer is None:
                self._timer = loop.call_at(next(iter(self._waits.values())), self._ring)


class Limit:
    """`with Limit(alarms):` in a task is as `asyncio.timeout(alarms.delay_s)`; no limit where the delay is 0."""

    __slots__ = ("_alarms", "_cancelling", "_task", "has_expired")

    def __init__(self, alarms: Alarms) -> None:
        self._alarms = alarms
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self.has_expired = False

    def __enter__(self) -> Limit:
        self._task = asyncio.current_task()
        if self._task is None:
            raise RuntimeError("a Limit is for a task")
        self._cancelling = self._task.cancelling()
        if self._alarms.delay_s > 0:
            self._alarms.set(self._interrupt)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._alarms.take_back(self._interrupt)
        if not self.has_expired or self._task is None:
            return
        # Our cancellation is spent; one by somebody else, who came at the same time, travels on.
        if self._task.uncancel() <= self._cancelling and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise TimeoutError from error

    def _interrupt(self) -> None:
        self.has_expired = True
        if self._task is not None:
            self._task.cancel()
