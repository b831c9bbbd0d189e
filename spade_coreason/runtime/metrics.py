"""What an agent did in the last 24 hours: how many answers it gave, how long they took, what failed."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

DAY_S = 24 * 3600.0
_INTERVAL_S = 900.0
# What the durations of each class do not exceed: a tenth more than those of the one before, from 0.1 ms to more than a day.
_BUCKET_LIMITS_S = [1e-4 * 1.1**number for number in range(220)]


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """Of the last 24 hours, to a quarter of an hour, or since the start. Errors are failures: one request may fail again.

    Durations are from a request's arrival to its whole answer, in milliseconds, to a tenth of themselves; None where nothing
    was answered.
    """

    answers: int = 0
    p50_ms: float | None = None
    p99_ms: float | None = None
    errors: int = 0
    last_error: str | None = None


@dataclass(slots=True)
class _Interval:
    number: int
    durations: Counter[int] = field(default_factory=Counter)
    errors: int = 0
    last_error: str | None = None


class Metrics:
    """Counts for one agent, in memory: a quarter of an hour at a time, so that what is older than a day goes by itself.

    `clock` gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = clock
        self._intervals: deque[_Interval] = deque()
        self._interval_end_s = -math.inf  # the time until which the newest of them counts

    def record_reply(self, received_at_s: float) -> None:
        """A request that arrived at `received_at_s`, by `now`, is answered."""
        now = self.now()
        self._interval_at(now).durations[bisect_left(_BUCKET_LIMITS_S, now - received_at_s)] += 1

    def record_failure(self, problem: str) -> None:
        """An answer is an error; `problem` is what an operator is told of it."""
        slot = self._interval_at(self.now())
        slot.errors += 1
        slot.last_error = problem

    def snapshot(self) -> MetricsSnapshot:
        """What it comes to now."""
        self._interval_at(self.now())
        durations: Counter[int] = Counter()
        for slot in self._intervals:
            durations.update(slot.durations)
        return MetricsSnapshot(
            durations.total(),
            _percentile(durations, 0.5),
            _percentile(durations, 0.99),
            sum(slot.errors for slot in self._intervals),
            next((slot.last_error for slot in reversed(self._intervals) if slot.last_error is not None), None),
        )

    def _interval_at(self, now: float) -> _Interval:
        """That of now; those of more than a day ago are dropped."""
        if now >= self._interval_end_s:
            number = int(now // _INTERVAL_S)
            self._interval_end_s = (number + 1) * _INTERVAL_S
            self._intervals.append(_Interval(number))
            while self._intervals[0].number <= number - DAY_S / _INTERVAL_S:
                self._intervals.popleft()
        return self._intervals[-1]


def _percentile(durations: Counter[int], fraction: float) -> float | None:
    """The duration that so many of them do not exceed, in milliseconds."""
    rest = math.ceil(durations.total() * fraction)
    for number in sorted(durations):
        rest -= durations[number]
        if rest <= 0:
            return _BUCKET_LIMITS_S[min(number, len(_BUCKET_LIMITS_S) - 1)] * 1e3
    return None
