"""The clock of an agent after a fault."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spade_coreason.exceptions import StoreError
from spade_coreason.runtime.tasks import AgentTasks, TaskClock
from spade_coreason.storage import Task, TaskQueue
from tests.support.databases import SQLITE, open_without_sync
from tests.support.errors import ExpectedErrors
from tests.support.records import AGENT
from tests.support.wait import eventually


class FailingQueue(TaskQueue):
    """A queue that fails once."""

    error: Exception
    looks = 0

    async def load_next(self, *_: object) -> list[Task]:
        """Fail at the first time."""
        self.looks += 1
        if self.looks == 1:
            raise self.error
        return []


@pytest.mark.parametrize("error", [StoreError("the disk is full"), RuntimeError("a fault")])
async def test_what_is_due_after_a_fault_does_not_wait_for_a_later_due_time(
    error: Exception, expected_errors: ExpectedErrors, tmp_path: Path
) -> None:
    expected_errors("due")
    database = await open_without_sync(f"{SQLITE}{tmp_path}/platform.db")
    queue = FailingQueue(database, AGENT)
    queue.error = error
    tasks = AgentTasks(queue, AGENT, lambda: datetime.now(UTC), retry_s=0.05)
    clock = TaskClock(tasks)
    clock.open()
    tasks.alarm.wake_at(datetime.now(UTC))
    await clock.catch_up()
    tasks.alarm.wake_at(datetime.now(UTC) + timedelta(hours=1))
    await eventually(lambda: queue.looks == 2)
    await clock.close()
    await database.close()
