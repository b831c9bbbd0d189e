"""Somebody else's coroutine within a time: its result, or its error, whatever it does about it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

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
