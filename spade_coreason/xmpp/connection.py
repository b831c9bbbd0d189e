"""One XMPP session that lasts: connected within a time or a clear error, resumed or renewed when it is cut, honest about it."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any, Literal, TypeAlias, TypeVar
from xml.etree.ElementTree import Element, ParseError

from slixmpp import JID, Iq, Message, Presence
from slixmpp.plugins.xep_0198.stanza import Ack, RequestAck
from spade.xmpp_client import XMPPClient

from ..contracts.base import utc_now
from ..exceptions import ConnectError, LoginError
from ..names import bare
from ..tracked import Tracked
from .endpoint import Endpoint
from .refusing import refusal
from .sm import REQUEST_ACK, DurableStreamManagement

log = logging.getLogger(__name__)

# SPADE imports pyjabber, which makes a directory for uploads at its import and leaves it behind.
if (uploads := sys.modules.get("pyjabber.plugins.xep_0363.upload_server")) is not None:
    with suppress(OSError):
        os.rmdir(uploads.TEMP_DIR)


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Unknown stanza interface")


# slixmpp compares every stanza, acknowledgements too, with the queries that are open, and warns that they have no sender.
logging.getLogger().addFilter(_is_news)

OnMessage: TypeAlias = Callable[[Element], asyncio.Future[Any] | None]
Wanted = TypeVar("Wanted", bound=str)
State: TypeAlias = Literal["offline", "connecting", "online"]

_ACK_AFTER_S = 1.0
_BACK_OFF_S = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
# A session that ends sooner was no success: the back-off goes on where it was.
_STEADY_S = 10.0
_RENEW_AFTER_S = 5.0
# An idle connection is asked for a sign of life so often, and whoever was asked has so long to give one.
_PULSE_S = 60.0
_SILENCE_S = 30.0
# What a network that silently vanished may take until the connection counts as cut, milliseconds.
_USER_TIMEOUT_MS = 30_000
_CLOSED = "the server closed the connection"
_CERTIFICATE_OF_ANOTHER = 62  # OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH


class Client(XMPPClient):  # type: ignore[misc]  # SPADE comes without types
    """SPADE's client, with our TLS and stream management, and presence only when we are ready."""

    def __init__(self, jid: str, password: str, endpoint: Endpoint, register: bool) -> None:
        super().__init__(JID(jid), password, True, register)
        self.heard_at = 0.0
        """When the server sent something last, by the clock of the event loop."""
        self.ssl_context = endpoint.context
        # slixmpp's own remedy for a lost connection would connect beside ours.
        self.plugin["xep_0199"].disable_keepalive()
        self.register_plugin("xep_0198")
        # SPADE approves every subscription although it says that it does not.
        self.roster.auto_authorize = None
        self.roster.auto_subscribe = False

    def session_start(self, event: Any) -> None:
        """SPADE announces itself here, before anybody can answer."""

    def data_received(self, data: bytes) -> None:
        """Parses what came in, all of it."""
        self.heard_at = self.loop.time()
        super().data_received(data)
        # From expat 2.6 on (Python 3.13) the parser waits, after a long piece of a stanza, until twice as much has come;
        # a complete stanza would lie there until then.
        if (flush := getattr(self.parser, "flush", None)) is not None:
            with suppress(ParseError):  # which the next line meets, and reports
                flush()
            super().data_received(b"")

    @property
    def is_full_server(self) -> bool:
        """Whether the server is one that people use: pyjabber ends a session at next to anything."""
        # Of pyjabber's stream features none is beyond the login; every other has one of these.
        return bool(self.features & {"rosterver", "stream_management", "preapproval"})

    @property
    def sm(self) -> DurableStreamManagement:
        """Stream management (XEP-0198)."""
        plugin: DurableStreamManagement = self.plugin["xep_0198"]
        return plugin


