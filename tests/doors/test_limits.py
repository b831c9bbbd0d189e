"""The limits of requests and connections, and requests whose length is ambiguous, over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import json
import resource
import subprocess
import sys
from contextlib import AsyncExitStack

import pytest

from spade_coreason.config.settings import WebSettings
from tests.support.doors import KEY, OTHER_KEY, ExampleDoor, RawClient, ask, connect, request_of, serve, web_settings
from tests.support.wait import TIMEOUT_S, eventually

SMALL = {"body_bytes": 4096, "header_bytes": 2048}


async def read_closed(client: RawClient) -> bytes:
    """Return what comes until the server closes the connection; fail if it does not."""
    async with asyncio.timeout(TIMEOUT_S):
        return await client.read_end()


async def test_a_body_up_to_the_limit_is_read() -> None:
    settings = web_settings(limits=SMALL)
    async with serve(settings):
        reply = await ask(settings, "/body", method="POST", body=bytes(4096))
        assert (reply.status, json.loads(reply.body)) == (200, {"size": 4096})
        assert "connection" not in reply.headers


@pytest.mark.parametrize("path", ["/body", "/v1/whoami", "/unread"])
async def test_a_body_that_is_announced_as_too_large_is_refused(path: str) -> None:
    settings = web_settings(limits=SMALL)
    async with serve(settings), connect(settings) as client:
        await client.send(request_of(path, "Content-Length: 99999999999", method="POST"))
        reply = await client.read_reply()
        assert (reply.status, reply.headers["connection"]) == (413, "close")
        error = json.loads(reply.body)["error"]
        assert error["message"] == "the body has more than 4,096 bytes, the limit web.limits.body_bytes; send less"
        assert ("type" in error) == path.startswith("/v1")


async def test_a_body_without_a_length_is_refused_when_it_becomes_too_large() -> None:
    settings = web_settings(limits=SMALL)
    async with serve(settings) as server, connect(settings) as client:
        await client.send(request_of("/body", "Transfer-Encoding: chunked", method="POST"))
        for _ in range(5):
            await client.send(b"400\r\n" + bytes(1024) + b"\r\n")
        reply = await client.read_reply()
        assert (reply.status, reply.headers["connection"]) == (413, "close")
        await client.send(b"0\r\n\r\n")
        await read_closed(client)
        await eventually(lambda: server.connections == 0)


async def test_a_client_that_sends_first_and_reads_afterwards_sees_why_it_is_refused() -> None:
    settings = web_settings(limits=SMALL)
    async with serve(settings):
        for key in (KEY, None):
            reply = await ask(settings, "/body", method="POST", body=bytes(12_000_000), key=key)
            assert reply.status == 413
    roomy = web_settings()
    async with serve(roomy):
        reply = await ask(roomy, "/body", method="POST", body=bytes(12_000_000), key=None)
    assert (reply.status, reply.headers["connection"]) == (401, "close")


async def test_a_compressed_body_is_not_unpacked() -> None:
    bomb = gzip.compress(bytes(1_000_000))
    settings = web_settings(limits=SMALL)
    async with serve(settings):
        for encoding in ("gzip", "deflate", "br", "zstd", "identity, gzip"):
            reply = await ask(settings, "/body", f"Content-Encoding: {encoding}", method="POST", body=bomb)
            assert reply.status == 415
        reply = await ask(settings, "/body", "Content-Encoding: identity", method="POST", body=bomb)
        assert (reply.status, json.loads(reply.body)) == (200, {"size": len(bomb)})
        assert (await ask(settings, "/body", "Transfer-Encoding: gzip", method="POST")).status == 400


async def test_all_bodies_together_are_limited() -> None:
    settings = web_settings(limits={"body_bytes": 100_000, "requests_per_key": 100})
    async with serve(settings), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(settings)) for _ in range(20)]
        for number, client in enumerate(clients):
            key = KEY if number % 2 else OTHER_KEY
            await client.send(request_of("/body", "Content-Length: 100000", method="POST", key=key) + bytes(99_999))
        refused = await asyncio.wait_for(asyncio.wait([asyncio.create_task(c.read_reply()) for c in clients], timeout=2), 60)
        replies = [task.result() for task in refused[0]]
        for task in refused[1]:
            task.cancel()
        assert {reply.status for reply in replies} == {503}
        assert 0 < len(replies) < 8


async def test_the_bodies_of_one_key_do_not_keep_out_another_key() -> None:
    """A body counts until its answer is complete, also one in a stream, since the request is in memory until then."""
    settings = web_settings(limits={"body_bytes": 100_000, "requests_per_key": 100})
    async with serve(settings) as server, AsyncExitStack() as stack:
        requests = server._app
        for number in range(1, 10):
            client = await stack.enter_async_context(connect(settings))
            await client.send(request_of("/held-body", "Content-Length: 100000", method="POST") + bytes(100_000))
            if number < 9:
                assert (await client.read_head()).status == 200
                assert requests.pending_bytes == number * 100_000
        assert (await client.read_reply()).status == 503
        assert (await ask(settings, "/body", method="POST", key=OTHER_KEY, body=bytes(100_000))).status == 200
        assert (await ask(settings, "/whoami")).status == 200
    assert requests.pending_bytes == 0


async def test_headers_that_are_too_large_are_refused() -> None:
    settings = web_settings(limits=SMALL)
    many = [f"X-{number}: {'x' * 50}" for number in range(60)]
    async with serve(settings):
        for headers, path in ((["X: " + "x" * 5000], "/whoami"), (many, "/whoami"), ([], "/" + "x" * 5000)):
            async with connect(settings) as client:
                await client.send(request_of(path, *headers))
                assert (await client.read_reply()).status == 431
        async with connect(settings) as client:  # without an end
            await client.send(b"GET /whoami HTTP/1.1\r\nX: " + b"x" * 5000)
            assert (await client.read_reply()).status == 431
            await read_closed(client)


async def test_slow_headers_are_refused() -> None:
    settings = web_settings(limits={"header_s": 0.3})
    async with serve(settings) as server:
        async with connect(settings) as silent, connect(settings) as slow:
            await slow.send(b"GET /healthz HTTP/1.1\r\n")

            async def drip() -> None:
                for byte in b"Host: localhost\r\nX: " + b"x" * 1000:
                    await slow.send(bytes([byte]))
                    await asyncio.sleep(0.05)

            dripping = asyncio.create_task(drip())
            assert (await slow.read_reply()).status == 408
            assert await read_closed(silent) == b""
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)
        async with connect(settings) as second:  # the next request on a connection has no more time
            await second.send(request_of("/healthz"))
            assert (await second.read_reply()).status == 200
            await second.send(b"GET /healthz HTTP/1.1\r\n")
            assert (await second.read_reply()).status == 408
        await eventually(lambda: server.connections == 0)


async def test_a_slow_body_is_refused() -> None:
    settings = web_settings(limits={"body_s": 0.3})
    async with serve(settings), connect(settings) as client:
        await client.send(request_of("/body", "Content-Length: 1000", method="POST"))

        async def drip() -> None:
            while True:
                await client.send(b"x")
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        reply = await client.read_reply()
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)
    assert (reply.status, reply.headers["connection"]) == (408, "close")


async def test_a_request_that_has_come_may_take_any_time() -> None:
    settings, door = web_settings(limits={"body_s": 0.1, "header_s": 0.1, "idle_s": 0.1, "unread_s": 0.1}), ExampleDoor()
    async with serve(settings, door), connect(settings) as client:
        await client.send(request_of("/stream"))
        await client.reader.readuntil(b"first")
        await asyncio.sleep(1)
        door.end.set()
        await client.reader.readuntil(b"last")


async def test_an_idle_connection_is_closed() -> None:
    settings = web_settings(limits={"idle_s": 0.2})
    async with serve(settings) as server, connect(settings) as client:
        await client.send(request_of("/healthz"))
        assert (await client.read_reply()).status == 200
        assert await read_closed(client) == b""
        await eventually(lambda: server.connections == 0)


async def test_a_client_that_does_not_read_is_disconnected() -> None:
    settings, door = web_settings(limits={"unread_s": 0.5}), ExampleDoor()
    async with serve(settings, door) as server, connect(settings) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined] # the reader of a socket has it
        await client.send(request_of("/large"))
        await eventually(lambda: door.streams == 1)
        await eventually(lambda: door.open_streams == 0 and server.connections == 0)


async def test_an_endless_answer_leaves_time_for_others_and_ends_with_its_client() -> None:
    settings, door = web_settings(), ExampleDoor()
    async with serve(settings, door) as server:
        async with connect(settings) as client:
            await client.send(request_of("/large"))
            for _ in range(20):
                await client.reader.readexactly(1_000_000)
                assert (await ask(settings, "/whoami")).status == 200
        await eventually(lambda: door.open_streams == 0 and server.connections == 0)


async def test_an_endless_answer_of_starlette_does_not_block_the_platform_when_its_client_is_cut() -> None:
    settings = web_settings(limits={"unread_s": 0.2})
    async with serve(settings) as server, connect(settings) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined] # the reader of a socket has it
        await client.send(request_of("/endless"))
        await eventually(lambda: server.connections == 1)
        await eventually(lambda: server.connections == 0)
        assert (await ask(settings, "/whoami")).status == 200


async def test_connections_are_limited_and_those_above_are_told_so() -> None:
    settings = web_settings(limits={"connections": 8, "header_s": 20})
    async with serve(settings) as server:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connect(settings)) for _ in range(3)]
            await eventually(lambda: server.connections == 3)
            reply = await ask(settings, "/v1/whoami")
            assert (reply.status, reply.headers["retry-after"], reply.headers["connection"]) == (503, "5", "close")
            assert json.loads(reply.body)["error"]["type"] == "server_error"
            for client in clients:
                await client.send(request_of("/whoami"))
                assert (await client.read_reply()).status == 200
        await eventually(lambda: server.connections == 0)
        assert (await ask(settings, "/whoami")).status == 200


async def test_the_connections_of_one_address_are_limited() -> None:
    settings = web_settings(host="localhost", limits={"connections_per_address": 2})
    async with serve(settings) as server, AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(connect(settings))
        await eventually(lambda: server.connections == 2)
        assert (await ask(settings, "/whoami")).status == 429


FLOOD = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
sockets = []
for _ in range(3000):
    found = socket.socket()
    found.settimeout(20)
    try:
        found.connect(("127.0.0.1", int(sys.argv[1])))
    except OSError:
        pass
    sockets.append(found)
print("connected", flush=True)
sys.stdin.read()
"""


