"""What an agent did in the last 24 hours."""

from __future__ import annotations

import pytest

from spade_coreason.runtime.metrics import DAY_S, Metrics, MetricsSnapshot


class Seconds:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 5_000.0

    def __call__(self) -> float:
        return self.now


def test_an_agent_that_did_nothing_has_no_durations() -> None:
    assert Metrics(Seconds()).snapshot() == MetricsSnapshot(0, None, None, 0, None)


def test_half_of_the_answers_take_no_longer_than_p50_and_99_of_100_no_longer_than_p99() -> None:
    clock = Seconds()
    activity = Metrics(clock)
    for number in range(1, 101):
        activity.record_reply(clock.now - number / 1000)
    recent = activity.snapshot()
    assert recent.answers == 100
    assert 50 <= (recent.p50_ms or 0) <= 55
    assert 99 <= (recent.p99_ms or 0) <= 109


@pytest.mark.parametrize("duration_s", [0.0, 1e-7, 0.0003, 0.04, 1.2, 86_400.0])
def test_a_duration_is_right_to_a_tenth_of_itself(duration_s: float) -> None:
    clock = Seconds()
    activity = Metrics(clock)
    activity.record_reply(clock.now - duration_s)
    least_ms = max(duration_s * 1000, 0.1)
    assert activity.snapshot().p50_ms == activity.snapshot().p99_ms
    assert least_ms * 0.999 <= (activity.snapshot().p50_ms or 0) <= least_ms * 1.101


def test_what_is_older_than_a_day_is_gone_and_the_last_error_is_the_latest() -> None:
    clock = Seconds()
    activity = Metrics(clock)
    activity.record_reply(clock.now)
    activity.record_failure("first")
    clock.now += DAY_S / 2
    activity.record_reply(clock.now)
    activity.record_failure("second")
    activity.record_failure("third")
    assert (activity.snapshot().answers, activity.snapshot().errors, activity.snapshot().last_error) == (2, 3, "third")
    clock.now += DAY_S / 2 + 1_000
    assert (activity.snapshot().answers, activity.snapshot().errors, activity.snapshot().last_error) == (1, 2, "third")
    clock.now += DAY_S
    assert activity.snapshot() == MetricsSnapshot()


def test_a_year_of_work_takes_no_more_room_than_a_day() -> None:
    clock = Seconds()
    activity = Metrics(clock)
    for _ in range(365 * 48):
        clock.now += 1_800
        activity.record_reply(clock.now - 1)
    assert activity.snapshot().answers in (48, 49)
    assert len(activity._intervals) <= 97
