"""The clock of an agent after a fault."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from spade_coreason.exceptions import StoreError
from spade_coreason.runtime.initiative.due_times import DueTimes
from tests.support.errors import ExpectedErrors
from tests.support.wait import eventually


class FailingSource:
    """A source that fails once."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.looks = 0

    async def run_due(self, now: datetime) -> None:
        """Fail at the first time."""
        self.looks += 1
        if self.looks == 1:
            raise self._error

    async def find_next_due(self) -> datetime | None:
        """Name no time."""
        return None


@pytest.mark.parametrize("error", [StoreError("the disk is full"), RuntimeError("a fault")])
async def test_what_is_due_after_a_fault_does_not_wait_for_a_later_due_time(
    error: Exception, expected_errors: ExpectedErrors
) -> None:
    expected_errors("due")
    source = FailingSource(error)
    due_times = DueTimes("agent@localhost", [source], lambda: datetime.now(UTC), retry_s=0.05)
    due_times.open()
    due_times.wake_at(datetime.now(UTC))
    await due_times.catch_up()
    due_times.wake_at(datetime.now(UTC) + timedelta(hours=1))
    await eventually(lambda: source.looks == 2)
    await due_times.close()
