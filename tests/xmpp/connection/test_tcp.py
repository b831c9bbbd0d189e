"""The memory that asyncio allocates for a TLS connection, before any data comes."""

from __future__ import annotations

import asyncio
import ssl
import tracemalloc
from asyncio import sslproto

import pytest

from spade_coreason.xmpp import tune_tls_buffers


async def measure_tls_connection() -> int:
    """Return the bytes that asyncio's TLS allocates for a connection to a server that says nothing."""
    greeted = asyncio.Event()

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)  # of the client's hello
        greeted.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
    context = ssl.create_default_context()
    tracemalloc.start()
    async with server:
        connecting = asyncio.create_task(
            asyncio.open_connection(*server.sockets[0].getsockname(), ssl=context, server_hostname="localhost")
        )
        try:
            await asyncio.wait_for(greeted.wait(), 30)
            snapshot = tracemalloc.take_snapshot()
        finally:
            tracemalloc.stop()
            connecting.cancel()
            await asyncio.gather(connecting, return_exceptions=True)
    return sum(trace.size for trace in snapshot.filter_traces([tracemalloc.Filter(True, sslproto.__file__)]).traces)


async def test_a_tls_connection_has_a_small_buffer_once_the_platform_has_tuned_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # If this fails, asyncio has another buffer: see whether `tune_tls_buffers` is needed still, and how.
    before = await measure_tls_connection()
    monkeypatch.setattr(sslproto.SSLProtocol, "max_size", sslproto.SSLProtocol.max_size)  # restore it after the test
    tune_tls_buffers()
    assert await measure_tls_connection() < 64 * 1024 < 200 * 1024 < before
