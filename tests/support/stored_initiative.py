"""A stored notification that came back, and a schedule that is due in a year."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from spade_coreason.contracts import MarkdownBlock, NotificationState
from spade_coreason.runtime.initiative.notifications import dump_blocks
from spade_coreason.storage import AgentRepository, Task, addition_of

NOTIFICATION, SCHEDULE = "3f2b8c1e-0000-4000-8000-000000000001", "4a2b8c1e-0000-4000-8000-000000000002"


async def store_initiative(repository: AgentRepository, person: str) -> None:
    """Store both for a person."""
    now = datetime.now(UTC)
    content = dump_blocks([MarkdownBlock(content="a secret")])
    new = repository.notifications.make_notification(NOTIFICATION, person, None, "", content, now)
    bounced = new.moved(now, NotificationState.BOUNCED.value, "gone")
    reminder = make_reminder(repository, person, now + timedelta(days=365), SCHEDULE, "a secret")
    assert await repository.tasks.store([addition_of(bounced), addition_of(reminder)])


def make_reminder(
    repository: AgentRepository, person: str, due_at: datetime, key: str = "", query: str = "tea", **request: Any
) -> Task:
    """Return a reminder of a person, not stored yet."""
    asked = {"channel": "due_to_person", "sender": person, "owner": person, "stanza_id": "", "payload": {"query": query}}
    data = {"kind": "reminder", "cron": "", "zone": "", "missed": "once", "request": {**asked, **request}}
    return repository.schedules.make(key or str(uuid4()), person, None, "", json.dumps(data), datetime.now(UTC), due_at=due_at)
