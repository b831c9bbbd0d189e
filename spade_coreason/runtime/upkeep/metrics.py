"""Metrics of one agent over the last 24 hours: number and duration of replies, and failures."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ...operations.status import MetricsSnapshot

DAY_S = 24 * 3600.0
_INTERVAL_S = 900.0
# The largest duration of each bucket: a tenth more than that of the one before, from 0.1 ms to more than a day.
_BUCKET_LIMITS_S = [1e-4 * 1.1**number for number in range(220)]


@dataclass(slots=True)
class _Interval:
    number: int
    durations: Counter[int] = field(default_factory=Counter)
    errors: int = 0
    last_error: str | None = None
    undelivered: int = 0


class Metrics:
    """The counters of one agent, in memory. Each covers a quarter of an hour and is dropped after a day.

    `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = clock
        self._intervals: deque[_Interval] = deque()
        self._interval_end_s = -math.inf  # when the newest interval ends

    def record_reply(self, received_at_s: float) -> None:
        """Record the reply to a request that arrived at `received_at_s`, a time of `now`."""
        now = self.now()
        self._interval_at(now).durations[bisect_left(_BUCKET_LIMITS_S, now - received_at_s)] += 1

    def record_failure(self, problem: str) -> None:
        """Record a failure. Operators see `problem`."""
        interval = self._interval_at(self.now())
        interval.errors += 1
        interval.last_error = problem

    def record_undelivered(self, replies: int) -> None:
        """Record that replies were made and do not reach anybody, or with a negative number that they do after all."""
        self._interval_at(self.now()).undelivered += replies

    def snapshot(self) -> MetricsSnapshot:
        """Return the metrics as of now."""
        self._interval_at(self.now())
        durations: Counter[int] = Counter()
        for interval in self._intervals:
            durations.update(interval.durations)
        return MetricsSnapshot(
            max(durations.total() - sum(interval.undelivered for interval in self._intervals), 0),
            _percentile(durations, 0.5),
            _percentile(durations, 0.99),
            sum(interval.errors for interval in self._intervals),
            next((interval.last_error for interval in reversed(self._intervals) if interval.last_error is not None), None),
        )

    def _interval_at(self, now: float) -> _Interval:
        """Return the interval of now, and drop those of more than a day ago."""
        if now >= self._interval_end_s:
            number = int(now // _INTERVAL_S)
            self._interval_end_s = (number + 1) * _INTERVAL_S
            self._intervals.append(_Interval(number))
            while self._intervals[0].number <= number - DAY_S / _INTERVAL_S:
                self._intervals.popleft()
        return self._intervals[-1]


def _percentile(durations: Counter[int], fraction: float) -> float | None:
    """Return the duration that this fraction of all does not exceed, in milliseconds."""
    rest = math.ceil(durations.total() * fraction)
    for bucket in sorted(durations):
        rest -= durations[bucket]
        if rest <= 0:
            return _BUCKET_LIMITS_S[min(bucket, len(_BUCKET_LIMITS_S) - 1)] * 1e3
    return None
