"""A web server that sends exactly the bytes of a test, valid or not."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import TypeAlias

Page: TypeAlias = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]


def page(body: bytes = b"", *headers: str, status: str = "200 OK") -> bytes:
    """Build a whole response; a `Content-Length` among the headers replaces the true one."""
    lines = [f"HTTP/1.1 {status}", *headers]
    if not any(header.lower().startswith(("content-length", "transfer-encoding")) for header in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def redirect(target: str, status: str = "302 Found") -> bytes:
    """Build a response that redirects to another URL."""
    return page(b"", f"Location: {target}", status=status)


class WebServer:
    """A web server: `async with WebServer({"/a": page(b"…")}) as web: web.url("/a")`. `requests` are the heads."""

    def __init__(
        self,
        pages: Mapping[str, Page] | None = None,
        host: str = "127.0.0.3",
        port: int = 0,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.pages: dict[str, Page] = dict(pages or {})
        self.requests: list[str] = []
        self.host = host
        self.port = port
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> WebServer:
        self._server = await asyncio.start_server(self._accept, self.host, self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def url(self, path: str = "/", host: str | None = None) -> str:
        """Return the link to a page, under any name of the host."""
        return f"http://{host or self.host}:{self.port}{path}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.requests.append(head)
            response = self.pages.get(head.split(" ")[1], page(status="404 Not Found"))
            if isinstance(response, bytes):
                writer.write(response)
                await writer.drain()
            else:
                await response(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has disconnected
        finally:
            writer.close()
