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


_MOST = 32

"""Functions of one holder at work at once; one that never returns keeps its place."""


class Threads:
    """A thread of its own for each call: those of `asyncio.to_thread` are waited for at the end of the process, and few."""

    def __init__(self, most: int = _MOST) -> None:
        self._free = most

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

_left: set[asyncio.Task[Any]] = set()

"""Those that took no cancelling: a task that nobody holds may vanish."""


class TookTooLongError(Exception):
    """It did not return in time."""


async def within(limit_s: float, work: Awaitable[Any]) -> Any:
    """What `work` returns or raises; TookTooLongError after `limit_s` seconds. Cancelled, or late, it is cancelled.

    One that does not let itself be cancelled is left behind after a second. What is no Exception is a RuntimeError that
    names it: its SystemExit would end the process, and its CancelledError is not that of whoever waits.
    """
    task = asyncio.create_task(_outcome(work))
    try:
        await asyncio.wait({task}, timeout=limit_s)
    finally:
        is_late = not task.done()
        if is_late:
            await _stopped(task)
    if is_late:
        raise TookTooLongError
    result, error = task.result()
    if error is None:
        return result
    if isinstance(error, Exception):
        raise error
    raise RuntimeError(repr(error)) from error


async def _outcome(work: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    try:
        return await work, None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whoever waits gets it
        return None, error


async def _stopped(task: asyncio.Task[Any]) -> None:
    task.cancel()
    _left.add(task)
    task.add_done_callback(_left.discard)
    await asyncio.wait({task}, timeout=_CLEANUP_S)


AGAIN_S = 60.0

_REMEMBERED = 10_000


class Notices:
    """Who was told something lately, `times` a minute at most."""

    def __init__(self, times: int = 1) -> None:
        self._times = times
        self._told: dict[str, tuple[float, int]] = {}

    def may_tell(self, jid: str) -> bool:
        """Whether `jid` may be told; if so it counts as done."""
        now = asyncio.get_running_loop().time()
        since, times = self._told.pop(jid, (now, 0))
        if now >= since + AGAIN_S:
            since, times = now, 0
        self._told[jid] = since, min(times + 1, self._times)
        if len(self._told) > _REMEMBERED:
            del self._told[next(iter(self._told))]  # who was quiet for longest
        return times < self._times


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
