"""A web server that sends exactly the bytes of a test, valid or not."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from tests.support.loopback_server import LoopbackServer

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


class WebServer(LoopbackServer):
    """A web server: `async with WebServer({"/a": page(b"…")}) as web: web.url("/a")`. `requests` are the heads."""

    def __init__(
        self,
        pages: Mapping[str, Page] | None = None,
        host: str = "127.0.0.3",
        port: int = 0,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(host, port, tls=tls)
        self.pages: dict[str, Page] = dict(pages or {})
        self.requests: list[str] = []

    def url(self, path: str = "/", host: str | None = None) -> str:
        """Return the link to a page, under any name of the host."""
        return f"http://{host or self.host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request with its page."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.requests.append(head)
        response = self.pages.get(head.split(" ")[1], page(status="404 Not Found"))
        if isinstance(response, bytes):
            writer.write(response)
            await writer.drain()
        else:
            await response(writer)
