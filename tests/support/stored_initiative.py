"""A stored notification that came back, and a schedule that is due in a year."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from spade_coreason.contracts import MarkdownBlock, NotificationState
from spade_coreason.runtime.initiative.people import dump_blocks
from spade_coreason.storage import WAITING, AgentRepository, StoredSchedule, to_micros

NOTIFICATION, SCHEDULE = "3f2b8c1e-0000-4000-8000-000000000001", "4a2b8c1e-0000-4000-8000-000000000002"


async def store_initiative(repository: AgentRepository, person: str) -> None:
    """Store both for a person."""
    now = datetime.now(UTC)
    content = dump_blocks([MarkdownBlock(content="a secret")])
    new = repository.notifications.make(NOTIFICATION, person, None, "", content, now)
    bounced = new.moved(NotificationState.BOUNCED, now, "gone")
    await repository.database.submit([repository.notifications.add_row(bounced)])
    due = to_micros(now + timedelta(days=365))
    schedule = StoredSchedule(
        id=repository.schedules.next_id(),
        agent=repository.agent,
        schedule_id=SCHEDULE,
        kind="reminder",
        owner=person,
        root="",
        thread=None,
        origin='{"kind": "due_to_nobody"}',
        payload='{"query": "a secret"}',
        cron="",
        zone="",
        missed="once",
        state=WAITING,
        reason="",
        created_at=to_micros(now),
        due_at=due,
        wake_at=due,
    )
    assert await repository.schedules.create(schedule, 100)
