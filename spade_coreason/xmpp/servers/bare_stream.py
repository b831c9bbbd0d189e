"""A bare XMPP stream with TLS and in-band registration: enough to see that a server serves, and to create an account."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import cast
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

STREAM = "http://etherx.jabber.org/streams"
TLS = "urn:ietf:params:xml:ns:xmpp-tls"
STANZAS = "urn:ietf:params:xml:ns:xmpp-stanzas"


class StreamError(Exception):
    """The server broke the protocol, refused a request, or ended the stream."""


class AccountExistsError(StreamError):
    """The account exists already, perhaps with another password."""


class BareStream:
    """One connection. `certificate_der` is the certificate that the server presented, empty before TLS."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, domain: str) -> None:
        self._reader = reader
        self._writer = writer
        self._domain = domain
        self._parser: ET.XMLPullParser[ET.Element] = ET.XMLPullParser(("start", "end"))
        self._depth = 0
        self.certificate_der = b""

    async def open(self) -> ET.Element:
        """Send a stream header and return the server's features."""
        self._parser = ET.XMLPullParser(("start", "end"))
        self._depth = 0
        # Without `<?xml …?>`: pyjabber continues with the same parser after TLS, and a second declaration is an error there.
        self._send(
            f"<stream:stream to='{self._domain}' version='1.0' xml:lang='en' xmlns='jabber:client' xmlns:stream='{STREAM}'>"
        )
        return await self._expect(f"{{{STREAM}}}features")

    async def start_tls(self, context: ssl.SSLContext) -> None:
        """Negotiate STARTTLS. Raise `ssl.SSLCertVerificationError` if the certificate cannot be verified."""
        self._send(f"<starttls xmlns='{TLS}'/>")
        await self._expect(f"{{{TLS}}}proceed")
        await self._writer.start_tls(context, server_hostname=self._domain)
        self.certificate_der = self._writer.get_extra_info("ssl_object").getpeercert(binary_form=True)

    async def register(self, user: str, password: str) -> None:
        """Register an account (XEP-0077), after TLS and `open`.

        Raise AccountExistsError, or StreamError with the server's reason.
        """
        iq_id = secrets.token_hex(4)
        self._send(
            f"<iq type='set' id='{iq_id}' to='{self._domain}'><query xmlns='jabber:iq:register'>"
            f"<username>{escape(user)}</username><password>{escape(password)}</password></query></iq>"
        )
        answer = await self._read_element()
        if answer.get("type") == "result":
            return
        if answer.find(f".//{{{STANZAS}}}conflict") is not None:
            raise AccountExistsError(f"the account {user}@{self._domain} already exists")
        raise StreamError(f"the server does not register {user}@{self._domain}: {_describe_element(answer)}")

    def _events(self) -> Iterator[tuple[str, ET.Element]]:
        try:
            for event in self._parser.read_events():
                name, element = cast("tuple[str, ET.Element]", event)  # true for the two kinds of event requested above
                yield name, element
        except ET.ParseError as error:  # the parser reports here what it could not read in `feed`
            raise StreamError(f"the peer is not an XMPP server ({error})") from None

    def _send(self, text: str) -> None:
        self._writer.write(text.encode())

    async def _expect(self, tag: str) -> ET.Element:
        element = await self._read_element()
        if element.tag != tag:
            raise StreamError(f"the server answered {_describe_element(element)}")
        return element

    async def _read_element(self) -> ET.Element:
        """Return the next complete child of the stream."""
        while True:
            for event, element in self._events():
                self._depth += 1 if event == "start" else -1
                if event == "end" and self._depth == 1:
                    return element
            data = await self._reader.read(65536)
            if not data:
                raise StreamError("the server closed the connection")
            self._parser.feed(data)


@asynccontextmanager
async def open_bare_stream(host: str, port: int, domain: str, context: ssl.SSLContext) -> AsyncIterator[BareStream]:
    """Open a stream over TLS and exchange its second header, ready to register.

    Raise OSError, `ssl.SSLError` or StreamError.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        stream = BareStream(reader, writer, domain)
        await stream.open()
        await stream.start_tls(context)
        await stream.open()
        yield stream
    finally:
        writer.transport.abort()  # nothing is left to send, and some servers never answer a closing stream


def _describe_element(element: ET.Element) -> str:
    names = [child.tag.rpartition("}")[2] for child in element.iter() if child.tag.startswith(f"{{{STANZAS}}}")]
    return ", ".join(names) or element.tag.rpartition("}")[2]
