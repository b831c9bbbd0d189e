"""A proxy on loopback: SOCKS5 (RFC 1928, RFC 1929), HTTP CONNECT, and requests with a whole URL (RFC 9112, section 3.2.2)."""

from __future__ import annotations

import asyncio
import struct
from base64 import b64encode
from contextlib import suppress
from urllib.parse import urlsplit

from tests.support.loopback_server import LoopbackServer

_NO_METHOD = b"\x05\xff"


class ProxyServer(LoopbackServer):
    """A proxy: `async with ProxyServer() as proxy`. All connections go to `target`, whatever host they name.

    `destinations` are the `host:port` that clients named, each with the way: "socks5", "connect" or "forward". With `login`
    (`user:password`) it refuses clients that do not name it.
    """

    def __init__(self, target: str, *, login: str = "") -> None:
        super().__init__()
        self.destinations: list[tuple[str, str]] = []
        self._target = urlsplit(target)
        self._login = login

    @property
    def address(self) -> str:
        """Its `host:port`."""
        return f"{self.host}:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Greet the client, and pass on what comes from both sides."""
        first = await reader.readexactly(1)
        begin = await (self._greet_socks(reader, writer) if first == b"\x05" else self._greet_http(first, reader, writer))
        if begin is None:
            return
        server_reader, server_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        server_writer.write(begin)
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(reader, server_writer))
            group.create_task(_copy(server_reader, writer))

    async def _greet_socks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
        methods = await reader.readexactly((await reader.readexactly(1))[0])
        method = 2 if self._login else 0
        if method not in methods:
            writer.write(_NO_METHOD)
            return None
        writer.write(bytes([5, method]))
        if self._login:
            await reader.readexactly(1)
            words = [await reader.readexactly((await reader.readexactly(1))[0]) for _ in range(2)]
            is_known = b":".join(words).decode() == self._login
            writer.write(b"\x01\x00" if is_known else b"\x01\x01")
            if not is_known:
                return None
        _, _, _, kind = await reader.readexactly(4)
        if kind == 3:
            host = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
        else:
            host = ".".join(str(byte) for byte in await reader.readexactly(4))
        [port] = struct.unpack(">H", await reader.readexactly(2))
        self.destinations.append(("socks5", f"{host}:{port}"))
        writer.write(b"\x05\x00\x00\x01" + bytes(6))
        return b""

    async def _greet_http(self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
        head = first + await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.split(b"\r\n")[0].split(b" ")
        if self._login and f"basic {b64encode(self._login.encode()).decode()}".lower() not in head.decode().lower():
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return None
        if method == b"CONNECT":
            self.destinations.append(("connect", target.decode()))
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            return b""
        url = urlsplit(target.decode())
        self.destinations.append(("forward", url.netloc))
        return head.replace(target, url.path.encode(), 1)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with suppress(ConnectionError):  # either side may leave at any point
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
    finally:
        writer.close()