class Connection:
    """Sends and receives stanzas for one JID, across reconnects.

    What was sent and not acknowledged is sent again after a cut, resumed or not; what is sent meanwhile waits.
    """

    def __init__(
        self,
        jid: str,
        password: str,
        endpoint: Endpoint,
        *,
        register: bool = False,
        on_message: OnMessage,
        on_session: Callable[[bool], None] = lambda is_new: None,
        on_presence: Callable[[Presence], bool] = lambda presence: False,
        takes: Callable[[Message], bool] = lambda message: False,
    ) -> None:
        self.client = Client(jid, password, endpoint, register)
        self.jid = jid
        self.state: State = "offline"
        self.online_at: datetime | None = None
        """When the session began that is there now."""
        self.trouble = ""
        """Since it was lost: why, or why it cannot be had again."""
        self.resumptions = 0
        self.sessions = 0
        self._endpoint = endpoint
        self._on_message = on_message
        self._on_session = on_session
        self._on_presence = on_presence
        self._takes = takes
        self._loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[bool] | None = None
        self._is_closing = False
        self._supervisor: asyncio.Task[None] | None = None
        self._outgoing: list[str] = []
        self._unacknowledged: list[str] = []
        self._ack_timer: asyncio.TimerHandle | None = None
        self._is_flushing = False
        self._settled = asyncio.Event()
        client = self.client
        client.add_filter("in", self._filter)
        client.add_event_handler("stream_negotiated", self._session_begins)
        client.add_event_handler("session_resumed", self._session_resumed)
        client.add_event_handler("disconnected", self._disconnected)
        client.add_event_handler("failed_all_auth", self._login_failed)
        client.add_event_handler("connection_failed", self._connection_failed)
        client.add_event_handler("ssl_invalid_chain", self._certificate_wrong)
        client.add_event_handler("stream_error", self._stream_error)
        client.sm.on_news = self._flush_soon
        client.sm.on_loss = self._renew_later
        self._renewal: asyncio.TimerHandle | None = None
        self._ended_by = ""
        self._online_since = 0.0
        self._short_sessions = 0
        self._patience = 0
        self._pulse_timer: asyncio.TimerHandle | None = None
        self._sign_timer: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        """Where the server is."""
        return self._endpoint.address(self.client.boundjid.host)

    async def open(self) -> None:
        """Connects and logs in. ConnectError or LoginError within the endpoint's timeout for each attempt."""
        for attempt in range(self._endpoint.attempts):
            try:
                await self._attempt()
                return
            except LoginError:
                raise
            except ConnectError:
                if attempt + 1 == self._endpoint.attempts:
                    raise

    async def close(self) -> None:
        """Ends the session, what is queued sent before."""
        self._is_closing = True
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        self._stop_watching()
        for timer in (self._ack_timer, self._renewal):
            if timer is not None:
                timer.cancel()
        self._flush()
        if self.state == "online" and self.client.is_connected():
            await self.client.disconnect(wait=1.0)
        self._abort()
        self.state = "offline"
        filters = self.client._run_out_filters  # a task that slixmpp leaves behind
        if filters is not None:
            filters.cancel()
            await asyncio.gather(filters, return_exceptions=True)

    async def settle(self, timeout_s: float) -> bool:
        """Waits until the server has acknowledged everything; whether it has."""
        self._flush()
        try:
            async with asyncio.timeout(timeout_s):
                await self.client.waiting_queue.join()  # slixmpp's own stanzas are counted when they leave
                while self.state == "online" and self.client.sm.enabled_out and self.client.sm.unacked_queue:
                    self._settled.clear()
                    self.client.send_raw(REQUEST_ACK)
                    await self._settled.wait()
        except TimeoutError:
            return False
        return not self._outgoing

    def send(self, stanzas: list[str]) -> None:
        """Sends stanzas in order; all that is sent in one round of the event loop leaves in one write."""
        self._outgoing += stanzas
        self._flush_soon()

    def recall(self, kind: type[Wanted]) -> list[Wanted]:
        """Takes back what has not left yet, or must leave again with a new session, of one kind."""
        recalled = [stanza for stanza in self._outgoing if isinstance(stanza, kind)]
        self._outgoing = [stanza for stanza in self._outgoing if not isinstance(stanza, kind)]
        return recalled

    # Sending

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if self.state != "online" or not self.client.is_connected():
            return
        sm = self.client.sm
        stanzas, self._outgoing = self._outgoing, []
        sm.count(stanzas)
        text = sm.take_ack() + "".join(stanzas)
        if sm.enabled_out and stanzas:
            sm.window_counter -= len(stanzas)
            if sm.window_counter <= 0:
                sm.window_counter = sm.window
                text += REQUEST_ACK
                self._expect_a_sign()
            elif self._ack_timer is None:
                self._ack_timer = self._loop.call_later(_ACK_AFTER_S, self._ask_for_ack)
        if text:
            self.client.send_raw(text)
        if not sm.enabled_out:
            for stanza in stanzas:  # without stream management nobody will say more
                if isinstance(stanza, Tracked):
                    stanza.acknowledge()

    def _ask_for_ack(self) -> None:
        self._ack_timer = None
        if self.state == "online" and self.client.is_connected() and self.client.sm.unacked_queue:
            self.client.send_raw(REQUEST_ACK)
            self._expect_a_sign()

    # Whether the connection carries anything: a server that hangs keeps it standing for ever

    def _pulse(self) -> None:
        self._pulse_timer = self._loop.call_later(_PULSE_S, self._pulse)
        if self.client.sm.enabled_out and self._loop.time() - self.client.heard_at >= _PULSE_S:
            self.client.send_raw(REQUEST_ACK)
            self._expect_a_sign()

    def _expect_a_sign(self) -> None:
        if self._sign_timer is None:
            self._sign_timer = self._loop.call_later(_SILENCE_S, self._look_for_a_sign, self._loop.time())

    def _look_for_a_sign(self, since: float) -> None:
        self._sign_timer = None
        if self.state == "online" and self.client.heard_at < since:
            self._ended_by = f"the server said nothing for {_SILENCE_S:g} s"
            self.client.abort()

    def _stop_watching(self) -> None:
        for timer in (self._pulse_timer, self._sign_timer):
            if timer is not None:
                timer.cancel()
        self._pulse_timer = self._sign_timer = None

    # Receiving

    def _filter(self, stanza: Any) -> Any:
        # After stream management's own filter, which has counted the stanza. slixmpp's event "message" knows only
        # stanzas with a body, and builds a task for each.
        if not isinstance(stanza, Message):
            if isinstance(stanza, Presence) and self._on_presence(stanza):
                return None
            if isinstance(stanza, Iq) and (error := refusal(stanza.xml, bare(self.jid))) is not None:
                self.send([error])
                return None
            return self._stream_management(stanza)
        try:
            if self._takes(stanza):
                return None
            if self._renewal is not None:
                return None  # it comes again with the new session, behind what could not be stored
            durable = self._on_message(stanza.xml)
        except Exception:
            log.exception("%s: a message from %s could not be read", self.jid, stanza["from"])
            return None
        if durable is not None:
            self.client.sm.hold(durable)
        return None

    def _stream_management(self, stanza: Any) -> Any:
        # slixmpp would compare these, which are as many as the messages, with every handler it has.
        if isinstance(stanza, RequestAck):
            self.client.sm.send_ack()
        elif isinstance(stanza, Ack):
            self.client.sm.handle_ack(stanza)
            self._settled.set()
            self._hurry()
        else:
            return stanza
        return None

    def _hurry(self) -> None:
        # Nothing of ours goes back for an acknowledgement, so the kernel would wait 40 ms with its own; and until that came a
        # server without TCP_NODELAY (Prosody) would keep the next message.
        sock = self._socket()
        if sock is not None and hasattr(socket, "TCP_QUICKACK"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def _socket(self) -> socket.socket | None:
        """The TCP socket of the connection, where it has one."""
        transport = self.client.transport
        sock = transport.get_extra_info("socket") if transport is not None else None
        return sock if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6) else None

    def _renew_later(self) -> None:
        if self._renewal is None:
            log.error(
                "%s: what came in cannot be stored; it is not acknowledged, and comes again with a new session in %g s",
                self.jid,
                _RENEW_AFTER_S,
            )
            self._renewal = self._loop.call_later(_RENEW_AFTER_S, self._renew)

    def _renew(self) -> None:
        """Only to a new session does the server deliver again what it holds; a resumed one would go on behind it."""
        if self.state == "online":
            self._ended_by = "what it sent could not be stored"
            # Said in form, and not come back to at once: a server hands over what an old session has left when that has ended.
            self._patience = _BACK_OFF_S.index(0.5)
            self.client.disconnect(wait=1.0)
        else:
            self._renewal = None  # cut meanwhile; if the session is resumed, the loss shows again

    # Connecting

    async def _attempt(self) -> bool:
        self._outcome = self._loop.create_future()
        self._ended_by = ""
        self.state = "connecting"
        endpoint = self._endpoint
        host = endpoint.host or (self.client.boundjid.host if endpoint.port else None)
        self.client.enable_direct_tls = False  # it would cost one failed attempt on a STARTTLS port
        self.client.connect(host, (endpoint.port or 5222) if host else None)
        try:
            async with asyncio.timeout(endpoint.timeout_s):
                return await self._outcome
        except TimeoutError:
            self._abort()
            raise ConnectError(
                self.jid, self.address, f"no answer within {endpoint.timeout_s:g} s; is it the right host and port?"
            ) from None
        except ConnectError:
            self._abort()
            raise
        except asyncio.CancelledError:
            self._abort()
            raise
        finally:
            self._outcome = None
            if self.state == "connecting":
                self.state = "offline"

    def _abort(self) -> None:
        self.client.cancel_connection_attempt()
        self.client.abort()

    def _fail(self, error: ConnectError) -> None:
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_exception(error)

    def _connection_failed(self, problem: Any) -> None:
        # slixmpp would try again by itself, for ever.
        self._loop.call_soon(self.client.cancel_connection_attempt)
        self._fail(ConnectError(self.jid, self.address, _in_words(problem) + _remedy(problem)))

    def _certificate_wrong(self, problem: Any) -> None:
        self._fail(ConnectError(self.jid, self.address, _in_words(problem)))

    def _login_failed(self, _event: Any) -> None:
        self._fail(LoginError(self.jid, self.address, "wrong password, or no such account"))

    def _stream_error(self, error: Any) -> None:
        condition = error["condition"]
        if condition == "conflict":
            # Coming back at once would throw the other out, which would come back at once, and so on.
            self._patience = len(_BACK_OFF_S) - 1
            self._ended_by = (
                f"another program logged in as {self.client.boundjid.full}; stop one of the two, or give it another account"
            )
        else:
            self._ended_by = f"{condition} {error['text'] or ''}".strip()
        log.warning("%s: the server ends the stream: %s", self.jid, self._ended_by)

    def _session_begins(self, _event: Any) -> None:
        if not self.client.bound:
            return  # the features before the login
        self.sessions += 1
        # A resumption that failed cleared slixmpp's queue; what was in it is sent again, with the same ids.
        self._outgoing = self._unacknowledged + self._outgoing
        self._unacknowledged = []
        self._online(is_new=True)

    async def _session_resumed(self, _event: Any) -> None:
        # slixmpp sends again what was not acknowledged, through its queue; ours must not overtake it, or the counts lie.
        await self.client.waiting_queue.join()
        if not self.client.is_connected():
            return  # cut again meanwhile
        self.resumptions += 1
        self._unacknowledged = []
        self._online(is_new=False)

    def _online(self, is_new: bool) -> None:
        self.state = "online"
        self.trouble = ""
        if is_new:
            self.online_at = utc_now()
        self._online_since = self._loop.time()
        self._stop_watching()
        self._pulse_timer = self._loop.call_later(_PULSE_S, self._pulse)
        self._watch_socket()
        self._on_session(is_new)
        self._flush()
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(is_new)

    def _watch_socket(self) -> None:
        sock = self._socket()
        if sock is None:
            return
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)

    def _disconnected(self, reason: Any) -> None:
        was_online = self.state == "online"
        self._settled.set()
        self._stop_watching()
        if was_online:
            self._unacknowledged = [stanza for _, stanza in self.client.sm.unacked_queue if isinstance(stanza, str)]
        else:
            # A resumption may have told what has arrived, before it was cut too.
            self._unacknowledged = [s for s in self._unacknowledged if not (isinstance(s, Tracked) and s.acknowledged)]
        self.state = "offline"
        if self._renewal is not None:
            self._renewal.cancel()
            self._renewal = None
            self.client.sm.session_end(None)
        why = self._ended_by or _in_words(reason or _CLOSED)
        self._fail(ConnectError(self.jid, self.address, self._ended_by or why + _remedy(reason or _CLOSED)))
        if was_online and not self._is_closing:
            self.trouble = why
            self._supervisor = asyncio.create_task(self._reconnect(why))

    async def _reconnect(self, why: str) -> None:
        if self._loop.time() - self._online_since > _STEADY_S:
            self._short_sessions = 0
        attempt = max(self._short_sessions, self._patience)
        self._short_sessions += 1
        self._patience = 0
        delay_s = _back_off_s(attempt)
        log.warning("%s: connection lost (%s); reconnecting in %.1f s", self.jid, why, delay_s)
        problem = ""
        while True:
            await asyncio.sleep(delay_s)
            attempt += 1
            delay_s = _back_off_s(attempt)
            try:
                is_new = await self._attempt()
            except ConnectError as error:
                log.log(logging.INFO if str(error) == problem else logging.WARNING, "%s", error)
                problem = self.trouble = str(error)
                continue
            log.warning("%s: connected again (%s)", self.jid, "a new session" if is_new else "the session goes on")
            return


def _back_off_s(attempt: int) -> float:
    return _BACK_OFF_S[min(attempt, len(_BACK_OFF_S) - 1)] * random.uniform(0.8, 1.2)


def _in_words(problem: Any) -> str:
    """Why a connection could not be had, for a person."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        remedy = "set server.tls.ca_file (--ca-file) to the authority that signed it"
        if problem.verify_code == _CERTIFICATE_OF_ANOTHER:
            remedy = "it must name the domain of the JID"
        return f"its certificate is not trusted ({problem.verify_message}); {remedy}"
    if isinstance(problem, OSError) and problem.errno is not None and problem.errno > 0:
        return os.strerror(problem.errno)  # asyncio's own text repeats the address
    return str(problem)


def _remedy(problem: Any) -> str:
    """What to look at where nothing more is known than that the server is not to be had."""
    if problem == _CLOSED or isinstance(problem, ConnectionRefusedError | ConnectionResetError):
        return "; is the server running, and are host and port right?"
    return ""
