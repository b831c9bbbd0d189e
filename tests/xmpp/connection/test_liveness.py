"""The delays between attempts to reconnect, and the times at which silent connections are checked."""

from __future__ import annotations

from itertools import islice

import pytest

from spade_coreason.xmpp.connection.liveness import BackOff, next_check


def delays(back_off: BackOff, *, after_s: float, count: int) -> list[float]:
    """Return the delays before the first attempts after a session of `after_s` seconds; the jitter is a fifth."""
    back_off.start_session(100.0)
    return list(islice(back_off.delays_s(100.0 + after_s), count))


def test_delays_grow_with_every_attempt_up_to_half_a_minute() -> None:
    expected = [0, 0.2, 0.5, 1, 2, 5, 10, 30, 30, 30]
    assert delays(BackOff(), after_s=60, count=10) == [pytest.approx(delay, rel=0.21) for delay in expected]


def test_delays_grow_after_short_sessions_until_one_lasts() -> None:
    back_off = BackOff()
    first = [delays(back_off, after_s=after_s, count=1)[0] for after_s in (1, 1, 1, 60)]
    assert first == [0, pytest.approx(0.2, rel=0.21), pytest.approx(0.5, rel=0.21), 0]


def test_a_required_delay_applies_once() -> None:
    back_off = BackOff()
    back_off.require_short_delay()
    assert delays(back_off, after_s=60, count=1)[0] >= 0.4
    back_off.require_long_delay()
    assert delays(back_off, after_s=60, count=1)[0] >= 24
    assert delays(back_off, after_s=60, count=1) == [0]


def test_silent_connections_are_checked_together_after_the_interval_and_a_twelfth_later_at_most() -> None:
    silent_since = [1000 + 60 * number / 300 for number in range(300)]
    checks = [next_check(since, 120) for since in silent_since]
    assert len(set(checks)) <= 7  # 300 sessions that began within a minute
    assert all(120 <= check - since <= 130 for check, since in zip(checks, silent_since, strict=True))
