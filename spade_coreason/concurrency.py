"""Many waits of one length on one timer of the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import types
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

CANCEL_GRACE_S = 3.0

BLOCKED_S = 1.0


class TimerGroup:
    """Calls back after `delay_s`. Waits of one length end in the order in which they began, so one timer serves all.

    Nearly every turn ends long before its alarms; setting one and taking it back costs a tenth of `loop.call_later`.
    """

    def __init__(self, delay_s: float, work_name: str = "", blocked_s: float = BLOCKED_S) -> None:
        self.delay_s = delay_s
        self.blocked_s = blocked_s
        """The log names work under a `Deadline` that keeps the event loop for longer than this."""
        self.work_name = work_name
        """Whom the log names as the one who is waited for; "" is the work itself."""
        self._due_times: dict[Callable[[], None], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def schedule(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once in `delay_s`; it is not set already."""
        loop = asyncio.get_running_loop()
        self._due_times[callback] = loop.time() + self.delay_s
        if self._timer is None:
            self._timer = loop.call_later(self.delay_s, self._run_due)

    def cancel(self, callback: Callable[[], None]) -> None:
        """Does not call `callback`, if it has not been called yet."""
        self._due_times.pop(callback, None)

    def cancel_all(self) -> None:
        """Takes all back."""
        self._due_times.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run_due(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._timer = None
        try:
            while self._due_times:
                callback, when = next(iter(self._due_times.items()))
                if when > now:
                    break
                del self._due_times[callback]
                callback()
        finally:
            if self._due_times and self._timer is None:
                delay_s = next(iter(self._due_times.values())) - now
                self._timer = loop.call_later(delay_s, self._run_due)


class Deadline:
    """For one piece of work: `await Limit(alarms).hold(work)` takes `timers.delay_s` at most; 0 is no limit.

    It is as `asyncio.timeout`, but that work which swallows its cancellation holds nobody: it is left where it stands if it has
    not ended `cancel_grace_s` later. `task` is the one that is running, where that is known.
    """

    __slots__ = ("_cancel_count", "_cancel_grace_s", "_second_cancel", "_task", "_timers")

    def __init__(
        self, timers: TimerGroup, task: asyncio.Task[Any] | None = None, cancel_grace_s: float = CANCEL_GRACE_S
    ) -> None:
        self._timers = timers
        self._task = task
        self._cancel_grace_s = cancel_grace_s
        self._cancel_count = 0  # how often the task was cancelled from here; the second time it is left where it stands
        self._second_cancel: asyncio.TimerHandle | None = None

    @property
    def has_expired(self) -> bool:
        """Whether it took too long."""
        return self._cancel_count > 0

    @types.coroutine
    def run(self, work: Awaitable[T]) -> Generator[Any, Any, T]:
        """Awaits `work`. The log says which work keeps the event loop from everybody else."""
        task = self._task = self._task or asyncio.current_task()
        if task is None:
            raise RuntimeError("a Limit is for a task")
        before = task.cancelling()
        steps: Any = work.__await__()
        if self._timers.delay_s > 0:
            self._timers.schedule(self._expire)
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
                    if (held_s := time.monotonic() - began) > self._timers.blocked_s:
                        _warn_blocked_loop(self._timers.work_name or getattr(work, "__qualname__", "what runs"), held_s)
                error = None
                try:
                    yield waits_for
                except BaseException as thrown:
                    if self._cancel_count > 1:
                        self._abandon(steps)
                        raise
                    error = thrown
        except asyncio.CancelledError as cancelled:
            # Our cancellation is spent; one by somebody else, who came at the same time, travels on.
            if self._cancel_count and task.cancelling() - self._cancel_count <= before:
                raise TimeoutError from cancelled
            raise
        finally:
            self._timers.cancel(self._expire)
            if self._second_cancel is not None:
                self._second_cancel.cancel()
                for _ in range(self._cancel_count):
                    task.uncancel()

    def _abandon(self, generator: Any) -> None:
        try:
            generator.close()
        except RuntimeError:  # it swallows even this
            log.error("what was cancelled after %g s does not end; it is left where it stands", self._timers.delay_s)

    def _expire(self) -> None:
        self._second_cancel = asyncio.get_running_loop().call_later(self._cancel_grace_s, self._cancel)
        self._cancel()

    def _cancel(self) -> None:
        self._cancel_count += 1
        if self._task is not None:
            self._task.cancel()


def _warn_blocked_loop(work_name: str, blocked_s: float) -> None:
    log.warning("%s held up everybody else for %.1f s; give what blocks to asyncio.to_thread", work_name, blocked_s)


_MAX_THREADS = 32

"""Functions of one holder at work at once; one that never returns keeps its place."""


class DaemonThreads:
    """A thread of its own for each call: those of `asyncio.to_thread` are waited for at the end of the process, and few."""

    def __init__(self, max_threads: int = _MAX_THREADS) -> None:
        self._free = max_threads

    async def run(self, call: Callable[[], Any]) -> Any:
        """What `call` returns or raises. Cancelled, it goes on unheard; RuntimeError where too many do."""
        if not self._free:
            raise RuntimeError("too many functions that were called before have not returned")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        context = copy_context()
        self._free -= 1

        def settle(result: Any, error: BaseException | None) -> None:
            self._free += 1
            if done.cancelled():
                return
            if error is None:
                done.set_result(result)
            elif isinstance(error, Exception) and not isinstance(error, StopIteration):
                done.set_exception(error)
            else:  # a sys.exit() there ends nothing here, and no future can hold the others
                done.set_exception(RuntimeError(repr(error)))

        def work() -> None:
            result, problem = None, None
            try:
                result = context.run(call)
            except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
                problem = error
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, result, problem)

        threading.Thread(target=work, name="tool", daemon=True).start()
        return await done


