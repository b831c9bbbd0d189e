"""A server that follows a script, so that it can offer what no real server would, and records all that it receives."""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from spade_coreason.xmpp.servers.certificate import CertificateFiles

STREAM_NS = "http://etherx.jabber.org/streams"
TLS = "urn:ietf:params:xml:ns:xmpp-tls"
SASL = "urn:ietf:params:xml:ns:xmpp-sasl"
BIND = "<bind xmlns='urn:ietf:params:xml:ns:xmpp-bind'/>"
REGISTER = "<register xmlns='http://jabber.org/features/iq-register'/>"
STARTTLS = f"<starttls xmlns='{TLS}'><required/></starttls>"
HEADER = f"<stream:stream xmlns='jabber:client' xmlns:stream='{STREAM_NS}' version='1.0' id='x' from='localhost' xml:lang='en'>"


class Peer:
    """One connection to the server. `clear` and `secure` hold all that came without TLS and over it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.is_secure = False
        self.domain = ""
        """The domain of the client's account."""
        self.clear = self.secure = ""
        self._unread = ""

    async def expect(self, pattern: str) -> re.Match[str]:
        """Read until the pattern has come, and return it. What follows it is left for the next call."""
        while True:
            if found := re.search(pattern, self._unread):
                self._unread = self._unread[found.end() :]
                return found
            data = (await self._reader.read(65_536)).decode()
            if not data:
                raise ConnectionError(f"the client left without {pattern}")
            self._unread += data
            if self.is_secure:
                self.secure += data
            else:
                self.clear += data

    def send(self, text: str) -> None:
        """Write text to the client."""
        self._writer.write(text.encode())

    async def offer(self, features: str, then: str = "") -> None:
        """Answer the client's header with our own and with these features. `then` leaves together with them."""
        self.domain = (await self.expect(r"<stream:stream[^>]*\bto='([^']*)'[^>]*>"))[1]
        self.send(f"{HEADER}<stream:features>{features}</stream:features>{then}")

    async def start_tls(self, context: ssl.SSLContext, then: str = "") -> None:
        """Answer `<starttls/>` and do the handshake. `then` leaves together with `<proceed/>`, without TLS."""
        await self.expect(r"<starttls[^>]*>")
        self.send(f"<proceed xmlns='{TLS}'/>{then}")
        await self._writer.start_tls(context)
        self.is_secure = True

    async def serve(self) -> None:
        """Let any account log in by PLAIN or ANONYMOUS and bind, then record what it sends."""
        await self.log_in(BIND)
        await self.drain()

    async def log_in(self, features: str, jid: str | None = None) -> None:
        """Let any account log in by PLAIN or ANONYMOUS, offer these features, and bind, as `a` or `jid`."""
        await self.expect(r"<auth[^>]*>")
        self.send(f"<success xmlns='{SASL}'/>")
        await self.offer(features)
        request = await self.expect(r"<iq[^>]*id=[\"']([^\"']*)[^>]*>")
        jid = f"a@{self.domain}/agent" if jid is None else jid
        bound = BIND.replace("/>", f"><jid>{jid}</jid></bind>")
        self.send(f"<iq type='result' id='{request[1]}'>{bound}</iq>")

    async def drain(self) -> None:
        """Record what the client sends until it leaves."""
        with suppress(ConnectionError):
            await self.expect("(?!)")  # matches nothing

    @property
    def received(self) -> str:
        """All that came, with and without TLS."""
        return self.clear + self.secure


def mechanisms(*names: str) -> str:
    """Return the feature that offers SASL mechanisms."""
    return f"<mechanisms xmlns='{SASL}'>{''.join(f'<mechanism>{name}</mechanism>' for name in names)}</mechanisms>"


def server_context(certificate: CertificateFiles) -> ssl.SSLContext:
    """Return the TLS context of a server with that certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.certificate, certificate.key)
    return context


def contains_password(text: str, password: str) -> bool:
    """Return True if a text has the password, as it is or in any BASE64 text."""
    encoded = (part[: len(part) // 4 * 4] for part in re.findall("[A-Za-z0-9+/]{8,}", text))
    return password in text or any(password.encode()[:-3] in base64.b64decode(part) for part in encoded)


Script = Callable[[Peer], Awaitable[None]]


@asynccontextmanager
async def run_script(
    script: Script, host: str = "127.0.0.1", port: int = 0, **options: object
) -> AsyncIterator[ScriptedServer]:
    """Serve each connection with the script."""
    server = ScriptedServer(script)
    async with await asyncio.start_server(server.connected, host, port, **options) as listening:  # type: ignore[arg-type]
        server.port = listening.sockets[0].getsockname()[1]
        try:
            yield server
        finally:
            server.end()


class ScriptedServer:
    """The connections of a server that follows a script."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.peers: list[Peer] = []

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Follow the script for one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        peer = Peer(reader, writer)
        self.peers.append(peer)
        try:
            with suppress(OSError, asyncio.CancelledError):  # the client may leave at any point
                await self._script(peer)
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    def end(self) -> None:
        """Cut all connections."""
        for task in self._tasks:
            task.cancel()

    @property
    def clear(self) -> str:
        """All that came without TLS, over all connections."""
        return "".join(peer.clear for peer in self.peers)

    @property
    def received(self) -> str:
        """All that came, over all connections."""
        return "".join(peer.received for peer in self.peers)
