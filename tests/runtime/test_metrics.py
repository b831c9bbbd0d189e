"""The metrics of an agent over the last 24 hours."""

from __future__ import annotations

import pickle

import pytest

from spade_coreason.operations.status import MetricsSnapshot
from spade_coreason.runtime.observability.metrics import DAY_S, Metrics


class SettableClock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 5_000.0

    def __call__(self) -> float:
        return self.now


def test_an_agent_that_did_nothing_has_no_durations() -> None:
    assert Metrics(SettableClock()).snapshot() == MetricsSnapshot(0, None, None, 0, None)


def test_p50_and_p99_are_the_percentiles_of_the_durations() -> None:
    clock = SettableClock()
    metrics = Metrics(clock)
    for number in range(1, 101):
        metrics.record_reply(clock.now - number / 1000)
    recent = metrics.snapshot()
    assert recent.answers == 100
    assert 50 <= (recent.p50_ms or 0) <= 55
    assert 99 <= (recent.p99_ms or 0) <= 109


@pytest.mark.parametrize("duration_s", [0.0, 1e-7, 0.0003, 0.04, 1.2, 86_400.0])
def test_a_duration_is_accurate_to_ten_percent(duration_s: float) -> None:
    clock = SettableClock()
    metrics = Metrics(clock)
    metrics.record_reply(clock.now - duration_s)
    least_ms = max(duration_s * 1000, 0.1)
    assert metrics.snapshot().p50_ms == metrics.snapshot().p99_ms
    assert least_ms * 0.999 <= (metrics.snapshot().p50_ms or 0) <= least_ms * 1.101


def test_values_older_than_a_day_are_dropped_and_the_last_error_is_the_newest() -> None:
    clock = SettableClock()
    metrics = Metrics(clock)
    metrics.record_reply(clock.now)
    metrics.record_failure("first")
    clock.now += DAY_S / 2
    metrics.record_reply(clock.now)
    metrics.record_failure("second")
    metrics.record_failure("third")
    assert (metrics.snapshot().answers, metrics.snapshot().errors, metrics.snapshot().last_error) == (2, 3, "third")
    clock.now += DAY_S / 2 + 1_000
    assert (metrics.snapshot().answers, metrics.snapshot().errors, metrics.snapshot().last_error) == (1, 2, "third")
    clock.now += DAY_S
    assert metrics.snapshot() == MetricsSnapshot()


def test_a_year_of_work_takes_no_more_memory_than_a_day() -> None:
    clock = SettableClock()
    metrics = Metrics(clock)
    sizes = []
    for days in (1, 364):
        for _ in range(days * 48):
            clock.now += 1_800
            metrics.record_reply(clock.now - 1)
        sizes.append(len(pickle.dumps(metrics)))
    assert metrics.snapshot().answers in (48, 49)
    assert sizes[1] < 1.1 * sizes[0]