async def test_thousands_of_connections_leave_the_rest_of_the_platform_its_files() -> None:
    """The files of the process stay below its limit, and others are served afterwards."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 4096:
        pytest.skip("the system permits too few open files")
    settings = web_settings(limits={"connections": 200, "connections_per_address": 200, "header_s": 60})
    async with serve(settings) as server:
        flood = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FLOOD, str(settings.port), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert flood.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            assert await flood.stdout.readline() == b"connected\n"
        assert server.connections <= 264
        await flood.communicate(b"")
        await eventually(lambda: server.connections == 0)
        assert (await ask(settings, "/whoami")).status == 200


SMUGGLED = "GET /open/smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (["Content-Length: 6", "Transfer-Encoding: chunked"], f"0\r\n\r\n{SMUGGLED}"),
        (["Transfer-Encoding: chunked", "Content-Length: 5"], f"0\r\n\r\n{SMUGGLED}"),
        (["Content-Length: 3", "Content-Length: 4"], f"abc{SMUGGLED}"),
        (["Content-Length: 3, 4"], f"abc{SMUGGLED}"),
        (["Content-Length: +3"], f"abc{SMUGGLED}"),
        (["Content-Length: 0x3"], f"abc{SMUGGLED}"),
        (["Content-Length: -1"], SMUGGLED),
        (["Content-Length : 3"], f"abc{SMUGGLED}"),
        (["Transfer-Encoding: xchunked"], f"0\r\n\r\n{SMUGGLED}"),
        (["Transfer-Encoding: chunked, identity"], f"0\r\n\r\n{SMUGGLED}"),
        (["Transfer-Encoding: identity", "Transfer-Encoding: chunked"], f"0\r\n\r\n{SMUGGLED}"),
        (["Transfer-Encoding : chunked"], f"0\r\n\r\n{SMUGGLED}"),
        (["Transfer-Encoding:\x0bchunked"], f"0\r\n\r\n{SMUGGLED}"),
        (["X: a\r\n b\r\n c: \x00"], SMUGGLED),
    ],
)
async def test_no_second_request_hides_in_the_body_of_another(headers: list[str], body: str) -> None:
    settings = web_settings()
    async with serve(settings), connect(settings) as client:
        await client.send(request_of("/unread", *headers, method="POST") + body.encode())
        answer = await read_closed(client)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"smuggled" not in answer


async def test_a_broken_chunk_closes_the_connection() -> None:
    settings, door = web_settings(), ExampleDoor()
    async with serve(settings, door) as server:
        for chunk in (b"zz\r\n", b"-1\r\nx\r\n", b"5\r\nabcdefgh\r\n", b"1" * 70_000):
            async with connect(settings) as client:
                await client.send(request_of("/body", "Transfer-Encoding: chunked", method="POST") + chunk)
                answer = await read_closed(client)
                assert answer.startswith(b"HTTP/1.1 4")
                assert answer.count(b"HTTP/1.1 ") == 1
        async with connect(settings) as client:  # in the middle of an answer
            await client.send(request_of("/stream"))
            await client.reader.readuntil(b"first")
            await client.send(b"\x00\x01 no HTTP \r\n\r\n")
            door.end.set()
            await read_closed(client)
        await eventually(lambda: server.connections == 0)


async def test_requests_in_a_row_are_answered_in_their_order() -> None:
    settings = web_settings()
    async with serve(settings), connect(settings) as client:
        await client.send(b"".join(request_of(f"/open/{number}", key=None) for number in range(20)))
        names = [json.loads((await client.read_reply()).body)["name"] for _ in range(20)]
    assert names == [str(number) for number in range(20)]


async def test_a_client_that_waits_for_consent_is_asked_for_its_body() -> None:
    settings = web_settings(limits=SMALL)
    async with serve(settings):
        async with connect(settings) as client:
            await client.send(request_of("/body", "Expect: 100-continue", "Content-Length: 3", method="POST"))
            assert (await client.read_head()).status == 100
            await client.send(b"abc")
            assert json.loads((await client.read_reply()).body) == {"size": 3}
        async with connect(settings) as client:
            await client.send(request_of("/body", "Expect: 100-continue", "Content-Length: 9999999", method="POST"))
            assert (await client.read_reply()).status == 413
            await read_closed(client)


def test_the_default_body_is_enough_for_a_picture_of_eight_mebibytes() -> None:
    assert WebSettings().limits.body_bytes > 8 * 2**20 * 4 / 3 + 65_536
