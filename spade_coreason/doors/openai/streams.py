"""Server-sent events (HTML, 9.2), with a comment from time to time so that proxies do not cut the connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from pydantic_core import to_json

from ..streaming import EventStreamResponse

KEEP_ALIVE_S = 10.0
END = b"data: [DONE]\n\n"


def encode_event(data: Any, name: str | None = None) -> bytes:
    """Return an event, with JSON as its data."""
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + to_json(data) + b"\n\n"


def make_stream(parts: AsyncGenerator[bytes, None], headers: dict[str, str], keep_alive_s: float) -> EventStreamResponse:
    """Make the response that sends events as they come. The generator is closed when the client is gone."""
    return EventStreamResponse(_keep_alive(parts, keep_alive_s), headers=headers)


async def _keep_alive(parts: AsyncGenerator[bytes, None], every_s: float) -> AsyncGenerator[bytes, None]:
    pending: asyncio.Task[bytes | None] | None = None
    try:
        while True:
            if pending is None:
                pending = asyncio.create_task(_next(parts))
            await asyncio.wait({pending}, timeout=every_s)
            if not pending.done():
                yield b": keep-alive\n\n"
                continue
            part, pending = pending.result(), None
            if part is None:
                return
            yield part
    finally:
        if pending is not None:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)
        await parts.aclose()


async def _next(parts: AsyncGenerator[bytes, None]) -> bytes | None:
    return await anext(parts, None)
