"""A real HTTP server of the doors with routes of a test, and sockets to talk to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from spade_coreason.config.settings import WebSettings
from spade_coreason.domain.callers import caller_address
from spade_coreason.doors.authentication import FindCaller, caller_of
from spade_coreason.doors.caller import Caller
from spade_coreason.doors.server import DoorRoutes, WebServer
from spade_coreason.doors.streaming import EventStreamResponse
from spade_coreason.xmpp.servers.process import find_free_ports

KEY = "sc_" + "k" * 43
FRONT_END_KEY = "sc_" + "f" * 43
OTHER_KEY = "sc_" + "o" * 43
CALLERS = {
    KEY: Caller("website", caller_address("website"), "", frozenset({"echo@localhost"}), False),
    OTHER_KEY: Caller("other", caller_address("other"), "", frozenset({"echo@localhost"}), False),
    FRONT_END_KEY: Caller("chat", caller_address("chat"), "", frozenset({"echo@localhost"}), True),
}


@dataclass
class ExampleDoor:
    """A door without agents: it says who asks, counts a body, fails, and streams until it is told to end."""

    end: asyncio.Event = field(default_factory=asyncio.Event)
    problem: str | None = None
    """What keeps the platform from serving."""
    open_streams: int = 0
    streams: int = 0
    calls: int = 0

    @property
    def routes(self) -> DoorRoutes:
        """Its routes. `/open/{name}` and `/open-body` need no key."""
        return DoorRoutes(
            routes=(
                Route("/v1/whoami", self._tell_caller),
                Route("/whoami", self._tell_caller),
                Route("/body", self._count_body, methods=["POST"]),
                Route("/body", self._tell_caller, methods=["DELETE"]),
                Route("/held-body", self._hold_body, methods=["POST"]),
                Route("/unread", self._tell_caller, methods=["POST"]),
                Route("/stream", self._stream),
                Route("/large", self._send_much),
                Route("/endless", self._send_without_end),
                Route("/fail", self._fail),
            ),
            open_routes=(
                Route("/open/{name}", self._greet),
                Route("/open-body", self._count_body, methods=["POST"]),
            ),
        )

    async def find_problem(self) -> str | None:
        """Return the problem."""
        return self.problem

    async def _tell_caller(self, request: Request) -> Response:
        self.calls += 1
        client = request.client.host if request.client else ""
        facts = {"caller": caller_of(request).address, "client": client, "scheme": request.url.scheme}
        return JSONResponse(facts | {"host": request.headers["host"]})

    async def _count_body(self, request: Request) -> Response:
        return JSONResponse({"size": len(await request.body())})

    async def _hold_body(self, request: Request) -> Response:
        await request.body()
        return EventStreamResponse(self._write())

    async def _greet(self, request: Request) -> Response:
        return JSONResponse({"name": request.path_params["name"]})

    async def _fail(self, request: Request) -> Response:
        raise ValueError(f"a secret of the person: {request.headers['authorization']}")

    async def _stream(self, request: Request) -> Response:
        return EventStreamResponse(self._write())

    async def _write(self) -> AsyncGenerator[bytes, None]:
        self.open_streams += 1
        self.streams += 1
        try:
            yield b"data: first\n\n"
            await self.end.wait()
            yield b"data: last\n\n"
        finally:
            self.open_streams -= 1

    async def _send_much(self, request: Request) -> Response:
        return EventStreamResponse(self._write_much())

    async def _send_without_end(self, request: Request) -> Response:
        async def write() -> AsyncGenerator[bytes, None]:
            while True:
                yield bytes(65_536)

        return StreamingResponse(write())

    async def _write_much(self) -> AsyncGenerator[bytes, None]:
        self.open_streams += 1
        self.streams += 1
        try:
            while True:
                yield bytes(65_536)
        finally:
            self.open_streams -= 1


def web_settings(**keys: Any) -> WebSettings:
    """Return settings of a server at a free port."""
    return WebSettings.model_validate({"port": find_free_ports(1)[0], **keys})


async def _find_no_problem() -> str | None:
    return None


@asynccontextmanager
async def run_server(
    settings: WebSettings,
    find_caller: FindCaller,
    *routes: DoorRoutes,
    find_problem: Callable[[], Awaitable[str | None]] = _find_no_problem,
) -> AsyncIterator[WebServer]:
    """Run a server with routes."""
    server = WebServer(settings, find_caller, find_problem, routes)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def serve(settings: WebSettings, door: ExampleDoor | None = None) -> AsyncIterator[WebServer]:
    """Run a server with the example door."""
    door = door or ExampleDoor()
    async with run_server(settings, CALLERS.get, door.routes, find_problem=door.find_problem) as server:
        yield server


@dataclass(frozen=True)
class Reply:
    """An answer of the server."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class RawClient:
    """One connection, on which a test writes any bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Write bytes."""
        self.writer.write(data)
        await self.writer.drain()

    async def read_head(self) -> Reply:
        """Read the head of an answer."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return Reply(int(first.split()[1]), headers, b"")

    async def read_reply(self) -> Reply:
        """Read an answer with a length."""
        head = await self.read_head()
        body = await self.reader.readexactly(int(head.headers["content-length"]))
        return Reply(head.status, head.headers, body)

    async def read_end(self) -> bytes:
        """Read until the server closes the connection."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""


@asynccontextmanager
async def connect(settings: WebSettings) -> AsyncIterator[RawClient]:
    """Connect to a server."""
    reader, writer = await asyncio.open_connection(settings.host, settings.port)
    try:
        yield RawClient(reader, writer)
    finally:
        writer.close()


def request_of(
    path: str, *headers: str, method: str = "GET", key: str | None = KEY, host: str = "localhost", body: bytes = b""
) -> bytes:
    """Return the bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", *([f"Host: {host}"] if host else [])]
    lines += [f"Authorization: Bearer {key}"] if key else []
    lines += [*headers, *([f"Content-Length: {len(body)}"] if body else [])]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


async def ask(settings: WebSettings, path: str, *headers: str, **options: Any) -> Reply:
    """Send one request on a connection of its own, and return the answer."""
    async with connect(settings) as client:
        await client.send(request_of(path, *headers, **options))
        return await client.read_reply()
