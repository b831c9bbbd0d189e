"""The HTTP server of the doors over real sockets: its start, its certificate, its health and its stop."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message

from spade_coreason.config.settings import WebSettings
from spade_coreason.doors.server import DoorRoutes, check_address
from spade_coreason.doors.streaming import EventStreamResponse
from spade_coreason.exceptions import ServerError, StoreError
from tests.support.certificates import sign_by_itself
from tests.support.doors import CALLERS, KEY, ExampleDoor, RawClient, ask, connect, request_of, run_server, serve, web_settings
from tests.support.errors import ExpectedErrors
from tests.support.wait import TIMEOUT_S, eventually

HEALTH = ("/healthz", "/readyz")
STREAMS = 100


@asynccontextmanager
async def open_streams(settings: WebSettings, count: int) -> AsyncIterator[list[RawClient]]:
    """Open streams, and read the first event of each."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(settings)) for _ in range(count)]
        for client in clients:
            await client.send(request_of("/stream"))
        for client in clients:
            await client.reader.readuntil(b"first\n\n")
        yield clients


async def test_a_request_with_a_key_reaches_its_route() -> None:
    settings = web_settings()
    async with serve(settings):
        reply = await ask(settings, "/whoami")
    assert (reply.status, json.loads(reply.body)["caller"]) == (200, "website@callers.invalid")


async def test_health_needs_no_key_and_tells_only_the_kind_of_a_problem() -> None:
    settings, door = web_settings(), ExampleDoor()
    async with serve(settings, door):
        for path in HEALTH:
            for key in (KEY, None, "wrong"):
                reply = await ask(settings, path, key=key, host="10.1.2.3:8080")  # a watching program may know another name
                assert (reply.status, json.loads(reply.body)) == (200, {"status": "ok"})
    door.problem = "database"
    async with serve(settings, door):
        replies = [await ask(settings, path, key=None) for path in HEALTH]
    assert [(reply.status, json.loads(reply.body)) for reply in replies] == [
        (200, {"status": "ok"}),
        (503, {"status": "database"}),
    ]


async def test_a_route_of_a_door_without_a_key_is_reached_by_its_whole_path_only() -> None:
    settings = web_settings()
    async with serve(settings):
        assert (await ask(settings, "/open/x", key=None)).status == 200
        for path in ("/open/x/y", "/open/x%2fy", "/x/open/x"):
            assert (await ask(settings, path, key=None)).status == 401


async def test_a_certificate_makes_it_https(tmp_path: Path) -> None:
    files = sign_by_itself(tmp_path, "localhost")
    tls = {"certificate": files.certificate, "key": files.key}
    settings = web_settings(tls=tls, limits={"header_s": 0.5})
    context = ssl.create_default_context(cafile=str(files.certificate))
    async with serve(settings) as server:
        assert server.url == f"https://127.0.0.1:{settings.port}"
        reader, writer = await asyncio.open_connection("127.0.0.1", settings.port, ssl=context, server_hostname="localhost")
        client = RawClient(reader, writer)
        await client.send(request_of("/whoami"))
        assert json.loads((await client.read_reply()).body)["scheme"] == "https"
        writer.close()
        async with connect(settings) as silent, connect(settings) as plain:
            await plain.send(request_of("/whoami"))
            assert b"HTTP" not in await plain.read_end()
            assert await silent.read_end() == b""
        await eventually(lambda: server.connections == 0)


async def test_an_address_that_cannot_be_used_is_named() -> None:
    settings = web_settings()
    async with serve(settings):
        with pytest.raises(ServerError, match=f"127.0.0.1:{settings.port} is in use; stop the program"):
            await check_address(settings)
    await check_address(settings)
    for host, problem in (("203.0.113.9", "does not belong to this machine"), ("no.such.host.invalid", "cannot be used")):
        with pytest.raises(ServerError, match=problem):
            await check_address(settings.model_copy(update={"host": host}))


async def test_it_listens_on_ipv6_too() -> None:
    settings = web_settings(host="::1")
    try:
        await check_address(settings)
    except ServerError:
        pytest.skip("this machine has no IPv6")
    async with serve(settings) as server:
        assert server.url == f"http://[::1]:{settings.port}"
        assert (await ask(settings, "/whoami", host=f"[::1]:{settings.port}")).status == 200


