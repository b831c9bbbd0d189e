"""What an agent did in the last 24 hours."""

from __future__ import annotations

import pytest

from spade_coreason.runtime.metrics import DAY_S, Activity, Recent


class Seconds:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = 5_000.0

    def __call__(self) -> float:
        return self.now


def test_an_agent_that_did_nothing_has_no_durations() -> None:
    assert Activity(Seconds()).recent() == Recent(0, None, None, 0, None)


def test_half_of_the_answers_take_no_longer_than_p50_and_99_of_100_no_longer_than_p99() -> None:
    clock = Seconds()
    activity = Activity(clock)
    for number in range(1, 101):
        activity.answered(clock.now - number / 1000)
    recent = activity.recent()
    assert recent.answers == 100
    assert 50 <= (recent.p50_ms or 0) <= 55
    assert 99 <= (recent.p99_ms or 0) <= 109


@pytest.mark.parametrize("duration_s", [0.0, 1e-7, 0.0003, 0.04, 1.2, 86_400.0])
def test_a_duration_is_right_to_a_tenth_of_itself(duration_s: float) -> None:
    clock = Seconds()
    activity = Activity(clock)
    activity.answered(clock.now - duration_s)
    least_ms = max(duration_s * 1000, 0.1)
    assert activity.recent().p50_ms == activity.recent().p99_ms
    assert least_ms * 0.999 <= (activity.recent().p50_ms or 0) <= least_ms * 1.101


def test_what_is_older_than_a_day_is_gone_and_the_last_error_is_the_latest() -> None:
    clock = Seconds()
    activity = Activity(clock)
    activity.answered(clock.now)
    activity.failed("first")
    clock.now += DAY_S / 2
    activity.answered(clock.now)
    activity.failed("second")
    activity.failed("third")
    assert (activity.recent().answers, activity.recent().errors, activity.recent().last_error) == (2, 3, "third")
    clock.now += DAY_S / 2 + 1_000
    assert (activity.recent().answers, activity.recent().errors, activity.recent().last_error) == (1, 2, "third")
    clock.now += DAY_S
    assert activity.recent() == Recent()


def test_a_year_of_work_takes_no_more_room_than_a_day() -> None:
    clock = Seconds()
    activity = Activity(clock)
    for _ in range(365 * 48):
        clock.now += 1_800
        activity.answered(clock.now - 1)
    assert activity.recent().answers in (48, 49)
    assert len(activity._slots) <= 97
