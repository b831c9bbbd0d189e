"""Ten thousand requests that wait for answers cost a running agent nothing until one is due or answered."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import insert

from spade_coreason.contracts import QuestionState
from spade_coreason.domain.messages import EarlierRuns
from spade_coreason.storage import AgentRepository, ParkedRequest, StoredStep, schema, to_micros
from spade_coreason.storage.schema import CLOSED, PARKED
from tests.runtime.initiative.test_many import NOW, Answering, Opening, measure_open
from tests.support.databases import open_without_sync
from tests.support.records import AGENT
from tests.support.requests import build_incoming
from tests.support.runner import RunnerHarness
from tests.support.stored_questions import make_question

STEP = "response.ask_person"


async def fill(url: str, count: int, *, parked: int) -> None:
    """Store so many requests whose replies have arrived. Some of them are parked: each asks another person for a week."""
    database = await open_without_sync(url)
    repository = AgentRepository(database, AGENT)
    rows: dict[str, list[dict[str, Any]]] = {}
    for number in range(count):
        if number % 1000 == 0:  # so that it can take further row ids
            await database.write(lambda connection: None)
        row, key, person = database.row_ids.next(), UUID(int=number + 1).bytes, f"p{number}@localhost"
        is_parked = number < parked
        received = {"id": row, "agent": AGENT, "key": key, "sender": person, "received_at": to_micros(NOW), "state": CLOSED}
        rows.setdefault("inbox", []).append({**received, "interaction": PARKED if is_parked else None})
        if not is_parked:
            continue
        runs = EarlierRuns(1, NOW.isoformat(), 0, 1, {STEP: 1}, ((STEP, 1),), (), {}, 0)
        incoming = build_incoming("ask", person, stanza_id="a", thread=None, content="", earlier_runs=runs)
        question = make_question(
            repository, row, person, question_id=str(UUID(int=number + 1)), asked_at=NOW, timeout=timedelta(days=7)
        )
        parked_row = ParkedRequest(row, AGENT, key, person, "", None, incoming.to_json(), b"", "xmpp", "[]", to_micros(NOW))
        step = StoredStep(STEP, 1, "0" * 64, None)
        due = repository.due_times.make(question.question_id, "", None, "", "{}", NOW, due_at=NOW + timedelta(days=3.5))
        for table, values in (
            ("parked_requests", parked_row._asdict()),
            ("questions", question._replace(kind="question", step=STEP)._asdict()),
            ("asked_people", {"question": question.id, "agent": AGENT, "person": person}),
            ("steps", {"request": row, **step._asdict()}),
            ("tasks", due._asdict()),
        ):
            rows.setdefault(table, []).append(values)
    for table, found in rows.items():
        statement = insert(schema.metadata.tables[table])
        await database.write(lambda connection, statement=statement, found=found: connection.execute(statement, found) and None)  # type: ignore[misc]  # mypy knows no type of a lambda with a default
    await database.close()


async def test_requests_that_wait_are_not_in_memory_and_wake_nothing(tmp_path: Path) -> None:
    opened: dict[int, Opening] = {}
    for parked in (0, 100, 10_000):
        url = f"sqlite+aiosqlite:///{tmp_path}/{parked}.db"
        await fill(url, 10_000, parked=parked)
        await measure_open(url)  # what the first run imports and compiles
        opened[parked] = await measure_open(url)
        assert opened[parked].wake_ups == 0
    # A number in a set would take more for each of them.
    assert opened[10_000].bytes_held - opened[100].bytes_held < 16 * 10_000
    assert opened[10_000].statements == opened[100].statements == opened[0].statements
    assert opened[10_000].read_instructions < opened[100].read_instructions * 1.1


async def test_one_of_ten_thousand_is_answered_and_the_first_reminder_is_at_half_of_the_time(tmp_path: Path) -> None:
    url, now = f"sqlite+aiosqlite:///{tmp_path}/platform.db", [NOW]
    await fill(url, 10_000, parked=10_000)
    async with RunnerHarness(url, Answering(), clock=lambda: now[0]) as harness:
        # Nothing of them was loaded: neither their rows, which are closed, nor their steps.
        assert harness.database.inbox_index.rows_with_steps == set()
        assert not harness.database.inbox_index.open_rows[AGENT]
        repository = AgentRepository(harness.database, AGENT).questions
        [question] = await repository.load_asked("p7@localhost")
        settled = await repository.settle(question.id, QuestionState.ANSWERED, "{}", "p7@localhost", NOW)
        assert settled is not None
        assert settled.pending is not None
        assert await harness.runner.task_clock.find_next_due() == NOW + timedelta(days=3.5)
        assert harness.runner.task_clock.wake_ups == 0
