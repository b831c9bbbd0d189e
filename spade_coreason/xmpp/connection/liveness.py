"""Liveness of a connection: the keepalive that detects a server that hangs, and the back-off before each reconnection.

A server that hangs keeps its TCP connection open without end, so only the missing replies show it.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterator
from itertools import count

from ..timings import ConnectionTimings
from .slixmpp_client import XMPPClient
from .stream_management import REQUEST_ACK

_DELAYS_S = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class BackOff:
    """The delays before the attempts to reconnect. Times are seconds by the clock of the event loop.

    A session that ends within `stable_session_s` does not count as a success: the next delay is longer.
    """

    def __init__(self, stable_session_s: float = 10.0) -> None:
        self._stable_session_s = stable_session_s
        self._session_started_at = 0.0
        self._short_session_count = 0
        self._min_step = 0

    def start_session(self, now: float) -> None:
        """Record that a session has begun."""
        self._session_started_at = now

    def require_short_delay(self) -> None:
        """Delay the next reconnection by at least about half a second."""
        self._min_step = _DELAYS_S.index(0.5)

    def require_long_delay(self) -> None:
        """Use the longest delay for the next reconnection."""
        self._min_step = len(_DELAYS_S) - 1

    def delays_s(self, now: float) -> Iterator[float]:
        """Return the delays before each attempt after a session has ended, an endless series."""
        if now - self._session_started_at > self._stable_session_s:
            self._short_session_count = 0
        first = max(self._short_session_count, self._min_step)
        self._short_session_count += 1
        self._min_step = 0
        return (_DELAYS_S[min(attempt, len(_DELAYS_S) - 1)] * random.uniform(0.8, 1.2) for attempt in count(first))


_SLOTS = 12


def next_check(silent_since: float, interval_s: float) -> float:
    """Return when a connection is checked that is silent since a time: after the interval, and up to a twelfth later.

    All connections of a process are checked at the same times. One wake-up for many takes a fraction of the CPU.
    """
    slot_s = interval_s / _SLOTS
    return math.ceil((silent_since + interval_s) / slot_s) * slot_s


class Keepalive:
    """Checks of a silent server: request an acknowledgement (XEP-0198), and call `on_silence` if nothing comes.

    `on_silence` gets the reason as text.
    """

    def __init__(self, client: XMPPClient, on_silence: Callable[[str], None], timings: ConnectionTimings) -> None:
        self._client = client
        self._on_silence = on_silence
        self._keepalive_interval_s = timings.keepalive_interval_s
        self._response_timeout_s = timings.response_timeout_s
        self._loop = asyncio.get_running_loop()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._response_timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the checks. Call it with every session, new or resumed."""
        self.stop()
        self._schedule_check(self._loop.time())

    def stop(self) -> None:
        """Stop the checks because the session has ended."""
        for timer in (self._idle_timer, self._response_timer):
            if timer is not None:
                timer.cancel()
        self._idle_timer = self._response_timer = None

    def expect_response(self) -> None:
        """Start the response timer because an acknowledgement was requested just now."""
        if self._response_timer is None:
            self._response_timer = self._loop.call_later(self._response_timeout_s, self._check_response, self._loop.time())

    def _schedule_check(self, silent_since: float) -> None:
        self._idle_timer = self._loop.call_at(next_check(silent_since, self._keepalive_interval_s), self._check_idle)

    def _check_idle(self) -> None:
        now = self._loop.time()
        if not self._client.stream_management.enabled_out:
            self._schedule_check(now)
        elif next_check(self._client.last_received_at, self._keepalive_interval_s) > now:
            self._schedule_check(self._client.last_received_at)
        else:
            self._schedule_check(now)
            self._client.send_raw(REQUEST_ACK)
            self.expect_response()

    def _check_response(self, since: float) -> None:
        self._response_timer = None
        if self._client.last_received_at < since:
            self._on_silence(f"the server sent nothing for {self._response_timeout_s:g} s")
