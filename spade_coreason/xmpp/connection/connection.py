"""A lasting XMPP session: it connects in time or raises a clear error, resumes after a cut, and reports its true state."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from datetime import datetime
from typing import Any, Literal, TypeAlias
from xml.etree.ElementTree import Element

from slixmpp import JID, Iq, Presence
from slixmpp.exceptions import IqError, IqTimeout

from ...concurrency import Timer, cancel_tasks
from ...contracts.times import utc_now
from ...domain.jid import bare_jid, jid_domain
from ...exceptions import ConnectError, LoginError
from ...runtime import OutboundMessage
from ..codec import LANGUAGE, MESSAGE
from ..timings import DEFAULT_TIMINGS, ConnectionTimings
from .dialer import SILENCE_S, Dialed, Dialer
from .endpoint import ServerEndpoint
from .errors import CLOSED_HERE, NegotiationError, Problem, explain, explain_refused_login, no_answer, quote
from .iq_filter import IQ, build_iq_error, refusal
from .liveness import BackOff, Keepalive
from .login import Login
from .resolver import Target, parse_target
from .security import STREAM_ERROR, Phase, Security
from .send_queue import SendQueue
from .session_handler import SessionHandler
from .slixmpp_client import XMPPClient
from .stream_management import ACK, ACK_REQUEST, REQUEST_ACK
from .tcp import configure_socket, find_quick_ack

log = logging.getLogger(__name__)

_PRESENCE = "{jabber:client}presence"
_PRESENCE = "{jabber:client}presence"
_STREAM_ERRORS = "urn:ietf:params:xml:ns:xmpp-streams"

_LEASE_POLL_S = 0.1

ConnectionState: TypeAlias = Literal["offline", "connecting", "online"]


class _RedirectError(Exception):
    """A verified server sends us to `target` (RFC 6120, 4.9.3.19)."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.target = target


class IncomingStanzas:
    """The stanzas that come in. `name` is that of the account in log lines; `abort` ends the session for a reason."""

    def __init__(
        self, client: XMPPClient, name: str, handler: SessionHandler, send_queue: SendQueue, abort: Callable[[str], None]
    ) -> None:
        self._client = client
        self._name = name
        self._handler = handler
        self._on_message, self._intercept = handler.on_message, handler.intercept
        self._send_queue = send_queue
        self._abort = abort
        self._rejected: Counter[str] = client.dropped
        self.answered_at = 0.0
        """The time (`time.monotonic`) of the last answer by the server."""
        self.is_refusing = False
        """True from a message that could not be stored to the next session, in which the server delivers it again."""
        client.raw_handlers |= {
            MESSAGE: self._receive_message,
            _PRESENCE: self._receive_other,
            IQ: self._receive_other,
            ACK_REQUEST: client.stream_management.handle_ack_request,
            ACK: self._receive_ack,
        }
        client.add_filter("in", self._filter)

    def _receive_message(self, message: Element) -> None:
        client = self._client
        stored = None
        if client.peer_default_lang and LANGUAGE not in message.attrib:
            message.set(LANGUAGE, client.peer_default_lang)  # RFC 6120, 4.7.4
        try:
            # After a storage failure the server delivers this message again in the new session, behind the one that failed.
            if not self._intercept(message) and not self.is_refusing:
                stored = self._on_message(message)
        except Exception:
            log.exception("%s: cannot handle a message from %s", self._name, message.get("from"))
        client.stream_management.count_received(stored)

    def _receive_other(self, stanza: Element) -> None:
        """Receive a presence or an IQ. slixmpp and SPADE take long for both, so each sender has a share."""
        if stanza.get("type") in ("result", "error"):
            self.answered_at = self._client.last_received_at
            self._client.handle_with_slixmpp(stanza)
        elif self._handler.has_share(stanza.get("from", "")):
            self._client.handle_with_slixmpp(stanza)
        else:
            self.reject(stanza, "too many stanzas from one sender", self._client.stream_management.config["handled"])

    def _receive_ack(self, ack: Element) -> None:
        h = ack.get("h", "")
        if not h.isdecimal():
            self._abort("it acknowledges without a number")
            return
        self.answered_at = self._client.last_received_at
        self._client.stream_management.handle_ack(int(h))
        self._send_queue.notify_acknowledged()

    def _filter(self, stanza: Any) -> Any:
        # This filter runs after the one of stream management, which has counted the stanza.
        if isinstance(stanza, Presence) and self._handler.on_presence(stanza):
            return None
        if (
            isinstance(stanza, Iq)
            and (error := refusal(stanza.xml, bare_jid(self._name), self._handler.is_visible_to)) is not None
        ):
            self._send_queue.send([OutboundMessage(stanza.xml.get("from", ""), error)])
            return None
        return stanza

    def reject(self, stanza: Element, reason: str, handled_before: int) -> None:
        """Drop a stanza for a reason. It counts as handled (XEP-0198). A request gets an error without its payload."""
        self._rejected[reason] += 1
        if self._rejected[reason] == 1:
            log.warning("%s: dropped a stanza from %s: %s", self._name, stanza.get("from"), reason)
        stream_management = self._client.stream_management
        if stream_management.config["handled"] == handled_before:
            stream_management.count_received(None)
        if stanza.tag == IQ and stanza.get("type") in ("get", "set"):  # required by RFC 6120, 8.2.3
            self._send_queue.send([OutboundMessage(stanza.get("from", ""), build_iq_error(stanza))])


