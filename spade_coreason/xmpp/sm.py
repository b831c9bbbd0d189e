"""Stream management (XEP-0198) that acknowledges a message only when it is durable.

`h` counts a prefix of what came in: while one message is not stored yet, nothing behind it is acknowledged either.
"""

from __future__ import annotations

import asyncio
from typing import Any

from slixmpp.plugins.base import register_plugin
from slixmpp.plugins.xep_0198 import XEP_0198
from slixmpp.plugins.xep_0198.stanza import Ack

_MODULUS = 2**32


class DurableStreamManagement(XEP_0198):  # type: ignore[misc]  # slixmpp comes without types here
    """slixmpp's plugin, which behaves as before where nothing is held."""

    # A request for an acknowledgement every so many stanzas; what is left over is asked for after a second.
    default_config = {**XEP_0198.default_config, "window": 25}

    def plugin_init(self) -> None:
        self._held: dict[int, None] = {}
        self._session = 0
        self._is_short = False
        super().plugin_init()

    def session_end(self, event: Any) -> None:
        self._held.clear()
        self._session += 1
        super().session_end(event)

    def hold(self, durable: asyncio.Future[Any]) -> None:
        """The stanza that is just being handled is not acknowledged before `durable` is done."""
        if not self.enabled_in or durable.done():
            return
        number, session = self.handled, self._session
        self._held[number] = None
        durable.add_done_callback(lambda _: self._release(number, session))

    def send_ack(self) -> None:
        """Acknowledges what is durable."""
        if not self.xmpp.transport:
            return
        handled = self.handled
        if self._held:
            handled = (next(iter(self._held)) - 1) % _MODULUS
            self._is_short = True
        ack = Ack(self.xmpp)
        ack["h"] = handled
        self.xmpp.send_raw(str(ack))

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
        # The server was told less than it asked for, and would ask again only after a while.
        if self._is_short and not self._held:
            self._is_short = False
            self.send_ack()


register_plugin(DurableStreamManagement)
