"""What is due is read once, also while some of it is being sent. What does not wait is deleted in time."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from spade_coreason.contracts import NotificationState
from spade_coreason.runtime.initiative.notifications import dump_blocks
from spade_coreason.storage import NOTIFICATION, Task, TaskQueue, count_stored
from tests.support.databases import SQLITE, open_without_sync
from tests.support.records import AGENT, OTHER_AGENT, open_repository

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)


async def test_a_notification_whose_state_is_stored_during_the_read_is_not_due_again(tmp_path: Path) -> None:
    database = await open_without_sync(f"{SQLITE}{tmp_path}/platform.db")
    try:
        repository = TaskQueue(database, AGENT, NOTIFICATION)
        ident, content = "c0ffee00-0000-4000-8000-000000000000", dump_blocks("hello")
        new = repository.make_notification(ident, "bob@localhost", None, "", content, NOW)
        await repository.create(new, lambda *_: new)
        [stored] = await repository.load_next([NOTIFICATION], NOW, 10, [], {})
        in_flight = {stored.id: stored}
        reading = asyncio.create_task(repository.load_next([NOTIFICATION], NOW, 10, in_flight, {}))
        await asyncio.sleep(0)  # it has begun to read
        in_flight.clear()
        assert await reading == []
    finally:
        await database.close()


async def test_notifications_that_do_not_wait_are_deleted_after_seven_days_also_without_any_request(database_url: str) -> None:
    """The database is new, and its agents have never received a request."""
    database = await open_without_sync(database_url)
    try:
        repository = await open_repository(database, AGENT)
        stored = TaskQueue(database, AGENT, NOTIFICATION)
        others = TaskQueue(database, OTHER_AGENT, NOTIFICATION)
        for state in NotificationState:
            for agent in (stored, others):
                new = agent.make_notification(str(state), "bob@localhost", None, "", dump_blocks("hello"), NOW)
                await agent.create(new, partial(_decide, new.moved(NOW, state.value)))
        counts = dict.fromkeys(itertools.product((AGENT, OTHER_AGENT), map(str, NotificationState)), 1)
        assert (await count_stored(database))["notifications"] == counts
        await repository.inbox.purge(NOW + timedelta(days=7))
        assert len(await stored.load_page()) == len(NotificationState)
        await repository.inbox.purge(NOW + timedelta(days=7, seconds=1))
        assert [one.state for one in await stored.load_page()] == [NotificationState.WAITING]
        assert len(await others.load_page()) == len(NotificationState)
    finally:
        await database.close()


def _decide(decided: Task, own: int, of_others: int) -> Task:
    return decided
