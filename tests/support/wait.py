"""Waiting for what has to happen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PATIENCE_S = 60.0
"""Keeps a test from hanging. What takes a moment on a quiet machine may take many times as long on a busy one."""


async def eventually(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Waits for something that tells nobody when it happens."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
