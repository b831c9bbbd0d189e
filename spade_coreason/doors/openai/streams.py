"""Server-sent events (HTML, 9.2), with a comment from time to time so that proxies do not cut the connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from pydantic_core import to_json

from ..channel import DoorEvent, DoorReply

KEEP_ALIVE_S = 10.0
END = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"


def encode_event(data: Any, name: str | None = None) -> bytes:
    """Return an event, with JSON as its data."""
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + to_json(data) + b"\n\n"


async def read_with_pauses(reply: DoorReply, pause_s: float) -> AsyncGenerator[DoorEvent | None, None]:
    """Yield the events of a reply, and None after each `pause_s` without one."""
    while True:
        try:
            async with asyncio.timeout(pause_s):
                event = await anext(reply)
        except TimeoutError:
            yield None
        except StopAsyncIteration:
            return
        else:
            reply.free()  # what is written of it is counted
            yield event
