"""The watch over a connection that may carry nothing any more: a server that hangs keeps it standing for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .sm import REQUEST_ACK
from .timings import ConnectionTimings
from .xmpp_client import Client


class Watch:
    """Asks a server that says nothing for an acknowledgement (XEP-0198), and tells `on_silence` in words that none came."""

    def __init__(self, client: Client, on_silence: Callable[[str], None], timings: ConnectionTimings) -> None:
        self._client = client
        self._on_silence = on_silence
        self._pulse_s = timings.pulse_s
        self._silence_s = timings.silence_s
        self._loop = asyncio.get_running_loop()
        self._pulse_timer: asyncio.TimerHandle | None = None
        self._sign_timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """With every session, new or resumed."""
        self.end()
        self._pulse_timer = self._loop.call_later(self._pulse_s, self._pulse)

    def end(self) -> None:
        """The session is gone."""
        for timer in (self._pulse_timer, self._sign_timer):
            if timer is not None:
                timer.cancel()
        self._pulse_timer = self._sign_timer = None

    def expect_a_sign(self) -> None:
        """The server was asked for an acknowledgement just now."""
        if self._sign_timer is None:
            self._sign_timer = self._loop.call_later(self._silence_s, self._look_for_a_sign, self._loop.time())

    def _pulse(self) -> None:
        self._pulse_timer = self._loop.call_later(self._pulse_s, self._pulse)
        if self._client.sm.enabled_out and self._loop.time() - self._client.heard_at >= self._pulse_s:
            self._client.send_raw(REQUEST_ACK)
            self.expect_a_sign()

    def _look_for_a_sign(self, since: float) -> None:
        self._sign_timer = None
        if self._client.heard_at < since:
            self._on_silence(f"the server said nothing for {self._silence_s:g} s")
