"""Waits of other programs are bounded, and told in a unit that people read."""

from __future__ import annotations

import pytest

from spade_coreason.domain.texts.durations import format_duration, read_retry_after_s


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0.0),
        (1.5, 1.5),
        (10**400, 86_400.0),
        (float("inf"), 86_400.0),
        (float("nan"), None),
        (-1, None),
        (True, None),
        ("7", None),
        (None, None),
    ],
)
def test_a_wait_of_another_program_is_at_most_a_day(value: object, seconds: float | None) -> None:
    assert read_retry_after_s(value) == seconds


def test_a_duration_has_the_unit_that_people_read() -> None:
    assert [format_duration(seconds) for seconds in (90, 600, 7200, 86_400)] == ["90 s", "10 min", "2 h", "24 h"]
