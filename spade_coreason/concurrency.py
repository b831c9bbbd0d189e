"""Tools for asyncio: a loop that goes on, timers, deadlines, threads, a rate limiter, a semaphore, a lock."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

CANCEL_GRACE_S = 3.0
"""Time in seconds that cancelled work has to end before it is abandoned."""

BLOCKED_S = 1.0
"""Time in seconds after which the log warns about work that blocks the event loop."""


_NOWHERE = memoryview(bytearray(8)).cast("Q")
CURRENT_HOLDER: ContextVar[tuple[memoryview, int]] = ContextVar("CURRENT_HOLDER", default=(_NOWHERE, 0))
"""The place for the number of the work that holds the event loop, and the number of this work.

`Deadline` and `run_with_timeout` write the number there during each step of the work, and 0 after it. So it can be read when a
step does not return.
"""


async def cancel_tasks(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks, and wait until they have ended. Their results and errors are dropped; None is none."""
    begun = list(filter(None, tasks))
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)


class Tasks:
    """The tasks of one owner. An error of one is logged, as `failure`."""

    def __init__(self, failure: str = "a background task failed; the agents are not affected") -> None:
        self._failure = failure
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_stopped = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any] | None:
        """Begin work, unless it is stopped."""
        if self._is_stopped:
            work.close()
            return None
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def cancel(self) -> None:
        """Cancel what runs, and wait for that."""
        await cancel_tasks(*self._tasks)

    async def wait(self) -> None:
        """Wait until what runs has ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Cancel what runs, and wait for that. Nothing begins from then on."""
        self._is_stopped = True
        await self.cancel()

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(self._failure, exc_info=error)


class Timer:
    """A timer that calls a function once after each start."""

    def __init__(self) -> None:
        self.handle: asyncio.TimerHandle | None = None
        """None while it does not run."""

    def start(self, delay_s: float, callback: Callable[..., object], *arguments: Any) -> None:
        """Call a function in `delay_s` seconds. What was to be called before is not."""
        self.cancel()
        self.handle = asyncio.get_running_loop().call_later(delay_s, self._run, callback, *arguments)

    def cancel(self) -> None:
        """Stop, if it runs."""
        if self.handle is not None:
            self.handle.cancel()
            self.handle = None

    def _run(self, callback: Callable[..., object], *arguments: Any) -> None:
        self.handle = None
        callback(*arguments)


