"""`notifications` and `schedules` list, send again, delete, cancel and run, also without a running platform."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid5

import pytest

from spade_coreason.domain.identifiers import SCHEDULE_NAMESPACE
from spade_coreason.storage import addition_of, open_database, to_micros
from spade_coreason.storage.repository import AgentRepository
from tests.cli.conftest import Invoke
from tests.support.databases import SQLITE, execute
from tests.support.hosting import PROJECT
from tests.support.records import AGENT, ALICE
from tests.support.stored_initiative import NOTIFICATION, SCHEDULE, store_initiative


@pytest.fixture
def data(tmp_path: Path) -> str:
    """A data directory with a notification that bounced, and a reminder."""
    directory = tmp_path / "data"
    directory.mkdir()

    async def fill() -> None:
        database = await open_database(f"{SQLITE}{directory}/platform.db", "off")
        await store_initiative(AgentRepository(database, AGENT), ALICE)
        await database.close()

    asyncio.run(fill())
    return str(directory)


def test_a_notification_is_sent_again_only_if_it_is_not_waiting(invoke: Invoke, data: str) -> None:
    again = invoke("notifications", "retry", NOTIFICATION[:8], "--data", data)
    assert (again.exit_code, again.stdout) == (
        0,
        f"The notification to {ALICE} will be sent again; `spade-coreason notifications list` shows its state.\n",
    )
    [listed] = json.loads(invoke("notifications", "list", "--data", data, "--json").stdout)
    assert (listed["state"], listed["attempts"]) == ("waiting", 0)
    twice = invoke("notifications", "retry", NOTIFICATION[:8], "--data", data)
    assert twice.exit_code == 2
    assert "is still waiting; it is sent at" in twice.stderr


def test_a_notification_that_waits_for_its_next_try_is_listed_with_its_time_and_its_reason(invoke: Invoke, data: str) -> None:
    execute(
        f"{SQLITE}{data}/platform.db",
        "UPDATE tasks SET state = 'waiting', reason = 'the server is away' WHERE kind = 'notification'",
    )
    _, row = invoke("notifications", "list", "--data", data).stdout.splitlines()
    assert re.search(r" waiting .* due \d{4}-\d\d-\d\d \d\d:\d\d; the server is away$", row)


def test_schedules_are_listed_as_the_tutorial_shows_them(invoke: Invoke, tmp_path: Path) -> None:
    kitchen, directory, due = "kitchen@localhost", tmp_path / "data", to_micros(datetime.now(UTC) + timedelta(days=366))
    directory.mkdir()

    async def fill() -> None:
        database = await open_database(f"{SQLITE}{directory}/platform.db", "off")
        repository = AgentRepository(database, kitchen)
        await store_initiative(repository, "guest@localhost")
        [reminder] = await repository.schedules.load()
        every = reminder._replace(
            id=repository.schedules.row_ids.next(),
            key=str(uuid5(SCHEDULE_NAMESPACE, f"{kitchen}\0light_the_oven")),
            owner=kitchen,
            data=json.dumps({**reminder.values, "kind": "every", "cron": "0 6 * * mon-fri", "zone": "Europe/Berlin"}),
            due_at=due,
            wake_at=due,
        )
        assert await repository.schedules.store([addition_of(every)])
        await database.close()

    asyncio.run(fill())
    page = (PROJECT / "docs/tutorial/6-initiative.md").read_text(encoding="utf-8")
    [documented] = re.findall(r"schedules list\n(ID .*?reminder .*?)```", page, re.S)
    printed = invoke("schedules", "list", "--data", str(directory)).stdout
    varying = r"\d{4}-\d\d-\d\d \d\d:\d\d|^(?!30667932)[0-9a-f]{8}"
    assert re.sub(varying, "…", printed, flags=re.M) == re.sub(varying, "…", documented, flags=re.M)


def test_the_help_of_retry_says_what_it_is_for(invoke: Invoke) -> None:
    text = " ".join(invoke("notifications", "retry", "--help").stdout.split())
    assert "Send a notification again, for example one that has bounced." in text
    assert "retry Send a notification again, for example one that has bounced." in " ".join(
        invoke("notifications", "--help").stdout.split()
    )


def test_a_person_is_found_however_their_address_is_written(invoke: Invoke, data: str) -> None:
    for written in (ALICE, ALICE.title(), f"{ALICE}/phone"):
        assert NOTIFICATION[:8] in invoke("notifications", "list", "--person", written, "--data", data).stdout
    assert SCHEDULE[:8] in invoke("schedules", "list", "--owner", ALICE.upper(), "--data", data).stdout
    for command in (("notifications", "list", "--person"), ("schedules", "list", "--owner")):
        wrong = invoke(*command, "alice", "--data", data)
        assert wrong.exit_code == 2
        assert f"error: {command[2]}: 'alice' is not a JID" in wrong.stderr


def test_a_schedule_is_cancelled_and_runs_only_with_a_platform(invoke: Invoke, data: str) -> None:
    assert "no platform is running on" in invoke("schedules", "run", SCHEDULE, "--data", data).stderr
    cancelled = invoke("schedules", "cancel", SCHEDULE[:8], "--yes", "--data", data)
    assert cancelled.stdout == f"The schedule {SCHEDULE[:8]} of {AGENT} (reminder, of {ALICE}) is cancelled.\n"
    assert invoke("schedules", "list", "--data", data).stdout == "No schedules.\n"