_CLEANUP_S = 1.0

_abandoned_tasks: set[asyncio.Task[Any]] = set()

"""Those that took no cancelling: a task that nobody holds may vanish."""


class DeadlineExceededError(Exception):
    """It did not return in time."""


async def run_with_timeout(timeout_s: float, work: Awaitable[Any]) -> Any:
    """What `work` returns or raises; TookTooLongError after `timeout_s` seconds. Cancelled, or late, it is cancelled.

    One that does not let itself be cancelled is left behind after a second. What is no Exception is a RuntimeError that
    names it: its SystemExit would end the process, and its CancelledError is not that of whoever waits.
    """
    task = asyncio.create_task(_capture_outcome(work))
    try:
        await asyncio.wait({task}, timeout=timeout_s)
    finally:
        is_late = not task.done()
        if is_late:
            await _cancel_or_abandon(task)
    if is_late:
        raise DeadlineExceededError
    result, error = task.result()
    if error is None:
        return result
    if isinstance(error, Exception):
        raise error
    raise RuntimeError(repr(error)) from error


async def _capture_outcome(work: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    try:
        return await work, None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whoever waits gets it
        return None, error


async def _cancel_or_abandon(task: asyncio.Task[Any]) -> None:
    task.cancel()
    _abandoned_tasks.add(task)
    task.add_done_callback(_abandoned_tasks.discard)
    await asyncio.wait({task}, timeout=_CLEANUP_S)


RATE_INTERVAL_S = 60.0

_MAX_RATE_KEYS = 10_000


class RateLimiter:
    """Who was told something lately, `per_interval` a minute at most."""

    def __init__(self, per_interval: int = 1) -> None:
        self._per_interval = per_interval
        self._counts: dict[str, tuple[float, int]] = {}

    def allow(self, key: str) -> bool:
        """Whether `key` may be told; if so it counts as done."""
        now = asyncio.get_running_loop().time()
        since, times = self._counts.pop(key, (now, 0))
        if now >= since + RATE_INTERVAL_S:
            since, times = now, 0
        self._counts[key] = since, min(times + 1, self._per_interval)
        if len(self._counts) > _MAX_RATE_KEYS:
            del self._counts[next(iter(self._counts))]  # who was quiet for longest
        return times < self._per_interval


class Semaphore:
    """So many at once: `if not slots.take(): await slots.wait()`, and then `release`. Who waits first is served first.

    One of slots that are `within` others needs one of those as well. No coroutine is made where one is free, as nearly always.
    """

    __slots__ = ("_free", "_parent", "_waiters")

    def __init__(self, count: int, parent: Semaphore | None = None) -> None:
        self._free = count  # none is free while somebody waits: it is handed on
        self._parent = parent
        self._waiters: deque[asyncio.Future[None]] = deque()

    def acquire_nowait(self) -> bool:
        """Takes one, if one is free."""
        if not self._free or (self._parent is not None and not self._parent.acquire_nowait()):
            return False
        self._free -= 1
        return True

    async def acquire(self) -> None:
        """Takes one as soon as one is free."""
        if self._free:
            self._free -= 1
        else:
            await self._wait_for_release()
        if self._parent is not None and not self._parent.acquire_nowait():
            try:
                await self._parent.acquire()
            except asyncio.CancelledError:
                self._wake_next()
                raise

    def release(self) -> None:
        """Gives one back."""
        if self._parent is not None:
            self._parent.release()
        if self._waiters:
            self._wake_next()
        else:
            self._free += 1

    async def _wait_for_release(self) -> None:
        handed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(handed)
        try:
            await handed
        except asyncio.CancelledError:
            if not handed.cancelled():  # it was handed over at the same moment
                self._wake_next()
            raise

    def _wake_next(self) -> None:
        while self._waiters:
            handed = self._waiters.popleft()
            if not handed.cancelled():
                handed.set_result(None)
                return
        self._free += 1
