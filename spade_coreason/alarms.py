"""Many waits of one length on one timer of the event loop."""

from __future__ import annotations

import asyncio
import logging
import time
import types
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

PATIENCE_S = 3.0
BLOCKED_S = 1.0


class Alarms:
    """Calls back after `delay_s`. Waits of one length end in the order in which they began, so one timer serves all.

    Nearly every turn ends long before its alarms; setting one and taking it back costs a tenth of `loop.call_later`.
    """

    def __init__(self, delay_s: float, whose: str = "", blocked_s: float = BLOCKED_S) -> None:
        self.delay_s = delay_s
        self.blocked_s = blocked_s
        """The log names work under a `Limit` that keeps the event loop for longer than this."""
        self.whose = whose
        """Whom the log names as the one who is waited for; "" is the work itself."""
        self._waits: dict[Callable[[], None], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def set(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once in `delay_s`; it is not set already."""
        loop = asyncio.get_running_loop()
        self._waits[callback] = loop.time() + self.delay_s
        if self._timer is None:
            self._timer = loop.call_later(self.delay_s, self._ring)

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
                delay_s = next(iter(self._waits.values())) - now
                self._timer = loop.call_later(delay_s, self._ring)


class Limit:
    """For one piece of work: `await Limit(alarms).hold(work)` takes `alarms.delay_s` at most; 0 is no limit.

    It is as `asyncio.timeout`, but that work which swallows its cancellation holds nobody: it is left where it stands if it has
    not ended `patience_s` later. `task` is the one that is running, where that is known.
    """

    __slots__ = ("_alarms", "_cancels", "_insistence", "_patience_s", "_task")

    def __init__(self, alarms: Alarms, task: asyncio.Task[Any] | None = None, patience_s: float = PATIENCE_S) -> None:
        self._alarms = alarms
        self._task = task
        self._patience_s = patience_s
        self._cancels = 0  # how often the task was cancelled from here; the second time it is left where it stands
        self._insistence: asyncio.TimerHandle | None = None

    @property
    def has_expired(self) -> bool:
        """Whether it took too long."""
        return self._cancels > 0

    @types.coroutine
    def hold(self, work: Awaitable[T]) -> Generator[Any, Any, T]:
        """Awaits `work`. The log says which work keeps the event loop from everybody else."""
        task = self._task = self._task or asyncio.current_task()
        if task is None:
            raise RuntimeError("a Limit is for a task")
        before = task.cancelling()
        steps: Any = work.__await__()
        if self._alarms.delay_s > 0:
            self._alarms.set(self._interrupt)
        error: BaseException | None = None
        try:
            while True:
                began = time.monotonic()
                try:
                    waits_for = next(steps) if error is None else steps.throw(error)
                except StopIteration as end:
                    value: T = end.value
                    return value
                finally:
                    if (held_s := time.monotonic() - began) > self._alarms.blocked_s:
                        _complain(self._alarms.whose or getattr(work, "__qualname__", "what runs"), held_s)
                error = None
                try:
                    yield waits_for
                except BaseException as thrown:
                    if self._cancels > 1:
                        self._leave(steps)
                        raise
                    error = thrown
        except asyncio.CancelledError as cancelled:
            # Our cancellation is spent; one by somebody else, who came at the same time, travels on.
            if self._cancels and task.cancelling() - self._cancels <= before:
                raise TimeoutError from cancelled
            raise
        finally:
            self._alarms.take_back(self._interrupt)
            if self._insistence is not None:
                self._insistence.cancel()
                for _ in range(self._cancels):
                    task.uncancel()

    def _leave(self, steps: Any) -> None:
        try:
            steps.close()
        except RuntimeError:  # it swallows even this
            log.error("what was cancelled after %g s does not end; it is left where it stands", self._alarms.delay_s)

    def _interrupt(self) -> None:
        self._insistence = asyncio.get_running_loop().call_later(self._patience_s, self._cancel)
        self._cancel()

    def _cancel(self) -> None:
        self._cancels += 1
        if self._task is not None:
            self._task.cancel()


def _complain(who: str, held_s: float) -> None:
    log.warning("%s held up everybody else for %.1f s; give what blocks to asyncio.to_thread", who, held_s)
