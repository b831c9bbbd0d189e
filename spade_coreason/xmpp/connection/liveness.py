"""The watch over a connection that may carry nothing any more: a server that hangs keeps it standing for ever."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from itertools import count

from ..timings import ConnectionTimings
from .client import Client
from .stream_management import REQUEST_ACK

_BACK_OFF_S = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class BackOff:
    """The patience of one connection. Times are seconds by the clock of the event loop.

    A session that ends before `steady_s` was no success: the back-off goes on where it was.
    """

    def __init__(self, steady_s: float = 10.0) -> None:
        self._steady_s = steady_s
        self._begun_at = 0.0
        self._short_sessions = 0
        self._least = 0

    def begin(self, now: float) -> None:
        """A session begins."""
        self._begun_at = now

    def wait_a_little(self) -> None:
        """Not to come back at once when the session ends."""
        self._least = _BACK_OFF_S.index(0.5)

    def wait_long(self) -> None:
        """Not to come back soon when the session ends."""
        self._least = len(_BACK_OFF_S) - 1

    def delays_s(self, now: float) -> Iterator[float]:
        """What to wait before each attempt, now that a session has ended; without end."""
        if now - self._begun_at > self._steady_s:
            self._short_sessions = 0
        first = max(self._short_sessions, self._least)
        self._short_sessions += 1
        self._least = 0
        return (_BACK_OFF_S[min(attempt, len(_BACK_OFF_S) - 1)] * random.uniform(0.8, 1.2) for attempt in count(first))


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
