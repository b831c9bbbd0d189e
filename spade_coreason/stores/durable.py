"""What waits until something is durable, and hears so: futures, and what follows at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

log = logging.getLogger(__name__)

Results: TypeAlias = list[tuple["asyncio.Future[Any] | None", Any]]
"""Who waits for something, and what they get: a value, or an exception."""


class Durable(asyncio.Future[bool]):
    """Done when something is durable. `then` is called at once, before whoever awaits it goes on."""

    __slots__ = ("then",)
    then: Callable[[], None] | None


def when_durable(future: asyncio.Future[bool], call: Callable[[asyncio.Future[bool]], None]) -> None:
    """Calls `call` when something is durable, ahead of what follows from it. Where that fails it may be called too."""
    if isinstance(future, Durable) and future.then is None:
        future.then = partial(call, future)
    else:
        future.add_done_callback(call)


def settle(results: Results) -> None:
    """Tells everybody who waits what they wait for."""
    for future, result in results:
        if future is None or future.done():  # nobody waits, or its waiter was cancelled
            continue
        if isinstance(result, BaseException):
            future.set_exception(result)
            continue
        future.set_result(result)
        if isinstance(future, Durable) and (then := future.then) is not None:
            future.then = None  # what holds the future does not hold a turn
            _call(then)


def _call(then: Callable[[], None]) -> None:
    try:
        then()
    except (Exception, asyncio.CancelledError):  # a fault of ours, which must not hold up whoever else waits
        log.exception("what is stored cannot be told")
