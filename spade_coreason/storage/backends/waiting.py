"""Plain code that waits for the database without blocking the event loop.

SQLAlchemy runs its own plain code so: in a greenlet, which can be left in the middle of a call and be continued later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from sqlalchemy.util import await_only, greenlet_spawn
from sqlalchemy.util.concurrency import in_greenlet

T = TypeVar("T")


async def run_waiting(work: Callable[[], T]) -> T:
    """Run `work` on the event loop. It may call `wait_for`; other tasks run then."""
    return await greenlet_spawn(work)


def can_wait() -> bool:
    """Return True if `run_waiting` runs the caller."""
    return in_greenlet()


def wait_for(awaitable: Awaitable[T]) -> T:
    """Wait, and return the result. Only code that `run_waiting` runs may do this."""
    return await_only(awaitable)
