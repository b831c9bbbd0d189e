"""The times of an agent's optional `startup()` and `shutdown()` (seed: Agent Behavior Protocols, LifecycleInterface)."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable

from ...domain.policy import StartupMode

log = logging.getLogger(__name__)


class AgentLifecycle:
    """The lifecycle of one agent, in one of two modes.

    - `eager`: the agent starts and stops with the platform.
    - `on_demand`: it starts with the first active conversation, and stops after `idle_s` seconds without any.

    `shutdown()` is cancelled after `shutdown_s` seconds.
    """

    def __init__(self, agent: object, mode: StartupMode, idle_s: float, shutdown_s: float) -> None:
        self._agent = agent
        self._mode = mode
        self._idle_s = idle_s
        self._shutdown_s = shutdown_s
        self.is_ready = False
        """True if `startup()` has run and no `shutdown()` is planned. Otherwise a turn has to call `ensure_started`."""
        self._is_started = False
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start an eager agent, before it goes online."""
        if self._mode == "eager":
            await self.ensure_started()

    async def ensure_started(self) -> None:
        """Cancel a planned `shutdown()`, and run `startup()` unless it has run.

        Exceptions of `startup()` reach the caller, and the next turn tries again.
        """
        self._cancel_timer()
        async with self._lock:
            if not self._is_started:
                await _call_hook(getattr(self._agent, "startup", None))
                self._is_started = True
            self.is_ready = True

    def on_idle(self, is_still_idle: Callable[[], bool]) -> None:
        """Plan `shutdown()` of an on-demand agent, because its last active conversation has ended."""
        if self._mode == "on_demand" and self._is_started and self._timer is None:
            loop = asyncio.get_running_loop()
            self.is_ready = False
            self._timer = loop.call_later(self._idle_s, self._begin_shutdown, is_still_idle)

    async def close(self) -> None:
        """Run `shutdown()`, after the last turn."""
        self._cancel_timer()
        if self._task is not None:
            await self._task
        await self._shut_down(lambda: True)

    def _begin_shutdown(self, is_still_idle: Callable[[], bool]) -> None:
        self._timer = None
        self._task = asyncio.create_task(self._shut_down(is_still_idle))

    async def _shut_down(self, is_still_idle: Callable[[], bool]) -> None:
        async with self._lock:
            if not self._is_started or not is_still_idle():
                return
            self._is_started = self.is_ready = False
            name = type(self._agent).__name__
            task = asyncio.create_task(_call_logging_errors(getattr(self._agent, "shutdown", None), name))
            # Not wait_for: a task that ignores its cancellation is left behind.
            _, late = await asyncio.wait({task}, timeout=self._shutdown_s)
            if late:
                task.cancel()
                log.error("shutdown() of %s took longer than %g s", name, self._shutdown_s)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def _call_logging_errors(method: Callable[[], object] | None, name: str) -> None:
    try:
        await _call_hook(method)
    except BaseException:  # sys.exit() and KeyboardInterrupt would end the whole process
        log.exception("shutdown() of %s failed", name)


async def _call_hook(method: Callable[[], object] | None) -> None:
    """Call `startup` or `shutdown`: run a coroutine function in the event loop, a plain function in a thread."""
    if method is None:
        return
    if inspect.iscoroutinefunction(method):
        await method()
        return
    result = await asyncio.to_thread(method)
    if inspect.isawaitable(result):
        await result
