"""What comes in during a session: it goes to the user of the session, to slixmpp, or nowhere."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element

from slixmpp import Iq, Presence

from ...domain.jid import bare_jid
from ...runtime import OutboundMessage
from ..codec import LANGUAGE, MESSAGE
from .iq_filter import IQ, build_iq_error, refusal
from .send_queue import SendQueue
from .slixmpp_client import XMPPClient
from .stream_management import ACK, ACK_REQUEST

if TYPE_CHECKING:
    from ...storage import Commit

log = logging.getLogger(__name__)

_PRESENCE = "{jabber:client}presence"


class SessionHandler:
    """The agent or client of a connection. By default it ignores what comes in, and hides and refuses nothing."""

    def on_session(self, is_new: bool) -> None:
        """Begin a session, or go on after a cut if it is not new."""

    def intercept(self, message: Element) -> bool:
        """Return True for a message that is not for `on_message`. It counts as received at once."""
        return False

    def on_message(self, message: Element) -> Commit[Any] | None:
        """Receive a message. It is acknowledged to the server when the commit is stored; without one, at once."""
        return None

    def on_presence(self, presence: Presence) -> bool:
        """Receive a presence. Return True if slixmpp must not handle it."""
        return False

    def is_visible_to(self, requester: str) -> bool:
        """Return True if the sender of an IQ may know that the account is online."""
        return True

    def has_share(self, sender: str) -> bool:
        """Return True if a presence or an IQ is within the share of its sender."""
        return True


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
