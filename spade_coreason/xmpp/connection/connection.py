"""One XMPP session that lasts: connected within a time or a clear error, resumed or renewed when it is cut, honest about it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal, TypeAlias
from xml.etree.ElementTree import Element

from slixmpp import Iq, Presence

from ...codec import LANGUAGE, MESSAGE
from ...contracts.base import utc_now
from ...domain.jid import bare
from ...exceptions import ConnectError, LoginError
from ..timings import USUAL, ConnectionTimings
from . import endpoint
from .client import Client
from .endpoint import Endpoint
from .errors import CLOSED, NO_ADDRESS, in_words, login_refused, remedy_for
from .iq_filter import refusal
from .liveness import BackOff, Watch
from .send_queue import Outgoing, Wanted
from .stream_management import ACK, ACK_REQUEST

log = logging.getLogger(__name__)

OnMessage: TypeAlias = Callable[[Element], asyncio.Future[Any] | None]
State: TypeAlias = Literal["offline", "connecting", "online"]


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
        name: str = "",
        register: bool = False,
        on_message: OnMessage,
        on_session: Callable[[bool], None] = lambda is_new: None,
        on_presence: Callable[[Presence], bool] = lambda presence: False,
        takes: Callable[[Element], bool] = lambda message: False,
        is_there_for: Callable[[str], bool] = lambda asker: True,
        timings: ConnectionTimings = USUAL,
    ) -> None:
        self.client = Client(jid, password, endpoint, register, timings)
        self.jid = name or jid
        """What errors call it."""
        self.state: State = "offline"
        self.online_at: datetime | None = None
        """When the session began that is there now."""
        self.trouble = ""
        """Since it was lost: why, or why it cannot be had again."""
        self.resumptions = 0
        self.sessions = 0
        self._endpoint = endpoint
        self._renew_s = timings.renew_s
        self._on_message = on_message
        self._on_session = on_session
        self._on_presence = on_presence
        self._takes = takes
        self._is_there_for = is_there_for
        self._loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[bool] | None = None
        self._is_closing = False
        self._supervisor: asyncio.Task[None] | None = None
        client = self.client
        client.handlers = {MESSAGE: self._message, ACK_REQUEST: self._ack_requested, ACK: self._acknowledged}
        client.add_filter("in", self._filter)
        client.add_event_handler("stream_negotiated", self._session_begins)
        client.add_event_handler("session_resumed", self._session_resumed)
        client.add_event_handler("disconnected", self._disconnected)
        client.add_event_handler("failed_all_auth", self._login_failed)
        client.add_event_handler("connection_failed", self._connection_failed)
        client.add_event_handler("ssl_invalid_chain", self._certificate_wrong)
        client.add_event_handler("stream_error", self._stream_error)
        client.sm.on_loss = self._renew_later
        self._renewal: asyncio.TimerHandle | None = None
        self._ended_by = ""
        self._back_off = BackOff(timings.steady_s)
        self._watch = Watch(client, self._silent, timings)
        self._outgoing = Outgoing(client, self._watch)
        self.send = self._outgoing.send
        """Sends stanzas in order; what is sent in one round of the event loop leaves in one write, or in few."""

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
        self._watch.end()
        self.client.sm.send_unasked()
        if self._renewal is not None:
            self._renewal.cancel()
        self._outgoing.end()
        if self.state == "online" and self.client.is_connected():
            await self.client.disconnect(wait=1.0)
        self._abort()
        self._outgoing.cut()
        self.state = "offline"
        filters = self.client._run_out_filters  # a task that slixmpp leaves behind
        if filters is not None:
            filters.cancel()
            await asyncio.gather(filters, return_exceptions=True)

    def vanish(self) -> None:
        """Ends the connection without a word, and does not come back: for the server as after a `kill -9`."""
        self._is_closing = True
        self.client.abort()

    async def settle(self, timeout_s: float) -> bool:
        """Waits until the server has acknowledged everything; whether it has."""
        return await self._outgoing.settle(timeout_s)

    def recall(self, kind: type[Wanted]) -> list[Wanted]:
        """Takes back what has not left yet, or must leave again with a new session, of one kind."""
        return self._outgoing.recall(kind)

    # Receiving

    def _message(self, message: Element) -> None:
        client = self.client
        durable = None
        if client.peer_default_lang and LANGUAGE not in message.attrib:
            message.set(LANGUAGE, client.peer_default_lang)  # RFC 6120, 4.7.4
        try:
            # Where something could not be stored, it comes again with the new session, behind that.
            if not self._takes(message) and self._renewal is None:
                durable = self._on_message(message)
        except Exception:
            log.exception("%s: a message from %s could not be read", self.jid, message.get("from"))
        client.sm.came_in(durable)

    def _ack_requested(self, _: Element) -> None:
        self.client.sm.send_ack()

    def _acknowledged(self, ack: Element) -> None:
        h = ack.get("h", "")
        if not h.isdecimal():
            self._silent("it acknowledges without a number")
            return
        self.client.sm.handle_ack(int(h))
        self._outgoing.acknowledged()
        endpoint.acknowledge_at_once(self.client.transport)

    def _filter(self, stanza: Any) -> Any:
        # After stream management's own filter, which has counted the stanza.
        if isinstance(stanza, Presence) and self._on_presence(stanza):
            return None
        if isinstance(stanza, Iq) and (error := refusal(stanza.xml, bare(self.jid), self._is_there_for)) is not None:
            self.send([error])
            return None
        return stanza

    def _silent(self, why: str) -> None:
        if self.state == "online":
            self._ended_by = why
            self.client.abort()

    def _renew_later(self) -> None:
        if self._renewal is None and not self._is_closing:
            log.error(
                "%s: what came in cannot be stored; it is not acknowledged, and comes again with a new session in %g s",
                self.jid,
                self._renew_s,
            )
            self._renewal = self._loop.call_later(self._renew_s, self._renew)

    def _renew(self) -> None:
        """Only to a new session does the server deliver again what it holds; a resumed one would go on behind it."""
        if self.state == "online":
            self._ended_by = "what it sent could not be stored"
            # Said in form, and not come back to at once: a server hands over what an old session has left when that has ended.
            self._back_off.wait_a_little()
            self.client.disconnect(wait=1.0)
        else:
            self._renewal = None  # cut meanwhile: what could not be stored comes again anyway

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
        if str(problem).startswith("No DNS record"):  # slixmpp names the domain, whatever host it looked for
            problem = NO_ADDRESS
        self._fail(ConnectError(self.jid, self.address, in_words(problem) + remedy_for(problem)))

    def _certificate_wrong(self, problem: Any) -> None:
        self._fail(ConnectError(self.jid, self.address, in_words(problem)))

    def _login_failed(self, _event: Any) -> None:
        self._fail(LoginError(self.jid, self.address, login_refused(self.client.registration)))

    def _stream_error(self, error: Any) -> None:
        condition = error["condition"]
        if condition == "conflict":
            # Coming back at once would throw the other out, which would come back at once, and so on.
            self._back_off.wait_long()
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
        self._online(is_new=True)

    async def _session_resumed(self, _event: Any) -> None:
        # slixmpp sends again what was not acknowledged, through its queue; ours must not overtake it, or the counts lie.
        await self.client.waiting_queue.join()
        if not self.client.is_connected():
            return  # cut again meanwhile
        self.resumptions += 1
        self._online(is_new=False)

    def _online(self, is_new: bool) -> None:
        self.state = "online"
        self.trouble = ""
        if is_new:
            self.online_at = utc_now()
        self._back_off.begin(self._loop.time())
        self._watch.begin()
        self._outgoing.begin(is_new)
        endpoint.prepare(self.client.transport)
        self._on_session(is_new)
        self._outgoing.flush()
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(is_new)

    def _disconnected(self, reason: Any) -> None:
        was_online = self.state == "online"
        self._watch.end()
        self._outgoing.cut()
        self.state = "offline"
        if self._renewal is not None:
            self._renewal.cancel()
            self._renewal = None
            self.client.sm.session_end(None)
        why = self._ended_by or in_words(reason or CLOSED)
        self._fail(ConnectError(self.jid, self.address, self._ended_by or why + remedy_for(reason or CLOSED)))
        if was_online and not self._is_closing:
            self.trouble = why
            self._supervisor = asyncio.create_task(self._reconnect(why))

    async def _reconnect(self, why: str) -> None:
        delays_s = self._back_off.delays_s(self._loop.time())
        delay_s = next(delays_s)
        begins = f"in {delay_s:.1f} s" if delay_s >= 0.05 else "at once"
        log.warning("%s: connection lost (%s); reconnecting %s", self.jid, why, begins)
        problem = ""
        while True:
            await asyncio.sleep(delay_s)
            delay_s = next(delays_s)
            try:
                is_new = await self._attempt()
            except ConnectError as error:
                log.log(logging.INFO if str(error) == problem else logging.WARNING, "%s", error)
                problem = self.trouble = str(error)
                continue
            log.warning("%s: connected again (%s)", self.jid, "a new session" if is_new else "the session goes on")
            return
