"""A stock XMPP client: plain slixmpp, without any code of the package."""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol
from xml.sax.saxutils import escape, quoteattr

import slixmpp
from slixmpp.xmlstream import ET
from slixmpp.xmlstream.handler import Callback
from slixmpp.xmlstream.matcher import MatchXPath

from tests.support.wait import TIMEOUT_S

ATTEMPTS = 3
CONNECT_S = TIMEOUT_S

logging.getLogger("slixmpp").setLevel(logging.CRITICAL)  # connections are cut on purpose here


class Server(Protocol):
    """The address and CA file that a client needs; XmppServer and the package's local servers have them."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def ca_file(self) -> Path | None: ...


class StanzaQueue(asyncio.Queue[Any]):
    """Received stanzas, oldest first."""

    def unread(self) -> list[Any]:
        """Return the stanzas that are still in the queue, and leave them there."""
        return list(self._queue)  # type: ignore[attr-defined]  # asyncio's types leave out what subclasses may use


class StockClient:
    """A person's client: `async with StockClient(jid, password, server) as alice: alice.send("hi", "echo@localhost")`.

    It verifies the server's certificate if the server has a `ca_file`. Every message stanza goes into `messages`, of any type,
    with or without a body; presences go into `presences`. `xmpp` is the slixmpp client.

    plugins   Names of slixmpp plugins, such as "xep_0308".
    smacks    Stream management (XEP-0198), without reconnecting.
    resource  The requested resource; else the server's choice.
    priority  The priority of the initial presence. None sends no presence, so no messages to the bare JID arrive.
    """

    def __init__(
        self,
        jid: str,
        password: str,
        server: Server,
        *,
        resource: str | None = None,
        plugins: Sequence[str] = (),
        smacks: bool = False,
        priority: int | None = 0,
    ) -> None:
        self._login = (f"{jid}/{resource}" if resource else jid, password)
        self._server = server
        self._plugins = (*plugins, *(("xep_0198",) if smacks else ()))
        self._priority = priority
        self.jid = jid
        self.messages = StanzaQueue()
        self.presences = StanzaQueue()
        self.disconnected = asyncio.Event()
        self.xmpp: Any = None

    @property
    def full_jid(self) -> str:
        return str(self.xmpp.boundjid.full)

    async def __aenter__(self) -> StockClient:
        await self.connect()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Log in. Raise PermissionError if the account is refused, ConnectionError after the last attempt."""
        for _ in range(ATTEMPTS):  # a connection to the embedded server can hang; the others need one attempt
            self.xmpp = self._client()
            outcome: asyncio.Queue[bool] = asyncio.Queue()
            for event, is_good in (("session_start", True), ("failed_all_auth", False)):
                self.xmpp.add_event_handler(event, partial(_put, outcome, is_good))
            self.xmpp.connect(self._server.host, self._server.port)
            try:
                async with asyncio.timeout(CONNECT_S):
                    if not await outcome.get():
                        raise PermissionError(f"{self.jid} cannot log in")
            except TimeoutError:
                await self._drop()
                continue
            except BaseException:
                await self._drop()
                raise
            self.disconnected.clear()
            self.xmpp.add_event_handler("disconnected", lambda _: self.disconnected.set())
            if self._priority is not None:
                self.xmpp.send_presence(ppriority=self._priority)
            return
        raise ConnectionError(f"{self.jid} cannot connect to {self._server.host}:{self._server.port}")

    async def close(self) -> None:
        """Send unavailable presence and close the stream."""
        if self.xmpp is not None and self.xmpp.transport is not None:
            self.xmpp.send_presence(ptype="unavailable")
            await asyncio.wait_for(self.xmpp.disconnect(wait=1.0), TIMEOUT_S)
        await self._drop()

    def cut(self) -> None:
        """Cut the connection without closing the stream, as a train tunnel does."""
        self.xmpp.abort()

    def send(
        self,
        body: str | None,
        to: str,
        *,
        thread: str | None = None,
        id: str | None = None,
        type: str = "chat",
        extra_xml: str = "",
    ) -> str:
        """Send a message and return its id. Without a body (None) there is no `<body/>`; `id=""` sends no id.

        `extra_xml` are further children of the message, as text, each with its namespace.
        """
        ident = secrets.token_hex(6) if id is None else id
        attributes = f"to={quoteattr(to)} type={quoteattr(type)}" + (f" id={quoteattr(ident)}" if ident else "")
        children = "" if body is None else f"<body>{escape(body)}</body>"
        children += "" if thread is None else f"<thread>{escape(thread)}</thread>"
        self.send_xml(f"<message xmlns='jabber:client' {attributes}>{children}{extra_xml}</message>")
        return ident

    def send_xml(self, stanza: str) -> None:
        """Send any stanza, with its namespace `jabber:client`. Stream management counts it like any other."""
        self.xmpp.send(slixmpp.xmlstream.StanzaBase(self.xmpp, ET.fromstring(stanza)), use_filters=False)

    async def message(self, timeout_s: float = TIMEOUT_S) -> Any:
        """Return the next message stanza of any kind, as slixmpp's object (`["body"]`, `["thread"]`, `["from"]`, `.xml`)."""
        return await asyncio.wait_for(self.messages.get(), timeout_s)

    async def answer(self, timeout_s: float = TIMEOUT_S) -> Any:
        """Return the next message with a body, or of type error. Others (typing, receipts) are skipped."""
        async with asyncio.timeout(timeout_s):
            while True:
                message = await self.messages.get()
                if message["type"] == "error" or message["body"]:
                    return message

    async def ask(self, body: str, to: str, *, timeout_s: float = TIMEOUT_S, thread: str | None = None) -> str:
        """Send a message and return the text of the next answer."""
        self.send(body, to, thread=thread)
        return str((await self.answer(timeout_s))["body"])

    def _client(self) -> Any:
        xmpp = slixmpp.ClientXMPP(*self._login)
        xmpp.enable_direct_tls = False  # else the first attempt uses direct TLS, which a STARTTLS port cannot answer
        xmpp.ssl_context = _tls(self._server.ca_file)
        for plugin in self._plugins:
            xmpp.register_plugin(plugin)
        # slixmpp's event `message` is fired only for stanzas with a body.
        for kind, queue in (("message", self.messages), ("presence", self.presences)):
            xmpp.register_handler(Callback(f"every {kind}", MatchXPath(f"{{jabber:client}}{kind}"), queue.put_nowait))
        return xmpp

    async def _drop(self) -> None:
        if self.xmpp is None:
            return
        self.xmpp.cancel_connection_attempt()
        with suppress(AttributeError):  # Python 3.11.2 cannot abort a TLS transport that the server closes at the same time
            self.xmpp.abort()
        filters = self.xmpp._run_out_filters  # a task that slixmpp leaves behind
        if filters is not None:
            filters.cancel()
            await asyncio.gather(filters, return_exceptions=True)


def _put(queue: asyncio.Queue[bool], value: bool, _event: object) -> None:
    queue.put_nowait(value)


@cache
def _tls(ca_file: Path | None) -> ssl.SSLContext:
    """Return one context for all clients of a server, which needs a third of the memory of one context each."""
    if ca_file is not None:
        return ssl.create_default_context(cafile=ca_file)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
