"""A client without slixmpp: it logs in and then sends and receives XML as text, at any speed."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypedDict
from xml.etree.ElementTree import Element

from spade_coreason.xmpp.servers.bare_stream import BareStream, StreamError
from tests.support.servers.server import XmppServer
from tests.support.wait import TIMEOUT_S

_SEND_BUFFER_BYTES = 65_536
_SASL = "urn:ietf:params:xml:ns:xmpp-sasl"


class Login(TypedDict):
    """An account and its server, as JSON for another process."""

    host: str
    port: int
    ca_file: str
    jid: str
    password: str


def login_at(server: XmppServer, account: tuple[str, str]) -> Login:
    """Return the login of an account at a test server."""
    return Login(host=server.host, port=server.port, ca_file=str(server.ca_file), jid=account[0], password=account[1])


class RawClient(BareStream):
    """A logged-in stream. `send` and `drain` write text, `receive` returns the next element."""

    @property
    def domain(self) -> str:
        """The domain of the account."""
        return self._domain

    async def log_in(self, user: str, password: str, resource: str) -> None:
        """Log in with SASL PLAIN, which both servers offer over TLS, and bind a resource."""
        secret = base64.b64encode(f"\0{user}\0{password}".encode()).decode()
        self.send(f"<auth xmlns='{_SASL}' mechanism='PLAIN'>{secret}</auth>")
        await self._expect(f"{{{_SASL}}}success")
        await self.open()
        self.send(
            "<iq type='set' id='bind'><bind xmlns='urn:ietf:params:xml:ns:xmpp-bind'>"
            f"<resource>{resource}</resource></bind></iq>"
        )
        if (await self.receive()).get("type") != "result":
            raise StreamError("the server binds no resource")

    def send(self, text: str) -> None:
        """Queue XML for the server."""
        self._send(text)

    async def drain(self) -> None:
        """Wait until the server has taken most of what was queued."""
        await self._writer.drain()

    async def receive(self) -> Element:
        """Return the next child of the stream."""
        return await self._read_element()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Return what comes in, unparsed, until the connection ends."""
        while data := await self._reader.read(1 << 20):
            yield data


@asynccontextmanager
async def open_raw_client(login: Login, resource: str = "raw") -> AsyncIterator[RawClient]:
    """Log in, without presence. The connection is cut at the end."""
    user, _, domain = login["jid"].partition("@")
    reader, writer = await asyncio.open_connection(login["host"], login["port"])
    # What is sent is soon with the server, and not in megabytes of buffers.
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            client = RawClient(reader, writer, domain)
            await client.open()
            await client.start_tls(ssl.create_default_context(cafile=Path(login["ca_file"])))
            await client.open()
            await client.log_in(user, login["password"], resource)
        yield client
    finally:
        writer.transport.abort()
