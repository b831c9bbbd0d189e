"""The bare stream to a local server: something else that answers on the port is no crash."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from spade_coreason.xmpp.servers.bare_stream import StreamError, open_bare_stream
from tests.support.wait import TIMEOUT_S


@pytest.mark.parametrize("greeting", [b"SSH-2.0-OpenSSH\r\n", b"\x15\x03\x03\x00\x02\x02\x46", b"<stream", b""])
async def test_a_port_of_another_protocol_is_no_xmpp_server(greeting: bytes) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b">")
        writer.write(greeting)
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server, asyncio.timeout(TIMEOUT_S):
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(StreamError, match=r"is not an XMPP server|closed the connection"):
            async with open_bare_stream("127.0.0.1", port, "localhost", ssl.create_default_context()):
                pass
