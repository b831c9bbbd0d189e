"""Waits with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

TIMEOUT_S = 60.0
"""The deadline in seconds that keeps a test from hanging; long, because a busy machine can be many times slower."""
ANSWER_S = 5 * TIMEOUT_S
"""The deadline of one request of a test that kills processes: after each start, many are under way at once."""


async def eventually(condition: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
    """Poll a condition that has no event; raise TimeoutError after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)


def wait_until(condition: Callable[[], bool], problem: str, timeout_s: float = TIMEOUT_S) -> None:
    """Poll a condition outside of an event loop; fail with `problem` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, problem
        time.sleep(0.01)
