"""Attacks on the HTTP server by clients without a key."""

from __future__ import annotations

from contextlib import AsyncExitStack

from tests.support.doors import ask, connect, request_of, serve, web_settings
from tests.support.wait import eventually

SIZE = 100_000


async def test_bodies_of_strangers_do_not_keep_out_those_with_a_key() -> None:
    """An address without a key may send one body of the largest size at once, and all of them four."""
    settings = web_settings(limits={"body_bytes": SIZE}, proxies=["127.0.0.1"])
    async with serve(settings) as server, AsyncExitStack() as stack:
        requests = server._app
        for number in range(20):
            client = await stack.enter_async_context(connect(settings))
            address = f"X-Forwarded-For: 203.0.113.{number}"
            await client.send(
                request_of("/open-body", address, f"Content-Length: {SIZE}", method="POST", key=None) + bytes(SIZE - 1)
            )
        await eventually(lambda: requests.pending_bytes > 3 * SIZE)
        body = {"method": "POST", "body": bytes(SIZE)}
        refused = await ask(settings, "/open-body", "X-Forwarded-For: 198.51.100.1", key=None, **body)
        assert (refused.status, refused.headers["retry-after"]) == (503, "5")
        assert (await ask(settings, "/body", "X-Forwarded-For: 198.51.100.1", **body)).status == 200
        assert requests.pending_bytes < 6 * SIZE


async def test_a_stranger_sends_one_body_at_once() -> None:
    settings = web_settings(limits={"body_bytes": SIZE}, proxies=["127.0.0.1"])
    stranger, other = "X-Forwarded-For: 203.0.113.1", "X-Forwarded-For: 198.51.100.1"
    async with serve(settings) as server, connect(settings) as client:
        requests = server._app
        head = request_of("/open-body", stranger, f"Content-Length: {SIZE}", method="POST", key=None)
        await client.send(head + bytes(SIZE - 1))
        await eventually(lambda: requests.pending_bytes == SIZE - 1)
        body = {"method": "POST", "key": None, "body": bytes(SIZE)}
        assert (await ask(settings, "/open-body", stranger, **body)).status == 503
        assert (await ask(settings, "/open-body", other, **body)).status == 200
        await client.send(b"x")
        assert (await client.read_reply()).status == 200
