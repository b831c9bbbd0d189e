"""Answers that take long: sent while they are made, such as server-sent events, or awaited as long as the client is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

_HEADERS = {"X-Accel-Buffering": "no"}
"""nginx passes each event on at once."""
_WATCH_AFTER_S = 0.2
"""The time of an answer before its client is watched: most answers are there earlier."""


class EventStreamResponse(StreamingResponse):
    """An answer in parts, which are server-sent events.

    The generator of the parts is closed at the end, and as soon as the client has gone. `on_end` is called then, also if the
    client has gone before the first part: code in the generator would not run.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        *,
        headers: Mapping[str, str] | None = None,
        on_end: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(parts, headers={**_HEADERS, **(headers or {})})
        self._parts = parts
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the parts until the last one, or until the client has gone."""
        try:
            async with aclosing(self._parts):
                await super().__call__(scope, receive, send)
        finally:
            self._on_end()


async def wait_while_connected(request: Request, waiting: Awaitable[None]) -> bool:
    """Wait for something, such as the end of a reply. Return False if the client is gone first: then the wait is cancelled.

    The body of the request must be read already.
    """
    loop, listeners = asyncio.get_running_loop(), list[asyncio.Task[None]]()
    try:
        async with asyncio.timeout(None) as limit:
            watch = loop.call_later(_WATCH_AFTER_S, lambda: listeners.append(loop.create_task(_end_when_gone(request, limit))))
            try:
                await waiting
            finally:
                watch.cancel()
                for listener in listeners:
                    listener.cancel()
    except TimeoutError:
        if not limit.expired():
            raise
        return False
    return True


async def _end_when_gone(request: Request, limit: asyncio.Timeout) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    limit.reschedule(asyncio.get_running_loop().time())
