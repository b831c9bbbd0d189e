"""A clock that tests set."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class Clock:
    """Stands still until it is moved."""

    def __init__(self, now: datetime = datetime(2025, 11, 20, 12, tzinfo=UTC)) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def move(self, **by: float) -> None:
        """Forward, by what a timedelta takes: `seconds=5`."""
        self.now += timedelta(**by)
