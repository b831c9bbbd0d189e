"""Metrics of one agent: number and duration of replies, and failures, of the last 24 hours and since the start."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ...operations.status import MetricsSnapshot

DAY_S = 24 * 3600.0
_INTERVAL_S = 900.0
# The largest duration of each bucket: a tenth more than that of the one before, from 0.1 ms to more than a day.
_BUCKET_LIMITS_S = [1e-4 * 1.1**number for number in range(220)]

HISTOGRAM_LIMITS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The largest duration of each bucket of a `Histogram`. The last bucket has no limit."""

Outcome: TypeAlias = Literal["answered", "failed", "parked", "cancelled", "command"]
"""The end of a request that was accepted. Requests that were refused are counted by reason."""
RefusalReason: TypeAlias = Literal[
    "access",
    "budget",
    "commands",
    "conversation",
    "deadline",
    "deletion",
    "duplicates",
    "hops",
    "interceptor",
    "queue",
    "quota",
]
Redelivery: TypeAlias = Literal["duplicate", "recovered", "resent"]
"""A request that came again and does not run again, one that runs again after a restart, and a reply that is sent again."""


class Histogram:
    """Durations since the start, counted in buckets."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(HISTOGRAM_LIMITS_S) + 1)
        """The number of durations in each bucket of `HISTOGRAM_LIMITS_S`."""
        self.sum_s = 0.0
        """The sum of all durations."""

    def observe(self, duration_s: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(HISTOGRAM_LIMITS_S, duration_s)] += 1
        self.sum_s += duration_s


@dataclass(frozen=True, slots=True)
class Latencies:
    """The durations of one agent since the start."""

    requests: Histogram = field(default_factory=Histogram)
    """From the arrival of a request until its whole reply is stored."""
    turns: Histogram = field(default_factory=Histogram)
    """From the beginning of a turn until its whole reply is stored."""
    deliveries: Histogram = field(default_factory=Histogram)
    """From the end of a reply until the server has acknowledged it."""


@dataclass(slots=True)
class _Interval:
    number: int
    durations: Counter[int] = field(default_factory=Counter)
    errors: int = 0
    last_error: str | None = None
    undelivered: int = 0


class Metrics:
    """The counters of one agent, in memory.

    Those of `snapshot` cover a quarter of an hour each and are dropped after a day. The others count since the start, and only
    grow: other threads may read them. `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = clock
        self._intervals: deque[_Interval] = deque()
        self._interval_end_s = -math.inf  # when the newest interval ends
        self.outcomes: Counter[Outcome] = Counter()
        """The accepted requests that have ended, by outcome."""
        self.refusals: Counter[RefusalReason] = Counter()
        """The refused requests, by reason."""
        self.redeliveries: Counter[Redelivery] = Counter()
        self.failures = 0
        """The number of failures since the start."""
        self.latencies: Latencies | None = None
        """The durations since the start; None unless they are measured."""

    def measure_latencies(self) -> None:
        """Measure durations from now on."""
        self.latencies = Latencies()

    def record_reply(self, received_at_s: float, outcome: Outcome = "answered", started_at_s: float | None = None) -> None:
        """Record the reply to a request that arrived at `received_at_s`, and whose turn began at `started_at_s`.

        Both are times of `now`.
        """
        now = self.now()
        self._interval_at(now).durations[bisect_left(_BUCKET_LIMITS_S, now - received_at_s)] += 1
        self.outcomes[outcome] += 1
        if self.latencies is not None:
            self.latencies.requests.observe(now - received_at_s)
            if started_at_s is not None:
                self.latencies.turns.observe(now - started_at_s)

    def record_delivery(self, sent_at_s: float) -> None:
        """Record that the server has the whole reply whose end was sent at `sent_at_s`, a time of `now`."""
        if self.latencies is not None:
            self.latencies.deliveries.observe(self.now() - sent_at_s)

    def record_failure(self, problem: str) -> None:
        """Record a failure. Operators see `problem`."""
        self.failures += 1
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
