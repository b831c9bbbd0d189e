"""Who hears that something is durable: futures, and what follows at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeAlias

log = logging.getLogger(__name__)

Then: TypeAlias = Callable[[Any], None]
"""Called with the result of a write in the moment in which it is durable, before whoever awaits it goes on.

It is not called where the write failed, or whoever waited was cancelled.
"""
Results: TypeAlias = "list[tuple[asyncio.Future[Any] | None, Any, Then | None]]"
"""Who waits for something, what they get, a value or an exception, and what follows from a value."""


def settle(results: Results) -> None:
    """Tells everybody who waits what they wait for. Of that nothing is left in `results`, which the writer may still hold."""
    for future, result, then in results:
        if future is None or future.done():  # nobody waits, or its waiter was cancelled
            continue
        if isinstance(result, BaseException):
            future.set_exception(result)
            continue
        future.set_result(result)
        if then is not None:
            try:
                then(result)
            except (Exception, asyncio.CancelledError):  # a fault of ours, which must not hold up whoever else waits
                log.exception("what is stored cannot be told")
    results.clear()
