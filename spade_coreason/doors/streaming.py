"""Answers that take long: sent while they are made, such as server-sent events, or awaited as long as the client is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_HEADERS = {"X-Accel-Buffering": "no"}
"""nginx passes each event on at once."""


class EventStreamResponse(Response):
    """An answer in parts, which are server-sent events.

    The generator of the parts is closed at the end, and as soon as the client has gone. Starlette's `StreamingResponse` leaves
    that to the garbage collection, and needs two further tasks. `on_end` is called then, also if the client has gone before the
    first part: code in the generator would not run.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        *,
        headers: Mapping[str, str] | None = None,
        on_end: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(headers={**_HEADERS, **(headers or {})})
        del self.headers["content-length"]
        self._parts = parts
        self._on_end = on_end
        self._is_client_gone = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the parts until the last one, or until the client has gone."""
        task = asyncio.current_task()
        assert task is not None
        listener = asyncio.create_task(self._cancel_when_gone(receive, task))
        try:
            async with aclosing(self._parts):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                async for part in self._parts:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except asyncio.CancelledError:
            if not self._is_client_gone or task.uncancel():
                raise
        finally:
            listener.cancel()
            self._on_end()

    async def _cancel_when_gone(self, receive: Receive, task: asyncio.Task[object]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._is_client_gone = True
        task.cancel()


async def wait_while_connected(request: Request, waiting: Awaitable[None]) -> bool:
    """Wait for something, such as the end of a reply. Return False if the client is gone first: then the wait is cancelled.

    The body of the request must be read already.
    """
    task = asyncio.ensure_future(waiting)
    gone = asyncio.create_task(_wait_until_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return False
        task.result()
        return True
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _wait_until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
