"""A platform that runs in the foreground until a signal stops it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..concurrency import handle_signals, run_until_done
from .errors import EXIT_INTERRUPTED
from .service_manager import ServiceManager
from .terminal.console import print_line, warn

if TYPE_CHECKING:
    from ..app import Platform, Supervision
    from ..config import Settings

T = TypeVar("T")

STOPPING = "Stopping: answers in progress are finished first. Press Ctrl-C again to stop at once."
_LEFTOVER_GRACE_S = 5.0


def run_agents(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine of a command in an event loop that no code of an agent ends. Ctrl-C cancels it.

    Raise `click.Abort` if a signal cancels it, and KeyboardInterrupt at a second Ctrl-C.
    """
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        task = loop.create_task(work)

        def interrupt(number: int, frame: FrameType | None) -> None:
            if task.cancelling():
                raise KeyboardInterrupt
            task.cancel()
            loop.call_soon_threadsafe(lambda: None)  # the loop may sleep

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupt)
        try:
            return run_until_done(loop, task)
        except asyncio.CancelledError:
            raise click.Abort from None
        finally:
            if signal.getsignal(signal.SIGINT) is interrupt:
                signal.signal(signal.SIGINT, signal.default_int_handler)


async def serve(
    settings: Settings,
    on_online: Callable[[Platform], None],
    *,
    is_strict: bool = True,
    supervision: Supervision | None = None,
) -> None:
    """Run the platform until SIGINT or SIGTERM, then stop it cleanly. A second SIGINT ends the process at once.

    systemd hears that the platform is ready as soon as it serves, though agents may still wait for their XMPP server.
    `on_online` is called when all agents are online. For `is_strict` and `supervision` see `Platform`. Under supervision the
    parent prints that it stops.
    """
    from ..app import Platform, trim_malloc_periodically, tune_malloc
    from ..runtime import tune_gc
    from ..xmpp import tune_tls_buffers

    tune_tls_buffers()
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    is_end_requested = False
    trimming: asyncio.Task[None] | None = None

    def end() -> None:
        nonlocal is_end_requested
        is_end_requested = True
        if task is not None:
            task.cancel()

    service_manager = ServiceManager()
    handlers = ExitStack()
    # The platform waits for signals itself later; this handler can already end its start.
    handlers.enter_context(handle_signals([signal.SIGTERM], end))
    try:
        async with Platform(settings, is_strict=is_strict, supervision=supervision) as platform:
            service_manager.report_ready()
            if platform.notice:
                warn(platform.notice)

            def report_online() -> None:
                nonlocal trimming
                tune_gc()
                tune_malloc()
                trimming = loop.create_task(trim_malloc_periodically())
                on_online(platform)

            # After `wait`, replies in progress are finished, which may take `limits.grace_s`.
            handlers.enter_context(handle_signals([signal.SIGINT], _exit_now))
            handlers.enter_context(handle_signals([signal.SIGTERM], lambda: None))
            await platform.wait(report_online)
            service_manager.report_stopping()
            if supervision is None:
                print_line(STOPPING)
        _exit_after_grace()
    except asyncio.CancelledError:
        if not is_end_requested:
            raise
    finally:
        service_manager.close()
        if trimming is not None:
            trimming.cancel()
        handlers.close()


def _exit_after_grace() -> None:
    """End the process after a grace period: everything is closed, but a thread left by an agent could run on without end."""

    def end() -> None:
        print_line("Stopped. Threads of an agent were still running, and were ended.", stream=sys.stderr)
        os._exit(0)

    timer = threading.Timer(_LEFTOVER_GRACE_S, end)
    timer.daemon = True
    timer.start()


def _exit_now() -> None:
    # Unfinished requests are on disk; a local server ends with this process.
    print_line("Stopped at once. Unanswered requests are resumed at the next start.", stream=sys.stderr)
    os._exit(EXIT_INTERRUPTED)
