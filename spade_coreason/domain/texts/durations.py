"""Waits that another program asks for, and durations as people read them."""

from __future__ import annotations

MAX_RETRY_AFTER_S = 86_400.0
"""The longest wait that is taken from another program: a day."""


def read_retry_after_s(value: object) -> float | None:
    """Return the seconds that another program wants us to wait, at most a day. None if the value is no such number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:  # NaN is not either
        return None
    return float(min(value, MAX_RETRY_AFTER_S))


def format_duration(seconds: float) -> str:
    """Format a duration with one unit: "90 s", "15 min" or "24 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
