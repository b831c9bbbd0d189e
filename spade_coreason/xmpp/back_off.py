"""When to connect again: sooner after a session that lasted, later with every attempt."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count

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
