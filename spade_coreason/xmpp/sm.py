"""Stream management (XEP-0198) that acknowledges a message only when it is durable.

`h` counts a prefix of what came in: while one message is not stored yet, nothing behind it is acknowledged either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from slixmpp.plugins.base import register_plugin
from slixmpp.plugins.xep_0198 import XEP_0198

from ..tracked import Tracked

_MODULUS = 2**32


REQUEST_ACK = "<r xmlns='urn:xmpp:sm:3'/>"


class DurableStreamManagement(XEP_0198):  # type: ignore[misc]  # slixmpp comes without types here
    """slixmpp's plugin, which behaves as before where nothing is held.

    What it has to say goes out with the next write where a connection has set `on_news`, instead of in a write of its own.
    """

    # A request for an acknowledgement every so many stanzas; what is left over is asked for after a second.
    default_config = {**XEP_0198.default_config, "window": 25}

    def plugin_init(self) -> None:
        self.on_news: Callable[[], None] | None = None
        self._held: dict[int, None] = {}
        self._session = 0
        self._asked: int | None = None
        self._ack_is_due = False
        super().plugin_init()

    def session_end(self, event: Any) -> None:
        self._held.clear()
        self._session += 1
        self._asked = None
        super().session_end(event)

    def hold(self, durable: asyncio.Future[Any]) -> None:
        """The stanza that is just being handled is not acknowledged before `durable` is done."""
        if not self.enabled_in or durable.done():
            return
        number, session = self.handled, self._session
        self._held[number] = None
        durable.add_done_callback(lambda _: self._release(number, session))

    def send_ack(self) -> None:
        """Acknowledges what came in until now, as soon as it is durable."""
        if self._held:
            # Saying less at once would only make the server ask again.
            self._asked = self.handled
        else:
            self._say_ack()

    def take_ack(self) -> str:
        """The acknowledgement that is due, as text for the stream; empty where none is."""
        if not self._ack_is_due:
            return ""
        self._ack_is_due = False
        return self._ack()

    def handle_ack(self, ack: Any) -> None:
        """Frees what the server has acknowledged, and tells whoever waits for it."""
        acknowledged = (ack["h"] - self.last_ack) % _MODULUS  # type: ignore[has-type]
        self.last_ack = ack["h"]
        is_heard = self.xmpp.event_handled("stanza_acked")  # raising it for nobody costs more than all the rest
        for _ in range(min(acknowledged, len(self.unacked_queue))):
            _, stanza = self.unacked_queue.popleft()
            if isinstance(stanza, Tracked):
                stanza.acknowledge()
            if is_heard:
                self.xmpp.event("stanza_acked", stanza)

    def _handle_ack(self, ack: Any) -> None:
        # What slixmpp calls when a stream is resumed.
        self.handle_ack(ack)

    def count(self, stanzas: list[str]) -> None:
        """Counts stanzas that are written to the stream as text; in the order in which they are written."""
        if not self.enabled_out:
            return
        for stanza in stanzas:
            self.seq = (self.seq + 1) % _MODULUS  # type: ignore[has-type]
            self.unacked_queue.append((self.seq, stanza))

    def _release(self, number: int, session: int) -> None:
        if session != self._session:
            return
        self._held.pop(number, None)
        if self._asked is not None and (not self._held or next(iter(self._held)) > self._asked):
            self._asked = None
            self._say_ack()

    def _say_ack(self) -> None:
        if not self.xmpp.transport:
            return
        if self.on_news is None:
            self.xmpp.send_raw(self._ack())
        else:
            self._ack_is_due = True
            self.on_news()

    def _ack(self) -> str:
        handled = (next(iter(self._held)) - 1) % _MODULUS if self._held else self.handled
        return f"<a xmlns='urn:xmpp:sm:3' h='{handled}'/>"


register_plugin(DurableStreamManagement)
