"""slixmpp's client with our own way to a session, our stream management, and no presence before the agent is ready.

Of slixmpp's way remain the login, the registration and the binding of a resource. It would go on without TLS, take ANONYMOUS
for an account with a password, and check the certificate against a name that came without TLS.

It does not import SPADE, which takes longer to import than all the rest of a program that sends one request.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import ssl
from collections import Counter, deque
from collections.abc import Callable
from typing import Any
from xml.etree.ElementTree import Element

from slixmpp import JID, ClientXMPP
from slixmpp.exceptions import IqError, IqTimeout
from slixmpp.util.sasl.client import sasl_mech
from slixmpp.util.sasl.mechanisms import SCRAM
from slixmpp.xmlstream import StanzaBase

from ...domain.callers import is_caller
from ...domain.jid import bare_jid, jid_domain
from ...runtime import OutboundMessage
from ..timings import ConnectionTimings
from .caller_filter import CallerFilter
from .dialer import Dialed
from .endpoint import ServerEndpoint
from .errors import quote
from .iq_filter import IQ, repair_iq
from .login import Login
from .negotiation import Negotiation
from .resolver import to_ascii
from .security import Phase
from .stream_management import DurableStreamManagement
from .stream_parser import STANZAS, TOO_LONG, StreamReader


def _is_worth_logging(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Unknown stanza interface")


log = logging.getLogger(__name__)

_LOGGED_IN = Phase.LOGGED_IN  # Python 3.11 calls a function for each look at a member
_REGISTRATION_TIMEOUT_S = 10.0
_SLICE_S = 0.01
_MAX_SLICE_S = 0.05
"""The longest time in which received stanzas are handled while all else in the process waits."""
_CAPABILITIES = "{http://jabber.org/protocol/caps}c"
_PROSODY = "http://prosody.im"
_NOT_WELL_FORMED = (  # RFC 6120, 4.9.3.13
    "<stream:error><not-well-formed xmlns='urn:ietf:params:xml:ns:xmpp-streams'/></stream:error></stream:stream>"
)


@sasl_mech(SCRAM.score)
class _FastSCRAM(SCRAM):  # type: ignore[misc]  # slixmpp comes without types here
    """slixmpp's SCRAM with the key computed in C, 60 times faster: it blocks the event loop."""

    def Hi(self, text: bytes, salt: bytes, iterations: int) -> bytes:
        return hashlib.pbkdf2_hmac(self.hash().name, text, salt, iterations)

    def process_3(self, challenge: bytes) -> bytes:
        # A server may send its proof in a challenge, and then `<success/>` without data (RFC 6120, 6.4.4).
        return b"" if self._mutual_auth and not challenge else super().process_3(challenge)


class _StreamProtocol(asyncio.Protocol):
    """The connection of one attempt. What still comes after its end is dropped."""

    def __init__(self, client: XMPPClient) -> None:
        self.client: XMPPClient | None = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self.client is not None:
            self.client.connection_made(transport)
        else:
            transport.abort()  # type: ignore[attr-defined]  # the attempt ended during the handshake

    def data_received(self, data: bytes) -> None:
        if self.client is not None:
            self.client.data_received(data)

    def connection_lost(self, exception: Exception | None) -> None:
        client, self.client = self.client, None
        if client is not None:
            client.connection_lost(exception)


