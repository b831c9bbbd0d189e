"""Stream management (XEP-0198) that acknowledges a message only when it is durable.

`h` counts a prefix of the received stanzas: while one message is not stored, no message behind it is acknowledged either. A
server requests acknowledgements at times of its own choice. Without a request they are sent after a short delay, so that the
server has few stanzas to deliver again if this process is killed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar
from xml.etree.ElementTree import Element

from slixmpp.plugins.base import register_plugin
from slixmpp.plugins.xep_0198 import XEP_0198

from ...runtime import OutboundMessage
from ..timings import ConnectionTimings

if TYPE_CHECKING:
    from ...storage import Commit

_MODULUS = 2**32
_ACK_DELAY_S = 0.1

REQUEST_ACK = "<r xmlns='urn:xmpp:sm:3'/>"
ACK_REQUEST = "{urn:xmpp:sm:3}r"
ACK = "{urn:xmpp:sm:3}a"


class DurableStreamManagement(XEP_0198):  # type: ignore[misc]  # slixmpp comes without types here
    """slixmpp's plugin, which behaves as before while no stanza waits to be stored.

    If a connection has set `on_ack_due`, an acknowledgement leaves with the connection's next write, not in a separate one.
    """

    # An acknowledgement is requested every `window` stanzas, and after a second for the rest.
    default_config: ClassVar[dict[str, Any]] = {**XEP_0198.default_config, "window": 25, "timings": ConnectionTimings()}

    def plugin_init(self) -> None:
        self.on_ack_due: Callable[[], None] | None = None
        self.on_store_failed: Callable[[], None] = lambda: None
        """Called if a stanza could not be stored. Neither it nor any stanza behind it is ever acknowledged."""
        self.is_resuming = False
        """True while a resumption is not answered."""
        self._pending: deque[tuple[int, Commit[Any]]] = deque()
        self._is_ack_requested = False
        self._is_ack_due = False
        self._last_sent_count = 0
        """The count in the last acknowledgement that was sent."""
        self.is_repeating = False
        """True if the next stanza is one that the server repeats: it was received before a resumption and not acknowledged."""
        self._received_before = 0
        """The count of received stanzas before the last resumption."""
        self._ack_timer: asyncio.TimerHandle | None = None
        super().plugin_init()

    def session_end(self, event: Any) -> None:
        self._pending.clear()
        self._is_ack_requested = self.is_repeating = False
        super().session_end(event)

    def count_received(self, stored: Commit[Any] | None) -> None:
        """Count a stanza that slixmpp does not see. It is acknowledged only when it is `stored` (None: at once)."""
        if self.enabled_in:
            # As attributes of the plugin these values are read and set through functions of slixmpp, which cost time for
            # every message.
            config = self.config
            handled = config["handled"] = (config["handled"] + 1) % _MODULUS
            if handled == self._received_before:
                self.is_repeating = False
            if stored is not None and not stored.is_stored:
                self._pending.append((handled, stored))
            if self._ack_timer is None:
                self._schedule_ack()

    @property
    def has_pending(self) -> bool:
        """True if received stanzas wait to be stored."""
        return bool(self._pending)

    def handle_ack_request(self, _: Element) -> None:
        """Handle `<r/>`: the server asks for an acknowledgement."""
        self.send_ack()

    def send_ack(self) -> None:
        """Acknowledge all stanzas received until now, as soon as they are durable."""
        self._drop_stored()
        if not self._pending:
            self._emit_ack()
        elif not self._is_ack_requested:
            # A smaller count now would only make the server request another acknowledgement.
            self._is_ack_requested = True
            newest = self._pending[-1][1]
            newest.on_stored(self._send_requested_ack)
            newest.on_failed(self._send_requested_ack)

    def send_unrequested_ack(self) -> None:
        """Acknowledge the durable stanzas for which the server has not requested it."""
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        if not self.enabled_in:
            return
        self._drop_stored()
        if self._acknowledgeable_count != self._last_sent_count:
            self._emit_ack()
        self._schedule_pending_ack()

    def _schedule_pending_ack(self) -> None:
        """Schedule an acknowledgement of stanzas that are still being stored. `on_store_failed` reported the failed ones."""
        if self._pending and not self._pending[0][1].is_done and self._ack_timer is None:
            self._schedule_ack()

    @property
    def _acknowledgeable_count(self) -> int:
        """The count of stanzas that are known to be durable."""
        return (self._pending[0][0] - 1) % _MODULUS if self._pending else int(self.handled)

    def _schedule_ack(self) -> None:
        self._ack_timer = self.xmpp.loop.call_later(_ACK_DELAY_S, self.send_unrequested_ack)

    def pop_due_ack(self) -> str:
        """Return the acknowledgement that is due, as text for the stream; empty if none is due."""
        if self._is_ack_requested:  # the stanzas that it waits for may just have become durable
            self._drop_stored()
            if not self._pending:
                self._is_ack_requested, self._is_ack_due = False, True
        if not self._is_ack_due:
            return ""
        self._is_ack_due = False
        return self._build_ack()

    def handle_ack(self, h: int) -> None:
        """Remove the stanzas that the server has acknowledged, and call their handlers."""
        acknowledged = (h - self.last_ack) % _MODULUS  # type: ignore[has-type]  # slixmpp comes without types
        self.last_ack = h
        has_handlers = self.xmpp.event_handled("stanza_acked")  # an event without handlers would cost more than all the rest
        queue = self.unacked_queue
        for _ in range(min(acknowledged, len(queue))):
            _, stanza = queue.popleft()
            if isinstance(stanza, OutboundMessage):
                stanza.acknowledge()
            if has_handlers:
                self.xmpp.event("stanza_acked", stanza)

    def _handle_enabled(self, enabled: Any) -> None:
        # slixmpp resets the counts only if a resumption has failed. After a session that could not be resumed at all, it
        # compared the new session's count with the old one's. It then removed every stanza, or none if the two were equal.
        self.last_ack = self._last_sent_count = 0
        self._pending.clear()
        self._is_ack_requested = self.is_repeating = False
        super()._handle_enabled(enabled)

    async def _handle_sm_feature(self, features: Any) -> Any:
        negotiated = self.xmpp.features
        if self.sm_id and "bind" not in negotiated and "stream_management" not in negotiated:
            transport = self.xmpp.transport
            with suppress(TimeoutError):
                async with asyncio.timeout(self.timings.resumption_wait_s):
                    for _, stored in list(self._pending):
                        await stored.wait()
            if self.xmpp.transport is not transport:
                return True  # the connection was cut again: this stream has ended
            self._count_stored()
            self.is_resuming = True
        outcome = await super()._handle_sm_feature(features)
        self.is_resuming = False
        return outcome

    def _count_stored(self) -> None:
        """Count only what is durable before a resumption, which acknowledges the count. The rest is delivered again."""
        if not self.is_repeating:
            self._received_before = int(self.config["handled"])
        while self._pending and self._pending[0][1].is_stored:
            self._pending.popleft()
        self.handled = self._last_sent_count = self._acknowledgeable_count
        self.is_repeating = self._last_sent_count != self._received_before
        self._pending.clear()
        self._is_ack_requested = False

    def _handle_incoming(self, stanza: Any) -> Any:
        # slixmpp sees presences and IQs only.
        if self.enabled_in and self._ack_timer is None:
            self._schedule_ack()
        stanza = super()._handle_incoming(stanza)
        if self.config["handled"] == self._received_before:
            self.is_repeating = False
        return stanza

    def _handle_ack(self, ack: Any) -> None:
        # slixmpp calls this when a stream is resumed.
        self.handle_ack(ack["h"])

    def count_sent(self, stanzas: list[OutboundMessage]) -> None:
        """Count stanzas that are written to the stream without slixmpp, in the order in which they are written."""
        if not self.enabled_out:
            return
        seq, queue = self.config["seq"], self.unacked_queue
        for stanza in stanzas:
            seq = (seq + 1) % _MODULUS
            queue.append((seq, stanza))
        self.config["seq"] = seq

    def _send_requested_ack(self, _: object) -> None:
        # Stanzas become durable in the order in which they came, so all before this one are durable too.
        if self._is_ack_requested:
            self._is_ack_requested = False
            self._drop_stored()
            self._schedule_pending_ack()  # no acknowledgement was requested for the stanzas received since
            self._emit_ack()

    def _drop_stored(self) -> None:
        pending = self._pending
        while pending and pending[0][1].is_done:
            if not pending[0][1].is_stored:
                self.on_store_failed()
                return
            pending.popleft()

    def _emit_ack(self) -> None:
        if not self.xmpp.transport:
            return
        if self.on_ack_due is None:
            self.xmpp.send_raw(self._build_ack())
        else:
            self._is_ack_due = True
            self.on_ack_due()

    def _build_ack(self) -> str:
        self._drop_stored()
        self._last_sent_count = self._acknowledgeable_count
        return f"<a xmlns='urn:xmpp:sm:3' h='{self._last_sent_count}'/>"


register_plugin(DurableStreamManagement)
