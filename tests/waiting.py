"""Waiting for what has to happen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def eventually(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Waits for something that tells nobody when it happens."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
