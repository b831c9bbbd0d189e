"""Stream management (XEP-0198) that acknowledges a message only when it is durable.

`h` counts a prefix of what came in: while one message is not stored yet, nothing behind it is acknowledged either. A server
asks for it when it likes to; what it does not ask for is acknowledged after a moment, so that it has little to deliver again
if this process ends at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

from slixmpp.plugins.base import register_plugin
from slixmpp.plugins.xep_0198 import XEP_0198

from ...runtime import OutboundStanza
from ..timings import ConnectionTimings

_MODULUS = 2**32
_ACK_DELAY_S = 0.1

REQUEST_ACK = "<r xmlns='urn:xmpp:sm:3'/>"
ACK_REQUEST = "{urn:xmpp:sm:3}r"
ACK = "{urn:xmpp:sm:3}a"


class DurableStreamManagement(XEP_0198):  # type: ignore[misc]  # slixmpp comes without types here
    """slixmpp's plugin, which behaves as before where nothing is held.

    What it has to say goes out with the next write where a connection has set `on_ack_due`, instead of in a write of its own.
    """

    # A request for an acknowledgement every so many stanzas; what is left over is asked for after a second.
    default_config: ClassVar[dict[str, Any]] = {**XEP_0198.default_config, "window": 25, "timings": ConnectionTimings()}

    def plugin_init(self) -> None:
        self.on_ack_due: Callable[[], None] | None = None
        self.on_store_failed: Callable[[], None] = lambda: None
        """Called when a stanza could not be stored: it is never acknowledged, and nothing behind it either."""
        self._pending: deque[tuple[int, asyncio.Future[Any]]] = deque()
        self._is_ack_requested = False
        self._is_ack_due = False
        self._last_sent_count = 0
        """What was acknowledged last, as a count."""
        self._ack_timer: asyncio.TimerHandle | None = None
        super().plugin_init()

    def session_end(self, event: Any) -> None:
        self._pending.clear()
        self._is_ack_requested = False
        super().session_end(event)

    def count_received(self, stored: asyncio.Future[Any] | None) -> None:
        """Counts a stanza that slixmpp does not see; it is not acknowledged before `stored` is done."""
        if self.enabled_in:
            # As an attribute it is found, and set, by functions of slixmpp's; and there are as many as messages.
            config = self.config
            handled = config["handled"] = (config["handled"] + 1) % _MODULUS
            if stored is not None and not stored.done():
                self._pending.append((handled, stored))
            if self._ack_timer is None:
                self._schedule_ack()

    def send_ack(self) -> None:
        """Acknowledges what came in until now, as soon as it is durable."""
        self._drop_stored()
        if not self._pending:
            self._emit_ack()
        elif not self._is_ack_requested:
            # Saying less at once would only make the server ask again.
            self._is_ack_requested = True
            self._pending[-1][1].add_done_callback(self._on_stored)

    def send_unrequested_ack(self) -> None:
        """Acknowledges what is durable and the server has not asked about."""
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
        """Sees to what is still being stored; what could not be is a loss, of which somebody knows."""
        if self._pending and not self._pending[0][1].done() and self._ack_timer is None:
            self._schedule_ack()

    @property
    def _acknowledgeable_count(self) -> int:
        """The count of what is durable, as far as it is known to be."""
        return (self._pending[0][0] - 1) % _MODULUS if self._pending else int(self.handled)

    def _schedule_ack(self) -> None:
        self._ack_timer = self.xmpp.loop.call_later(_ACK_DELAY_S, self.send_unrequested_ack)

    def pop_due_ack(self) -> str:
        """The acknowledgement that is due, as text for the stream; empty where none is."""
        if self._is_ack_requested:  # what it waits for may be durable since a moment
            self._drop_stored()
            if not self._pending:
                self._is_ack_requested, self._is_ack_due = False, True
        if not self._is_ack_due:
            return ""
        self._is_ack_due = False
        return self._build_ack()

    def handle_ack(self, h: int) -> None:
        """Frees what the server has acknowledged, and tells whoever waits for it."""
        acknowledged = (h - self.last_ack) % _MODULUS  # type: ignore[has-type]  # slixmpp comes without types
        self.last_ack = h
        is_heard = self.xmpp.event_handled("stanza_acked")  # raising it for nobody costs more than all the rest
        queue = self.unacked_queue
        for _ in range(min(acknowledged, len(queue))):
            _, stanza = queue.popleft()
            if isinstance(stanza, OutboundStanza):
                stanza.acknowledge()
            if is_heard:
                self.xmpp.event("stanza_acked", stanza)

    def _handle_enabled(self, enabled: Any) -> None:
        # slixmpp begins anew only where a resumption has failed. After a session that could not be resumed at all, the count
        # of the new one was compared with that of the old: it freed everything, or nothing where the two were the same.
        self.last_ack = self._last_sent_count = 0
        self._pending.clear()
        self._is_ack_requested = False
        super()._handle_enabled(enabled)

    async def _handle_sm_feature(self, features: Any) -> Any:
        negotiated = self.xmpp.features
        if self.sm_id and "bind" not in negotiated and "stream_management" not in negotiated:
            transport = self.xmpp.transport
            if waiting := [durable for _, durable in self._pending if not durable.done()]:
                await asyncio.wait(waiting, timeout=self.timings.durable_s)
            if self.xmpp.transport is not transport:
                return True  # cut again meanwhile: nothing of this stream goes on
            self._count_stored()
        return await super()._handle_sm_feature(features)

    def _count_stored(self) -> None:
        """Before a resumption, which acknowledges what is counted: what is not durable by then is delivered again."""
        while self._pending and self._is_stored(self._pending[0][1]):
            self._pending.popleft()
        self.handled = self._last_sent_count = self._acknowledgeable_count
        self._pending.clear()
        self._is_ack_requested = False

    def _handle_incoming(self, stanza: Any) -> Any:
        # What slixmpp sees: presences and IQs.
        if self.enabled_in and self._ack_timer is None:
            self._schedule_ack()
        return super()._handle_incoming(stanza)

    def _handle_ack(self, ack: Any) -> None:
        # What slixmpp calls when a stream is resumed.
        self.handle_ack(ack["h"])

    def count_sent(self, stanzas: list[str]) -> None:
        """Counts stanzas that are written to the stream as text; in the order in which they are written."""
        if not self.enabled_out:
            return
        seq, queue = self.config["seq"], self.unacked_queue
        for stanza in stanzas:
            seq = (seq + 1) % _MODULUS
            queue.append((seq, stanza))
        self.config["seq"] = seq

    def _on_stored(self, _: asyncio.Future[Any]) -> None:
        # They become durable in the order in which they came, so everything before this one is too.
        if self._is_ack_requested:
            self._is_ack_requested = False
            self._emit_ack()
            self._schedule_pending_ack()  # nobody has asked about what came since

    def _drop_stored(self) -> None:
        held = self._pending
        while held and held[0][1].done():
            if not self._is_stored(held[0][1]):
                self.on_store_failed()
                return
            held.popleft()

    @staticmethod
    def _is_stored(stored: asyncio.Future[Any]) -> bool:
        return stored.done() and not stored.cancelled() and stored.exception() is None

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