class TimerGroup:
    """Many callbacks after the same delay, on one timer of the event loop.

    Waits of one length end in the order in which they began, so one timer serves all of them. `loop.call_later` makes a handle
    for each callback and sorts it into a heap: three per cent of the instructions of a turn, which nearly always ends long
    before its timers.
    """

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self._due_times: dict[Callable[[], None], float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def schedule(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, in `delay_s` seconds. It must not be scheduled already."""
        if (loop := self._loop) is None:
            loop = self._loop = asyncio.get_running_loop()  # Python 3.11 asks the system for each call of this
        self._due_times[callback] = loop.time() + self.delay_s
        if self._timer is None:
            self._timer = loop.call_later(self.delay_s, self._run_due)

    def cancel(self, callback: Callable[[], None]) -> None:
        """Cancel `callback`, if it has not been called yet."""
        self._due_times.pop(callback, None)

    def cancel_all(self) -> None:
        """Cancel all callbacks."""
        self._due_times.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run_due(self) -> None:
        now = asyncio.get_running_loop().time()
        try:
            # `_timer` stays set meanwhile: a callback that schedules another must not start a timer, which may be too late.
            while self._due_times:
                callback, when = next(iter(self._due_times.items()))
                if when > now:
                    break
                del self._due_times[callback]
                callback()
        finally:
            self._restart_timer()

    def _restart_timer(self) -> None:
        """Let the timer run until the first callback is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due_times:
            first = next(iter(self._due_times.values()))
            self._timer = asyncio.get_running_loop().call_at(first, self._run_due)


class DeadlineTimers(TimerGroup):
    """The timers of all deadlines for one kind of work, of `delay_s` each.

    The log warns about work that blocks the event loop for `blocked_s`, and names it `work_name`; by default its own name.
    """

    def __init__(self, delay_s: float, work_name: str = "", blocked_s: float = BLOCKED_S) -> None:
        super().__init__(delay_s)
        self.work_name = work_name
        self.blocked_s = blocked_s
        self.abandons_cancelled = False
        """True after `abandon_all`: work is abandoned as soon as its task is cancelled."""

    def abandon_all(self) -> None:
        """Cancel all timers. From now on, work is abandoned as soon as its task is cancelled."""
        self.cancel_all()
        self.abandons_cancelled = True


class Deadline:
    """The time limit of one piece of work: `await Deadline(timers).run(work)` takes at most `timers.delay_s`; 0 is no limit.

    The time counts from the first wait of the work. `asyncio.wait_for` would do the same, but wait for work that swallows its
    cancellation. Such work is abandoned here if it has not ended after another `cancel_grace_s` seconds. It runs in the
    task of the caller: with one of its own, as in `run_with_timeout`, a turn takes 15 per cent more instructions. A block under
    `async with` cannot be abandoned, so the work is an argument.

    `task` is the running task, if the caller knows it.
    """

    __slots__ = ("_cancel_count", "_cancel_grace_s", "_second_cancel", "_task", "_timers")

    def __init__(
        self, timers: DeadlineTimers, task: asyncio.Task[Any] | None = None, cancel_grace_s: float = CANCEL_GRACE_S
    ) -> None:
        self._timers = timers
        self._task = task
        self._cancel_grace_s = cancel_grace_s
        self._cancel_count = 0  # how often this deadline cancelled the task; the second time the work is abandoned
        self._second_cancel: asyncio.TimerHandle | None = None

    @property
    def has_expired(self) -> bool:
        """True if the work took too long."""
        return self._cancel_count > 0

    @types.coroutine
    def run(self, work: Awaitable[T]) -> Generator[Any, Any, T]:
        """Await `work` and return its result. Raise TimeoutError if it takes too long.

        The log warns about work that blocks the event loop.
        """
        task = self._task = self._task or asyncio.current_task()
        if task is None:
            raise RuntimeError("a Deadline needs a running task")
        before = task.cancelling()
        steps: Any = work.__await__()
        is_limited = False
        error: BaseException | None = None
        place, number = CURRENT_HOLDER.get()
        try:
            while True:
                started_at = time.monotonic()
                place[0] = number
                try:
                    awaited = next(steps) if error is None else steps.throw(error)
                except StopIteration as end:
                    value: T = end.value
                    return value
                finally:
                    place[0] = 0
                    if (blocked_s := time.monotonic() - started_at) > self._timers.blocked_s:
                        _warn_blocked_loop(self._timers.work_name or getattr(work, "__qualname__", "what runs"), blocked_s)
                error = None
                if not is_limited and self._timers.delay_s > 0:  # work that waits for nothing costs no timer
                    is_limited = True
                    self._timers.schedule(self._expire)
                try:
                    yield awaited
                except BaseException as thrown:
                    if self._cancel_count > 1 or self._timers.abandons_cancelled:
                        self._abandon(steps)
                        raise
                    error = thrown
        except asyncio.CancelledError as cancelled:
            # Our own cancellation ends here; one by other code at the same time travels on.
            if self._cancel_count and task.cancelling() - self._cancel_count <= before:
                raise TimeoutError from cancelled
            raise
        finally:
            if is_limited:
                self._timers.cancel(self._expire)
            if self._second_cancel is not None:
                self._second_cancel.cancel()
                for _ in range(self._cancel_count):
                    task.uncancel()

    def _abandon(self, generator: Any) -> None:
        try:
            generator.close()
        except RuntimeError:  # it swallows even GeneratorExit
            log.error("a task that was cancelled does not end; it is abandoned")

    def _expire(self) -> None:
        self._second_cancel = asyncio.get_running_loop().call_later(self._cancel_grace_s, self._cancel)
        self._cancel()

    def _cancel(self) -> None:
        self._cancel_count += 1
        if self._task is not None:
            self._task.cancel()


def _warn_blocked_loop(work_name: str, blocked_s: float) -> None:
    log.warning("%s blocked the event loop for %.1f s; run blocking code with asyncio.to_thread", work_name, blocked_s)


def run_until_done(loop: asyncio.AbstractEventLoop, task: asyncio.Task[T]) -> T:
    """Run the event loop until a task is done, and return its result or raise its error. No other code ends the loop before.

    asyncio leaves the loop at a SystemExit or KeyboardInterrupt of any task or callback, and at `loop.stop()`. Such an end is
    logged, and the loop goes on. A KeyboardInterrupt does end it while `task` is being cancelled: it is the second Ctrl-C.
    """
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt, RuntimeError) as error:
            if task.done() or loop.is_closed() or (isinstance(error, KeyboardInterrupt) and task.cancelling()):
                raise
            log.error("code of an agent tried to end the process, which goes on", exc_info=error)


@contextmanager
def handle_signals(numbers: Iterable[signal.Signals], callback: Callable[[], object]) -> Iterator[None]:
    """Call `callback` in the running event loop when one of these signals arrives in the block. Use it in the main thread.

    After the block the earlier handlers are back at once. `loop.remove_signal_handler` sets Python's own, which would raise
    KeyboardInterrupt or end the process until others are set.
    """
    loop = asyncio.get_running_loop()
    earlier = {number: signal.signal(number, lambda *_: loop.call_soon_threadsafe(callback)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler or signal.SIG_DFL)


_MAX_THREADS = 32
"""The most functions of one owner that run at once. A function that never returns occupies its place."""


class DaemonThreads:
    """Daemon threads, a new one for each call: `await threads.run(function, *args, **kwargs)`.

    It works like `asyncio.to_thread`, except that a function which never returns delays no other code: the threads of asyncio
    are few, and the process waits for them when it ends.
    """

    def __init__(self, max_threads: int = _MAX_THREADS) -> None:
        self._free = max_threads

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` in a thread, and return its result or raise its error.

        If the caller is cancelled, the call continues and its result is dropped. Raise RuntimeError if too many calls run.
        """
        if not self._free:
            raise RuntimeError("too many earlier calls have not returned")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        call = partial(copy_context().run, function, *args, **kwargs)
        self._free -= 1

        def settle(result: Any, error: BaseException | None) -> None:
            self._free += 1
            if done.cancelled():
                return
            if error is None:
                done.set_result(result)
            elif isinstance(error, Exception) and not isinstance(error, StopIteration):
                done.set_exception(error)
            else:  # a sys.exit() in the thread must not end the process, and a future accepts no StopIteration
                done.set_exception(RuntimeError(repr(error)))

        def work() -> None:
            result, problem = None, None
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - the awaiting caller gets it
                problem = error
            with suppress(RuntimeError):  # the loop is closed, so no caller waits any more
                loop.call_soon_threadsafe(settle, result, problem)

        threading.Thread(target=work, name="tool", daemon=True).start()
        return await done


_CLEANUP_S = 1.0

_abandoned_tasks: set[asyncio.Task[Any]] = set()
"""Tasks that did not end when they were cancelled. A task without a reference may be garbage-collected."""


class DeadlineExceededError(TimeoutError):
    """The work did not return in time. A TimeoutError that the work itself raises is another one."""


async def run_with_timeout(work: Awaitable[T], timeout_s: float) -> T:
    """Await `work` in a task of its own, and return its result or raise its error.

    If the time is up or the caller is cancelled, `work` is cancelled, and abandoned if it has not ended a second later.
    `asyncio.wait_for` would wait for it without end if it swallows its cancellation.

    Raises DeadlineExceededError after `timeout_s` seconds, and RuntimeError for a BaseException of `work` that is not an
    Exception: a SystemExit or KeyboardInterrupt would end the process, and a CancelledError would look like a cancellation
    of the caller.
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
        return cast(T, result)
    if isinstance(error, Exception):
        raise error
    raise RuntimeError(repr(error)) from error


async def _capture_outcome(work: Awaitable[T]) -> tuple[T | None, BaseException | None]:
    # As a value, because asyncio logs an error of abandoned work that nobody retrieves.
    try:
        return await _mark_steps(work), None
    except BaseException as error:  # noqa: BLE001 - the awaiting caller gets it
        return None, error


@types.coroutine
def _mark_steps(work: Awaitable[T]) -> Generator[Any, Any, T]:
    """Await `work` as a part of the work that `CURRENT_HOLDER` names."""
    place, number = CURRENT_HOLDER.get()
    steps: Any = work.__await__()
    error: BaseException | None = None
    while True:
        place[0] = number
        try:
            awaited = next(steps) if error is None else steps.throw(error)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            place[0] = 0
        error = None
        try:
            yield awaited
        except BaseException as thrown:  # noqa: BLE001 - the work gets it
            error = thrown


async def _cancel_or_abandon(task: asyncio.Task[Any]) -> None:
    task.cancel()
    _abandoned_tasks.add(task)
    task.add_done_callback(_abandoned_tasks.discard)
    await asyncio.wait({task}, timeout=_CLEANUP_S)


RATE_INTERVAL_S = 60.0

_MAX_RATE_KEYS = 10_000


class RateLimiter:
    """A limit of `per_minute` actions for each key. It remembers the most recent 10,000 keys.

    Asyncio has none. Its semaphore would delay an action above the limit, which is dropped here.
    """

    def __init__(self, per_minute: int = 1) -> None:
        self._per_minute = per_minute
        self._counts: dict[str, tuple[float, int]] = {}

    def allow(self, key: str, amount: int = 1) -> bool:
        """Return True if the action is allowed for `key` now, and count it as `amount` actions."""
        now = asyncio.get_running_loop().time()
        since, count = self._counts.pop(key, (now, 0))
        if now >= since + RATE_INTERVAL_S:
            since, count = now, 0
        self._counts[key] = since, min(count + amount, self._per_minute)
        if len(self._counts) > _MAX_RATE_KEYS:
            del self._counts[next(iter(self._counts))]  # the key that was used least recently
        return count < self._per_minute

    def is_exceeded(self, key: str) -> bool:
        """Return True if the next action for `key` would not be allowed now. Counts nothing."""
        if key not in self._counts:
            return False
        since, count = self._counts[key]
        return count >= self._per_minute and asyncio.get_running_loop().time() < since + RATE_INTERVAL_S


class Semaphore:
    """A semaphore that serves waiting callers in their order: `async with semaphore:`.

    A slot of a semaphore with a `parent` also takes a slot of the parent. Two semaphores of asyncio, one inside the other,
    would do the same, for 1.4 per cent more instructions of a turn.
    """

    __slots__ = ("__weakref__", "_free", "_parent", "_waiters")

    def __init__(self, count: int, parent: Semaphore | None = None) -> None:
        self._free = count  # 0 while a caller waits: a released slot is handed to the first of them
        self._parent = parent
        self._waiters: deque[asyncio.Future[None]] | None = None  # an empty one would take 600 bytes

    async def __aenter__(self) -> None:
        if not self.acquire_nowait():
            await self.acquire()

    async def __aexit__(self, *exc_info: object) -> None:
        self.release()

    def acquire_nowait(self) -> bool:
        """Take a slot if one is free, and return True if so."""
        if not self._free or (self._parent is not None and not self._parent.acquire_nowait()):
            return False
        self._free -= 1
        return True

    async def acquire(self) -> None:
        """Wait for a free slot and take it. Every slot must be given back with `release`."""
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
        """Give a slot back."""
        if self._parent is not None:
            self._parent.release()
        if self._waiters:
            self._wake_next()
        else:
            self._free += 1

    async def _wait_for_release(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = deque()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # it got a slot at the same moment
                self._wake_next()
            raise

    def _wake_next(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.cancelled():
                waiter.set_result(None)
                return
        self._free += 1


class LoopLock:
    """A lock for tasks of any event loop: `async with lock:`. It serves them in their order, and each loop for itself.

    A lock of asyncio belongs to the first loop in which a task waits for it. An object that outlives `asyncio.run`, or that
    loops in several threads share, could not be used again.
    """

    __slots__ = ("_locks",)

    def __init__(self) -> None:
        self._locks: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        lock = self._locks.get(loop)
        if lock is None:
            for other in list(self._locks):
                if other.is_closed():
                    self._locks.pop(other, None)
            lock = self._locks[loop] = asyncio.Lock()
        await lock.acquire()

    async def __aexit__(self, *exc_info: object) -> None:
        self._locks[asyncio.get_running_loop()].release()