async def test_a_stop_lets_a_hundred_streams_end_and_refuses_what_is_new() -> None:
    settings, door = web_settings(), ExampleDoor()
    async with serve(settings, door) as server, open_streams(settings, STREAMS) as clients, connect(settings) as idle:
        await idle.send(request_of("/whoami"))
        assert (await idle.read_reply()).status == 200
        server.begin_stop()
        for client in (idle, None):
            if client is None:
                refused = await ask(settings, "/v1/whoami")
            else:
                await client.send(request_of("/v1/whoami"))
                refused = await client.read_reply()
            assert (refused.status, refused.headers["retry-after"], refused.headers["connection"]) == (503, "5", "close")
            assert json.loads(refused.body)["error"]["type"] == "server_error"
        ready = await ask(settings, "/readyz", key=None)
        assert (ready.status, json.loads(ready.body)) == (503, {"status": "stopping"})
        assert (await ask(settings, "/healthz", key=None)).status == 200
        assert door.open_streams == STREAMS
        closing = asyncio.create_task(server.close())
        door.end.set()
        async with asyncio.timeout(TIMEOUT_S):
            ends = [await client.read_end() for client in clients]
            await closing
        assert all(end.endswith(b"data: last\n\n\r\n0\r\n\r\n") for end in ends)
        assert (server.connections, door.open_streams) == (0, 0)


async def test_streams_that_do_not_end_are_cut_within_seconds() -> None:
    settings, door = web_settings(), ExampleDoor()
    async with serve(settings, door) as server, open_streams(settings, STREAMS) as clients:
        async with connect(settings) as half, connect(settings), connect(settings) as deaf:
            await half.send(b"POST /body HTTP/1.1\r\n")
            deaf.writer.transport.pause_reading()  # type: ignore[attr-defined] # the reader of a socket has it
            await deaf.send(request_of("/large"))
            await eventually(lambda: door.open_streams == STREAMS + 1)
            async with asyncio.timeout(TIMEOUT_S):
                await server.close()
                ends = [await client.read_end() for client in clients]
        assert not any(b"last" in end for end in ends)
        assert (server.connections, door.open_streams) == (0, 0)


async def test_a_client_of_https_that_does_not_let_itself_be_closed_is_cut(tmp_path: Path) -> None:
    """It neither reads nor answers the end of TLS, for which asyncio would wait as long as for a handshake."""
    files = sign_by_itself(tmp_path, "localhost")
    settings = web_settings(tls={"certificate": files.certificate, "key": files.key}, limits={"header_s": 10 * TIMEOUT_S})
    context = ssl.create_default_context(cafile=str(files.certificate))
    async with serve(settings) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", settings.port, ssl=context, server_hostname="localhost")
        client = RawClient(reader, writer)
        await client.send(request_of("/whoami"))
        assert (await client.read_reply()).status == 200
        writer.transport.pause_reading()  # type: ignore[attr-defined] # the reader of a socket has it
        async with asyncio.timeout(TIMEOUT_S):
            await server.close()
        await eventually(lambda: server.connections == 0)
        writer.transport.abort()


PROGRAM = """
import asyncio, signal, sys
from tests.support.doors import serve, web_settings
async def main():
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    settings = web_settings()
    async with serve(settings):
        print(settings.port, flush=True)
        await ended.wait()
        print("ended by its own handler", flush=True)
asyncio.run(main())
"""


async def test_it_takes_no_signals_and_prints_nothing() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(TIMEOUT_S):
        settings = WebSettings(port=int(await process.stdout.readline()))
        assert (await ask(settings, "/whoami")).status == 200
        process.send_signal(signal.SIGTERM)
        out, err = await process.communicate()
    assert (process.returncode, out, err) == (0, b"ended by its own handler\n", b"")


async def test_a_killed_server_leaves_its_port_free() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(TIMEOUT_S):
        settings = WebSettings(port=int(await process.stdout.readline()))
        async with open_streams(settings, 3):
            process.kill()
            await process.wait()
            async with serve(settings):
                assert (await ask(settings, "/whoami")).status == 200


async def test_a_request_that_needs_a_failing_database_is_to_be_sent_again(expected_errors: ExpectedErrors) -> None:
    expected_errors("cannot be read")

    async def read(request: Request) -> Response:
        raise StoreError("database: cannot be read")

    settings = web_settings()
    async with run_server(settings, CALLERS.get, DoorRoutes(routes=(Route("/stored", read),))):
        reply = await ask(settings, "/stored")
    assert (reply.status, reply.headers["retry-after"]) == (503, "5")
    assert b"database" not in reply.body


async def test_a_stream_whose_client_has_gone_before_its_first_part_is_ended() -> None:
    async def write() -> AsyncGenerator[bytes, None]:
        yield b"never sent"

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message["type"])
        await asyncio.Event().wait()

    ended: list[bool] = []
    sent: list[str] = []
    async with asyncio.timeout(TIMEOUT_S):
        await EventStreamResponse(write(), on_end=lambda: ended.append(True))({"type": "http"}, receive, send)
    assert (sent, ended) == (["http.response.start"], [True])