class XMPPClient(ClientXMPP):  # type: ignore[misc]  # slixmpp comes without types here
    """slixmpp's client, with our TLS, our stream management, and our handlers for raw stanzas.

    `reject` is called with a stanza that exceeds a limit or whose handler fails, the reason, and the number of stanzas of the
    session that were handled before.
    """

    def __init__(
        self,
        login: Login,
        endpoint: ServerEndpoint,
        timings: ConnectionTimings,
        reject: Callable[[Element, str, int], None],
    ) -> None:
        # slixmpp compares every stanza, acknowledgements too, with the open queries, and warns if it has no sender. It uses
        # the root logger, which accepts the same filter only once.
        logging.getLogger().addFilter(_is_worth_logging)
        # Without a context it reads all authorities of the system.
        super().__init__(JID(login.jid), login.password, ssl_context=endpoint.context)
        self.transport: Any = None
        self.disconnect_reason: str | None = None
        self._run_out_filters: asyncio.Future[None] | None = None
        domain = to_ascii(jid_domain(login.jid)).strip("[]")  # an IPv6 address in a certificate has no brackets
        self.negotiation = Negotiation(self, domain, requires_tls=endpoint.requires_tls, registers=login.register)
        self.last_received_at = 0.0
        """The time of the last data from the server, by the clock of the event loop."""
        self.raw_handlers: dict[str, Callable[[Element], None]] = self.negotiation.handlers
        """Handlers by tag. They receive an element as it came in, instead of slixmpp's own handlers."""
        self.uses_nagle = False
        """True for a server that by default sends a small message only when the one before it is acknowledged (Nagle)."""
        self.quick_ack: Callable[[], object] | None = None
        """A function that acknowledges received data at once, if the server `uses_nagle`."""
        self._protocol: _StreamProtocol | None = None
        self._features_tasks: set[asyncio.Task[Any]] = set()
        """The tasks of slixmpp that go from feature to feature of the current stream."""
        self._reject = reject
        self.dropped: Counter[str] = Counter()
        """The number of dropped stanzas, by reason."""
        self.caller_filter = CallerFilter(bare_jid(login.jid), self.dropped)
        self._unhandled: deque[Element] = deque()
        """The stanzas that were read, and wait to be handled in the order in which they came."""
        self.register_plugin("xep_0199")  # answers pings; its own keepalive would open a connection beside ours
        if login.register:
            self.register_plugin("xep_0077")
            self.add_event_handler("register", self.register)
        self.register_plugin("xep_0198", {"timings": timings})
        self.stream_management: DurableStreamManagement = self.plugin["xep_0198"]
        """Stream management (XEP-0198)."""
        self.roster.auto_authorize = None  # otherwise every subscription is approved
        self.roster.auto_subscribe = False

    # Connecting

    async def begin(self, dialed: Dialed, context: ssl.SSLContext) -> None:
        """Begin a stream on a connection. Raise OSError if direct TLS fails; all later failures end the negotiation."""
        self.init_plugins()
        if self._run_out_filters is None or self._run_out_filters.done():
            self._run_out_filters = asyncio.create_task(self.run_filters())  # sends slixmpp's own stanzas
        self.ssl_context = context
        self.disconnect_reason = None
        self.negotiation.begin(dialed)
        self.last_received_at = self.loop.time()
        is_direct, domain = dialed.target.is_direct_tls, self.negotiation.domain
        protocol = self._protocol = _StreamProtocol(self)
        await self.loop.create_connection(  # from its first step on, the transport owns the socket and closes it
            lambda: protocol,
            sock=dialed.sock,
            ssl=context if is_direct else None,
            server_hostname=domain if is_direct else None,
        )

    def connection_made(self, transport: asyncio.BaseTransport, send_event: bool = True) -> None:
        """Begin a stream, without TLS or over it."""
        if send_event:
            self.event("connected")
        ssl_object = transport.get_extra_info("ssl_object")
        self.transport = transport
        self.socket = ssl_object or transport.get_extra_info("socket")
        if ssl_object is not None:
            self.negotiation.phase = Phase.SECURE
            self.features.add("starttls")  # slixmpp asks for it
        self.init_parser()
        self.send_raw(self.stream_header)

    def drop(self) -> None:
        """Cut the connection of an attempt at once. Nothing that still comes from it is handled."""
        self.negotiation.end()
        protocol, self._protocol = self._protocol, None
        if protocol is None or protocol.client is None:
            return
        protocol.client = None
        self._unhandled.clear()
        self.abort()
        self.connection_lost(None)

    def abort(self) -> None:
        """Cut the connection at once, also when it was cut before and is not lost yet."""
        # slixmpp closes it too, and asyncio cannot abort a TLS transport that was closed twice: Python 3.11.2 raises.
        if self.transport is not None:
            self.transport.abort()

    async def start_tls_as(self, domain: str) -> None:
        """Do the TLS handshake with the server of a domain, and begin a new stream. Raise OSError if that fails."""
        transport = await self.loop.start_tls(self.transport, self._protocol, self.ssl_context, server_hostname=domain)
        if not self._unhandled or self.negotiation.admits(self._unhandled[0]):  # it came without TLS, so it is not admitted
            self.connection_made(transport, send_event=False)

    def read_software(self, features: Element) -> None:
        """Recognise the server by its features (XEP-0115, 6.3)."""
        software = features.find(_CAPABILITIES)
        self.uses_nagle = software is not None and software.get("node") == _PROSODY

    async def register(self, form: Any) -> None:
        """Register the account (XEP-0077, 3.1) if the server offers it. The login is tried after a failure too."""
        self.negotiation.registration_problem = ""
        request = self.Iq()
        request["type"] = "set"
        request["register"]["username"] = self.boundjid.user
        request["register"]["password"] = self.password
        try:
            await request.send(timeout=_REGISTRATION_TIMEOUT_S)
        except IqTimeout:
            self.negotiation.registration_problem = "the server did not answer its registration"
        except IqError as error:
            if error.condition != "conflict":  # a conflict means that the account exists
                self.negotiation.registration_problem = (
                    f"the server refuses to register it ({quote(error.text or error.condition)})"
                )

    def send(self, data: Any, use_filters: bool = True) -> None:
        """Send a stanza. slixmpp calls this for ours too, when it resumes a stream that lost them."""
        if isinstance(data, StanzaBase) and self.caller_filter.drops_to(data.xml.get("to", "")):
            return
        super().send(data.content if isinstance(data, OutboundMessage) else data, use_filters)

    def incoming_filter(self, xml: Element) -> Element:
        """Prepare an element before slixmpp builds a stanza of it."""
        if xml.tag == IQ:
            repair_iq(xml)
        return xml

    def init_parser(self) -> None:
        """Begin to read a new stream."""
        self.parser = StreamReader()

    def data_received(self, data: bytes) -> None:
        """Handle received data, stanza by stanza. It may end the stream."""
        self.last_received_at = self.loop.time()
        if self.quick_ack is not None:
            self.quick_ack()
        reader = self.parser  # a stanza may begin a new stream, which replaces the parser
        if reader is None:
            return
        is_new = reader.header is None
        stanzas = reader.read(data)
        if is_new and reader.header is not None:
            self.start_stream_handler(reader.header)
        self._unhandled.extend(stanzas)
        self._handle_stanzas(reader)

    def _handle_stanzas(self, reader: StreamReader, slice_s: float = _SLICE_S) -> None:
        """Handle stanzas for a short time. The rest, and what comes in later, has to wait for other work of the event loop."""
        loop, unhandled = self.loop, self._unhandled
        slice_end = loop.time() + slice_s
        while unhandled:
            stanza = unhandled.popleft()
            if self.negotiation.phase is not _LOGGED_IN and not self.negotiation.admits(stanza):
                unhandled.clear()
                return
            count = self.stream_management.config["handled"]
            try:
                if is_caller(stanza.get("from", "")) and stanza.tag in STANZAS:
                    self.caller_filter.drops_from(stanza.get("from", ""))
                    self.stream_management.count_received(None)  # an answer would go to nobody too
                elif stanza is reader.discarded:
                    if stanza.tag in STANZAS:
                        self._reject(stanza, TOO_LONG, count)
                elif (excess := reader.excess.pop(stanza, "")) and not self._is_from_own_server(stanza):
                    self._reject(stanza, excess, count)
                else:
                    self.raw_handlers.get(stanza.tag, self.handle_with_slixmpp)(stanza)
            except Exception:  # it costs this stanza, and neither the stream nor the stanzas behind it
                if stanza.tag not in STANZAS:
                    raise
                log.exception(
                    "%s: an exception occurred while a stanza from %s was handled", self.boundjid.bare, stanza.get("from")
                )
                self._reject(stanza, "an internal error", count)
            # Before the login all that came together is judged together: no login begins before what must not be there.
            is_due = unhandled and loop.time() > slice_end and self.negotiation.phase is _LOGGED_IN
            if is_due and self.transport is not None:
                self.transport.pause_reading()
                loop.call_soon(self._handle_more, reader, loop.time())
                return
        if reader.end_reason:
            if not reader.is_xml and self.transport is not None:
                self.send_raw(_NOT_WELL_FORMED)
            self.disconnect_reason = reader.end_reason
            self.abort()

    def handle_with_slixmpp(self, stanza: Element) -> None:
        """Let slixmpp handle a stanza. It builds an object of it, which costs more than reading it."""
        self._spawn_event(stanza)

    def _handle_more(self, reader: StreamReader, paused_at: float) -> None:
        # As much time as other work has taken meanwhile. With less, turns that a flood of requests begins would slow down the
        # reading to the rate of the turns. The flood would wait in the server, which serves nobody well then.
        slice_s = min(max(_SLICE_S, self.loop.time() - paused_at), _MAX_SLICE_S)
        if self.transport is not None and self._unhandled:
            self.transport.resume_reading()
            self._handle_stanzas(reader, slice_s)

    def connection_lost(self, exception: BaseException | None) -> None:
        """Handle what came in before the connection was lost, then tell the rest."""
        self.quick_ack = None
        if self.parser is not None:
            self._handle_stanzas(self.parser, slice_s=math.inf)
        self._unhandled.clear()
        for task in self._features_tasks:
            task.cancel()
        super().connection_lost(exception)

    async def _handle_stream_features(self, features: Any) -> None:
        # While slixmpp waits for an answer of up to 30 s, the connection may be cut. It would go on with the next connection,
        # whatever the phase of that: log in, bind, or forget the session that can be resumed.
        task = asyncio.current_task()
        assert task is not None
        self._features_tasks.add(task)
        task.add_done_callback(self._features_tasks.discard)
        await super()._handle_stream_features(features)

    def _is_from_own_server(self, stanza: Element) -> bool:
        """Return True for a stanza of the agent's own server or account: a large roster, for example."""
        return stanza.get("from", "") in ("", self.boundjid.bare, self.boundjid.domain)

    @property
    def is_full_server(self) -> bool:
        """True for every server but pyjabber, which ends a session at almost any stanza."""
        # pyjabber announces stream features for the login only; every other server has one of these.
        return bool(self.features & {"rosterver", "stream_management", "preapproval"})
