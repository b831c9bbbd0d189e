"""Running a platform in the foreground, until a signal ends it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from prompt_toolkit.utils import get_cwidth

from .chat.commands import render_columns
from .console import paint, terminal_width, warn
from .errors import EXIT_INTERRUPTED
from .wrapping import wrap_hanging

if TYPE_CHECKING:
    from ..app import Platform
    from ..config import Settings


_COLUMN = 14


def print_agents(agents: Sequence[tuple[str, str]]) -> None:
    """JIDs and descriptions, a line each."""
    title = "Agents"
    lines = render_columns(agents, terminal_width(), f"{title:<{_COLUMN}}", " " * _COLUMN)
    print(f"{paint(title, 'bold')}{lines.removeprefix(title)}", flush=True)


def print_model(line: str) -> None:
    """What answers as a language model; nothing where there is none to speak of."""
    if line:
        print(
            wrap_hanging(f"{'Model':<{_COLUMN}}", line, terminal_width()).replace("Model", paint("Model", "bold"), 1),
            flush=True,
        )


def print_guest(jid: str, agents: int) -> None:
    """Who talks with that many agents, and the keys for it: in one line, or in two where that is too long."""
    who, keys = (
        f"{'You are':<{_COLUMN}}{jid}.",
        f"{'Tab changes the agent, ' if agents > 1 else ''}/help shows more, Ctrl-D leaves.",
    )
    width = terminal_width()
    fits = width is None or get_cwidth(f"{who}  {keys}") < width
    print(f"{who}  {keys}\n" if fits else f"{who}\n{wrap_hanging(' ' * _COLUMN, keys, width)}\n", flush=True)


_LEFTOVER_GRACE_S = 5.0


async def serve(settings: Settings, on_online: Callable[[Platform], None]) -> None:
    """Runs the platform until SIGINT or SIGTERM, and stops it cleanly; a second SIGINT ends the process at once.

    `on_online` is called when all agents are.
    """
    from ..app import Platform, tune_gc

    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    asked_to_end = False

    def end() -> None:
        nonlocal asked_to_end
        asked_to_end = True
        if task is not None:
            task.cancel()

    # Until the platform waits for signals itself, also the start can be ended.
    loop.add_signal_handler(signal.SIGTERM, end)
    try:
        async with Platform(settings) as platform:
            if platform.notice:
                warn(platform.notice)
            tune_gc()
            on_online(platform)
            await platform.wait()
            # From here on the answers in flight are finished, which may take `limits.grace_s`.
            loop.add_signal_handler(signal.SIGINT, _exit_now)
            print("Stopping: answers in flight are finished. Ctrl-C again stops at once.", flush=True)
            loop.add_signal_handler(signal.SIGTERM, lambda: None)
        _exit_after_grace()
    except asyncio.CancelledError:
        if not asked_to_end:
            raise
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _exit_after_grace() -> None:
    """Everything is closed. A thread that an agent left behind would keep the process for as long as it likes."""

    def end() -> None:
        print("Stopped; something that an agent began still ran.", file=sys.stderr, flush=True)
        os._exit(0)

    timer = threading.Timer(_LEFTOVER_GRACE_S, end)
    timer.daemon = True
    timer.start()


def _exit_now() -> None:
    # What was not finished is on disk; a local server ends with this process.
    print("Stopped at once; what is unanswered is taken up at the next start.", file=sys.stderr, flush=True)
    os._exit(EXIT_INTERRUPTED)


def print_platform(platform: Platform) -> None:
    """The server and the agents, a line each."""
    print(f"{paint('XMPP server', 'bold')}   {platform.server_line}")
    if platform.agent_descriptions:
        pass  # MOVED

        print_agents(platform.agent_descriptions)
    sys.stdout.flush()