class Connection:
    """A connection that sends and receives stanzas for one JID, across reconnects.

    After a cut, stanzas that the server has not acknowledged are sent again, whether the session was resumed or not. Stanzas
    sent without a session wait for the next one. `name` is the account in errors and log lines, by default its JID.
    """

    def __init__(
        self,
        login: Login,
        endpoint: ServerEndpoint,
        handler: SessionHandler,
        *,
        name: str = "",
        timings: ConnectionTimings = DEFAULT_TIMINGS,
    ) -> None:
        self.client = XMPPClient(login, endpoint, timings, lambda *rejected: self._incoming.reject(*rejected))
        self.rejected: Counter[str] = self.client.dropped
        """The number of dropped stanzas, by reason."""
        self.jid = name or login.jid
        """The name in errors and log lines."""
        self.state: ConnectionState = "offline"
        self.online_at: datetime | None = None
        """The start of the current session."""
        self.last_problem = ""
        """The reason why the connection was lost or cannot be restored; empty while it is online."""
        self.security: Security | None = None
        """The protection of the current session, or of the last one."""
        self.resumption_count = 0
        self.session_count = 0
        self._endpoint = endpoint
        self._domain = jid_domain(login.jid)
        self._renewal_delay_s = timings.renewal_delay_s
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[bool] | None = None
        self._redirect: Target | None = None
        """The host to which the server of the last session has sent us."""
        self._is_closing = False
        self._supervisor: asyncio.Task[None] | None = None
        client = self.client
        client.negotiation.on_failed = self._fail
        client.negotiation.on_login_failed = self._on_login_failed
        client.add_event_handler("session_bind", self._on_bound)
        client.add_event_handler("stream_negotiated", self._on_session_started)
        client.add_event_handler("session_resumed", self._on_session_resumed)
        client.add_event_handler("disconnected", self._on_disconnected)
        client.stream_management.on_store_failed = self._schedule_renewal
        self._renewal = Timer()
        self._is_session_over = False
        """True if the session must not be resumed."""
        self._end_reason = ""
        self._back_off = BackOff(timings.stable_session_s)
        self._keepalive = Keepalive(client, self._abort_session, timings)
        self.send_queue = SendQueue(client, self._keepalive)
        self._incoming = IncomingStanzas(client, self.jid, handler, self.send_queue, self._abort_session)
        client.raw_handlers[STREAM_ERROR] = self._on_stream_error
        """The outgoing stanzas."""
        self.send = self.send_queue.send
        """Send stanzas in order. All stanzas of one round of the event loop leave in one write, or in few."""

    async def open(self) -> None:
        """Connect and log in. Raise ConnectError or LoginError; each attempt takes at most the endpoint's timeout.

        A connection that was closed can be opened again.
        """
        self._is_closing = False
        self.last_problem = ""
        for attempt in range(self._endpoint.attempts):
            try:
                await self._connect_once()
                return
            except LoginError:
                raise
            except ConnectError:
                if self._is_closing or attempt + 1 == self._endpoint.attempts:
                    raise

    async def close(self) -> None:
        """Send what is queued, then end the session, also if this is cancelled. An attempt of `open` ends with ConnectError."""
        ending = asyncio.create_task(self._end())
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await ending  # else the session stays on the server for minutes, which passes messages on to it and to nobody else
            raise

    async def _end(self) -> None:
        self._is_closing = True
        await cancel_tasks(self._supervisor)
        self._keepalive.stop()
        self.client.stream_management.send_unrequested_ack()
        self._renewal.cancel()
        self.send_queue.close()
        if self.state == "online" and self.client.is_connected():
            await self.client.disconnect(wait=1.0)
        self.client.drop()
        self.send_queue.end_session()
        self.state = "offline"
        await cancel_tasks(self.client._run_out_filters)  # slixmpp does not end it

    def cut(self, reason: str) -> None:
        """Cut the connection as `drop` does, and reconnect as soon as the endpoint allows it."""
        self._end_reason = reason
        self.client.abort()

    @property
    def answered_at(self) -> float | None:
        """The time (`time.monotonic`) of the last answer by the server to what this side sent; None without a session."""
        return self._incoming.answered_at if self.state == "online" and self.client.is_connected() else None

    def request_answer(self) -> None:
        """Ask the server for a sign of life: an acknowledgement (XEP-0198), or the answer to a ping (XEP-0199)."""
        if self.client.stream_management.enabled_out:
            self.client.send_raw(REQUEST_ACK)
        else:
            self.client.send_raw(f"<iq type='get' id='canary' to='{self._domain}'><ping xmlns='urn:xmpp:ping'/></iq>")

    def drop(self) -> None:
        """Cut the connection without closing the stream, and do not reconnect. The server sees the same as after `kill -9`."""
        self._is_closing = True
        self.client.abort()

    def acknowledge_received(self) -> tuple[datetime, datetime] | None:
        """Acknowledge what is durable. Return the time of the session until now, or None if something else was received."""
        self.client.stream_management.send_unrequested_ack()
        self.send_queue.flush()
        if self.online_at is None or self.client.stream_management.has_pending:
            return None
        return self.online_at, utc_now()

    async def wait_until_acknowledged(self, timeout_s: float) -> bool:
        """Wait until the server has acknowledged all stanzas, at most `timeout_s` seconds. Return True if it has.

        Without stream management (XEP-0198) it is the answer to a ping (XEP-0199) that acknowledges them. What the server
        sent before its answer has been received then.
        """
        deadline = self._loop.time() + timeout_s
        is_sent = await self.send_queue.wait_until_acknowledged(timeout_s)
        if not is_sent or self.client.stream_management.enabled_out or self.state != "online":
            return is_sent
        try:
            await self.client.plugin["xep_0199"].send_ping(
                self.client.boundjid.host, timeout=max(0.01, deadline - self._loop.time())
            )
        except IqError:
            return True  # an answer too
        except IqTimeout:
            return False
        return True

    def _abort_session(self, reason: str) -> None:
        if self.state == "online":
            self._end_reason = reason
            self.client.abort()

    def _schedule_renewal(self) -> None:
        if not self._incoming.is_refusing and not self._is_closing:
            log.error(
                "%s: cannot store received messages; reconnecting in %g s, so that the server sends them again",
                self.jid,
                self._renewal_delay_s,
            )
            self._incoming.is_refusing = True
            self._renewal.start(self._renewal_delay_s, self._renew)

    def _renew(self) -> None:
        """End the session. Only a new session gets the unacknowledged stanzas again; a resumed one continues behind them."""
        if self.state == "online":
            self._end_reason = "received messages could not be stored"
            # The stream is closed properly, and the next connection waits a little. A server hands over the stanzas of an old
            # session only when that session has ended.
            self._back_off.require_short_delay()
            self.client.disconnect(wait=1.0)
        else:
            self._incoming.is_refusing = False  # the connection was cut: what could not be stored comes again anyway

    # Connecting

    async def _connect_once(self) -> bool:
        """Try the addresses of the server until one gives a session. Return True if the session is new."""
        self._end_reason = ""
        endpoint = self._endpoint
        while endpoint.has_lease is not None and not endpoint.has_lease():  # noqa: ASYNC110 - a lease ends by time alone
            await asyncio.sleep(_LEASE_POLL_S)
        self.state = "connecting"
        dialer = Dialer(endpoint, self._domain, self._redirect)
        self._redirect = None
        try:
            async with asyncio.timeout(endpoint.timeout_s), aclosing(dialer.dial()) as connections:
                async for dialed in connections:
                    if self._is_closing or (endpoint.has_lease is not None and not endpoint.has_lease()):
                        dialed.sock.close()
                        dialer.record_failure(dialed, CLOSED_HERE)
                        break
                    try:
                        return await self._negotiate(dialed)
                    except _RedirectError as redirect:
                        if not dialer.follow_redirect(dialed, redirect.target):
                            dialer.record_failure(dialed, Problem(f"redirects once more, to {redirect.target}"))
                    except NegotiationError as failure:
                        dialer.record_failure(dialed, failure.problem)
        except TimeoutError:
            dialer.record_timeout()
        finally:
            if self.state == "connecting":
                self.state = "offline"
        raise ConnectError(self.jid, *dialer.describe(), is_transient=dialer.is_transient)

    async def _negotiate(self, dialed: Dialed) -> bool:
        """Begin a session on a connection. Cut the connection if that fails."""
        self._outcome = outcome = asyncio.Future[bool]()
        self.state = "connecting"
        stream_management = self.client.stream_management
        stream_management.is_resuming = is_open = False
        try:
            async with asyncio.timeout(None if dialed.is_last else SILENCE_S):
                await self.client.begin(dialed, self._endpoint.update_context())
            while not dialed.is_last and not outcome.done():
                silent_s = self._loop.time() - self.client.last_received_at
                if silent_s >= SILENCE_S:
                    raise TimeoutError
                await asyncio.wait({outcome}, timeout=SILENCE_S - silent_s)
            is_new = await outcome
            is_open = True
            return is_new
        except asyncio.CancelledError:  # by the timeout of all addresses
            self._is_session_over = stream_management.is_resuming
            raise
        except TimeoutError as error:
            self._is_session_over = stream_management.is_resuming
            raise NegotiationError(no_answer(SILENCE_S)) from error
        except OSError as error:
            raise NegotiationError(explain(error)) from error
        finally:
            self._outcome = None
            if not is_open:
                self.state = "connecting"
                self.client.drop()

    def _fail(self, reason: Problem | Exception) -> None:
        """End the attempt, if one goes on."""
        if self._outcome is not None and not self._outcome.done():
            self.client.negotiation.phase = Phase.ENDED
            self._outcome.set_exception(NegotiationError(reason) if isinstance(reason, Problem) else reason)

    def _on_login_failed(self, condition: str) -> None:
        client = self.client
        problem = explain_refused_login(condition, client.boundjid.bare, client.negotiation.registration_problem)
        if problem.is_transient:
            self._fail(problem)
        else:
            self._fail(LoginError(self.jid, str(client.negotiation.dialed or ""), str(problem)))

    def _on_stream_error(self, error: Element) -> None:
        condition, text, value = "undefined-condition", "", ""
        for child in error:
            namespace, _, name = child.tag.removeprefix("{").rpartition("}")
            if namespace == _STREAM_ERRORS and name == "text":
                text = child.text or ""
            elif namespace == _STREAM_ERRORS:
                condition, value = name, child.text or ""
        if condition == "see-other-host":
            self._on_redirect(value)
            return
        is_transient = True
        if condition == "conflict":
            if self._endpoint.has_lease is None:
                # Reconnecting at once would disconnect the other program. That would reconnect at once too, and so on.
                self._back_off.require_long_delay()
            else:
                # A worker that has just lost the agent may have logged in late. The lease says who is right.
                self._back_off.require_short_delay()
            remedy = "stop one of the programs, or use another account"
            self._end_reason = f"another program logged in as {self.client.boundjid.full}; {remedy}"
        elif condition == "host-unknown":  # no retry changes this
            self._end_reason = f"it does not serve the domain {self.client.boundjid.host} (host-unknown)"
            is_transient = False
        else:
            self._end_reason = quote(f"{condition} {text}".strip())
        self._end_stream(Problem(self._end_reason, is_transient=is_transient))

    def _on_redirect(self, value: str) -> None:
        """Follow a redirect within verified TLS only: without it, anybody on the path could write it (RFC 6120, 4.9.3.19)."""
        target = parse_target(value)
        shown = target or "an address that cannot be used"
        self._end_reason = f"the server redirects to {shown}"
        if target is None:
            self._end_stream(Problem(self._end_reason, "check the server's configuration"))
        elif not self.client.negotiation.is_verified:
            remedy = "if that is right, set server.host and server.port"
            self._end_stream(Problem(f"{self._end_reason} without verified TLS, which is not followed", remedy))
        else:
            self._redirect = target if self._outcome is None else None
            self._fail(_RedirectError(target))
            self._end_stream(Problem(self._end_reason))

    def _end_stream(self, problem: Problem) -> None:
        level = logging.WARNING if self.state == "online" else logging.INFO  # of an attempt the error says it
        log.log(level, "%s: the server ended the stream: %s", self.jid, problem.text)
        self._fail(problem)
        if self.state == "online":
            # A flooded ejabberd closes the connection many seconds later, and as long it would not answer a resumption.
            self._is_session_over = True
            self.client.abort()

    def _on_bound(self, bound: JID) -> None:
        """End the attempt if the session is another account's. The resource is the server's choice (RFC 6120, 7.7)."""
        asked = self.client.requested_jid
        if bound.bare != asked.bare:
            self.client.boundjid = asked
            text = f"it opens a session of {quote(bound.bare) or 'no account'} in place of {asked.bare}"
            self._fail(Problem(text, "check that nothing but the server answers there"))

    def _on_session_started(self, _event: Any) -> None:
        if not self.client.bound or not self.client.is_connected():
            return  # these are the features before the login, or the connection is lost already
        self.session_count += 1
        self._go_online(is_new=True)

    async def _on_session_resumed(self, _event: Any) -> None:
        # slixmpp sends unacknowledged stanzas again, through its queue. Ours must not overtake them, or the counts are wrong.
        transport = self.client.transport
        await self.client.waiting_queue.join()
        if transport is None or self.client.transport is not transport:
            return  # the connection was cut again
        self.resumption_count += 1
        self._go_online(is_new=False)

    def _go_online(self, is_new: bool) -> None:
        self.state = "online"
        self.last_problem = ""
        self.security = self.client.negotiation.security
        if is_new:
            self.online_at = utc_now()
        self._incoming.answered_at = now = self._loop.time()
        self._back_off.start_session(now)
        self._keepalive.start()
        self.send_queue.start_session(is_new)
        configure_socket(self.client.transport)
        self.client.quick_ack = find_quick_ack(self.client.transport) if self.client.uses_nagle else None
        self._handler.on_session(is_new)
        self.send_queue.flush()
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(is_new)

    def _on_disconnected(self, reason: Any) -> None:
        was_online = self.state == "online"
        self._keepalive.stop()
        self.send_queue.end_session()
        self.state = "offline"
        if self._incoming.is_refusing:
            self._renewal.cancel()
            self._incoming.is_refusing = False
            self._is_session_over = True
        if self._is_session_over:
            self._is_session_over = False
            self.client.stream_management.session_end(None)
        explained = CLOSED_HERE if self._is_closing else explain(reason)
        problem = self._end_reason or explained.text
        self._fail(Problem(self._end_reason) if self._end_reason else explained)
        if was_online and not self._is_closing:
            self.last_problem = problem
            self._supervisor = asyncio.create_task(self._reconnect(problem))

    async def _reconnect(self, reason: str) -> None:
        delays_s = self._back_off.delays_s(self._loop.time())
        delay_s = next(delays_s)
        when = f"in {delay_s:.1f} s" if delay_s >= 0.05 else "at once"
        log.warning("%s: connection lost (%s); reconnecting %s", self.jid, reason, when)
        problem = ""
        while True:
            await asyncio.sleep(delay_s)
            delay_s = next(delays_s)
            try:
                is_new = await self._connect_once()
            except ConnectError as error:
                log.log(logging.INFO if str(error) == problem else logging.WARNING, "%s", error)
                problem = self.last_problem = str(error)
                continue
            log.warning("%s: connected again (%s)", self.jid, "a new session" if is_new else "the session continues")
            return
