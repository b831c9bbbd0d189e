"""Lists of what is stored: their pages, their filters, and what they cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, Table, event, insert, text as sql

from spade_coreason.app.stored_host import StoredHost
from spade_coreason.config import Settings
from spade_coreason.contracts import AuditEntry
from spade_coreason.exceptions import ConfigError
from spade_coreason.operations.definition import Actor, Call, CallerKind
from spade_coreason.operations.table import OPERATIONS
from spade_coreason.storage import AgentRepository, Database, Task, to_micros
from spade_coreason.storage.schema import (
    CLOSED,
    RECEIVED,
    ConversationRow,
    CrashedRequest,
    InboxRow,
    Incident,
    ParkedRequest,
    StoredQuestion,
    conversations,
    crashed_requests,
    inbox,
    incidents,
    parked_requests,
    questions,
    tasks,
)

AGENTS = [f"agent{number}@localhost" for number in range(3)]
ALICE, BOB = "alice@localhost", "bob@localhost"
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
MICROS = to_micros(NOW)
"""Most rows are of one moment, as those of one transaction are."""


def make_task(number: int, kind: str, data: str) -> Task:
    times = MICROS + number // 10, MICROS, MICROS + number // 10, MICROS
    agent, person = AGENTS[number % 3], (ALICE, BOB)[number % 2]
    return Task(number, agent, kind, f"{number:08x}-0000", person, "", None, "waiting", "", 0, data, *times)


ERRORS = json.dumps([{"type": "builtins.ValueError", "relation": "", "places": [], "omitted": 0}])
SCHEDULE = json.dumps({"kind": "reminder", "cron": "", "zone": "", "missed": "run", "request": {"payload": {}}})
MADE: dict[str, tuple[Table, Any]] = {
    "notifications.list": (tasks, lambda number: make_task(number, "notification", '{"content":[]}')),
    "schedules.list": (tasks, lambda number: make_task(number, "schedule", SCHEDULE)),
    "approvals.list": (
        questions,
        lambda number: StoredQuestion(
            number,
            AGENTS[number % 3],
            f"{number:08x}-0000",
            number,
            "approval",
            "step",
            1,
            None,
            (ALICE, BOB)[number % 2],
            "pay",
            "{}",
            "CODE",
            "",
            "open",
            None,
            "",
            MICROS,
            MICROS,
            MICROS,
        ),
    ),
    "incidents.list": (
        incidents,
        lambda number: Incident(
            number, AGENTS[number % 3], f"{number:08x}", (ALICE, BOB)[number % 2], None, MICROS, ERRORS, "secret"
        ),
    ),
    "requests.list": (
        crashed_requests,
        lambda number: CrashedRequest(number, AGENTS[number % 3], (ALICE, BOB)[number % 2], MICROS, "{}", 3, MICROS),
    ),
    "sessions.list": (
        conversations,
        lambda number: ConversationRow(
            number,
            AGENTS[number % 3],
            f"{number}@localhost",
            (ALICE, BOB)[number % 2],
            "session",
            "active",
            1,
            100,
            MICROS,
            MICROS,
            0,
            None,
            1,
            1,
        ),
    ),
}


async def store(database: Database, table: Table, rows: list[Any]) -> None:
    await database.write(lambda connection: connection.execute(insert(table), [row._asdict() for row in rows]))


async def perform(database: Database, path: Path, name: str, **arguments: object) -> Any:
    call = Call(StoredHost(Settings(data_dir=path), AGENTS, database, None), Actor(CallerKind.MACHINE_USER, "user tester"))
    return await OPERATIONS[name](call, OPERATIONS[name].read_arguments(arguments))


def id_of(row: Any) -> str:
    return str(getattr(row, "conversation_id", None) or row.id)


@pytest.mark.parametrize("name", MADE)
async def test_pages_have_each_row_once_although_all_are_of_one_moment(database: Database, tmp_path: Path, name: str) -> None:
    table, make = MADE[name]
    await store(database, table, [make(number) for number in range(1, 26)])
    whole = list(map(id_of, await perform(database, tmp_path, name, limit=100)))
    beyond, found = "after" if name == "schedules.list" else "before", list[str]()
    for _ in range(4):
        further = {beyond: found[-1]} if found else {}
        found += map(id_of, await perform(database, tmp_path, name, limit=7, **further))
    assert found == whole
    assert len(set(found)) == 25
    early, late = ("2000-01-01", "2100-01-01") if beyond == "after" else ("2100-01-01", "2000-01-01")
    assert list(map(id_of, await perform(database, tmp_path, name, limit=100, **{beyond: early}))) == whole
    assert await perform(database, tmp_path, name, **{beyond: late}) == []
    with pytest.raises(ConfigError, match=f'{beyond}: "ffffffff" is neither the id of a .* nor a time'):
        await perform(database, tmp_path, name, **{beyond: "ffffffff"})


async def test_a_cursor_is_an_id_before_it_is_a_time_or_the_beginning_of_another_id(database: Database, tmp_path: Path) -> None:
    _, make = MADE["sessions.list"]
    names = ["trip", "trip_bob@localhost", "20261201", "Trip"]
    made = [make(n)._replace(conversation_id=name, last_interaction=MICROS - n) for n, name in enumerate(names, start=1)]
    await store(database, conversations, made)
    for number, name in enumerate(names, start=1):
        assert list(map(id_of, await perform(database, tmp_path, "sessions.list", before=name))) == names[number:]
    both = [made[0]._replace(id=7, agent=AGENTS[0]), made[0]._replace(id=8, agent=AGENTS[1])]
    await store(database, conversations, [each._replace(conversation_id="room@localhost") for each in both])
    with pytest.raises(ConfigError, match='before: there are several sessions "room@localhost"; name one agent'):
        await perform(database, tmp_path, "sessions.list", before="room@localhost")
    assert await perform(database, tmp_path, "sessions.list", before="room@localhost", agent="agent0") != []
    with pytest.raises(ConfigError, match=r"before: .* is neither the id of a session nor a time"):
        await perform(database, tmp_path, "sessions.list", before="half a character: \udcff")
    with pytest.raises(ConfigError, match='before: "nothing" is neither the id of a session nor a time'):
        await perform(database, tmp_path, "sessions.list", before="nothing")
    with pytest.raises(ConfigError, match=r'before: "9+" is neither the id of a '):
        await perform(database, tmp_path, "sessions.list", before="9" * 20)
    with pytest.raises(ConfigError, match=r'before: "9+" is neither the id of a '):
        await perform(database, tmp_path, "requests.list", before="9" * 20)


@pytest.mark.parametrize("name", MADE)
async def test_a_list_has_what_is_about_a_person_of_one_agent_or_of_all(database: Database, tmp_path: Path, name: str) -> None:
    table, make = MADE[name]
    await store(database, table, [make(number) for number in range(1, 13)])
    person = "owner" if name == "schedules.list" else "person"
    assert len(await perform(database, tmp_path, name, **{person: ALICE})) == 6
    assert len(await perform(database, tmp_path, name, agent="agent1", **{person: ALICE})) == 2
    assert len(await perform(database, tmp_path, name, agent="agent1")) == 4
    assert await perform(database, tmp_path, name, **{person: "nobody@localhost"}) == []


async def test_requests_that_wait_and_those_that_are_parked_are_listed_without_their_text(
    database: Database, tmp_path: Path
) -> None:
    def receive(number: int, state: int) -> InboxRow:
        key, agent = number.to_bytes(16, "big"), AGENTS[number % 3]
        return InboxRow(
            number, agent, key, ALICE, MICROS + number, state, '{"text":"secret"}', None, None, None, None, None, None
        )

    await store(database, inbox, [receive(1, RECEIVED), receive(2, RECEIVED), receive(3, CLOSED), receive(4, RECEIVED)])
    await store(
        database,
        parked_requests,
        [ParkedRequest(9, AGENTS[0], b"9", BOB, "", None, '{"text":"secret"}', b"", "", "[]", MICROS)],
    )
    waiting = await perform(database, tmp_path, "requests.list", state="waiting")
    assert [(each.id, each.agent_id, each.sender, each.state) for each in waiting] == [
        (4, AGENTS[1], ALICE, "waiting"),
        (2, AGENTS[2], ALICE, "waiting"),
        (1, AGENTS[1], ALICE, "waiting"),
    ]
    assert [each.id for each in await perform(database, tmp_path, "requests.list", state="waiting", before="2")] == [1]
    [parked] = await perform(database, tmp_path, "requests.list", state="parked")
    assert (parked.id, parked.sender, parked.state) == (9, BOB, "parked")
    assert datetime.fromisoformat(parked.received_at) == NOW
    assert "secret" not in str([*waiting, parked])
    assert await perform(database, tmp_path, "requests.list", state="parked", before="9") == []
    assert await perform(database, tmp_path, "requests.list", state="parked", person=ALICE) == []
    assert await perform(database, tmp_path, "requests.list") == []
    with pytest.raises(ConfigError, match="there is no failed request 4"):
        await perform(database, tmp_path, "requests.show", id=4)  # it may run: nothing is done to it from outside


async def test_a_list_goes_on_behind_a_row_that_has_changed_meanwhile(database: Database, tmp_path: Path) -> None:
    for name in ("approvals.list", "notifications.list", "requests.list"):
        await store(database, MADE[name][0], [MADE[name][1](number) for number in range(1, 10)])
    await database.execute(sql("UPDATE questions SET state = 'approved' WHERE id = 5"))
    await database.execute(sql("UPDATE tasks SET state = 'sent' WHERE id = 5"))
    await database.execute(sql("UPDATE crashed_requests SET failed_at = NULL WHERE id = 5"))
    ident = f"{5:08x}-0000"
    assert next(each.id for each in await perform(database, tmp_path, "approvals.list", before=ident)) == f"{4:08x}-0000"
    found = await perform(database, tmp_path, "notifications.list", before=ident, state="waiting")
    assert next(each.id for each in found) == f"{4:08x}-0000"
    assert [each.id for each in await perform(database, tmp_path, "requests.list", before="5")] == [4, 3, 2, 1]


async def test_the_trail_is_searched_by_person_action_and_time(database: Database, tmp_path: Path) -> None:
    for agent in AGENTS[:2]:
        trail = AgentRepository(database, agent).audit_trail
        for number in range(1, 31):
            action, person = ("pay", "post")[number % 2], (ALICE, BOB)[number % 3 == 0]
            at = NOW + timedelta(minutes=number)
            await trail.append(
                AuditEntry(actor="agent", action=action, resource=str(number), outcome="success", timestamp=at), person
            )

    async def search(**arguments: object) -> list[int]:
        return [one.number for one in await perform(database, tmp_path, "audit.list", agent="agent0", **arguments)]

    assert await search(action="pay", limit=3) == [26, 28, 30]
    assert await search(action="pay", person=BOB) == [6, 12, 18, 24, 30]
    assert await search(since="2026-11-30T12:28:00Z") == [28, 29, 30]
    assert await search(before="2026-11-30T12:03:00Z") == [1, 2]
    assert await search(before="3") == [1, 2]
    assert await search(action="post", since="2026-11-30T12:10:00Z", before="2026-11-30T12:14:00Z") == [11, 13]
    assert await search(action="refund") == []
    assert await search(before="9" * 30, limit=1) == [30]
    assert len(await perform(database, tmp_path, "audit.list", action="pay", limit=3)) == 6
    await AgentRepository(database, AGENTS[0]).erase_person(BOB)
    assert await search(limit=2) == [29, 30]  # the last one is forgotten
    assert await search(limit=2, since="2026-11-30T12:00:00Z") == [28, 29]
    with pytest.raises(ConfigError, match='since: "yesterday" is no time'):
        await search(since="yesterday")


async def test_a_changed_entry_stops_no_search(database: Database, tmp_path: Path) -> None:
    trail = AgentRepository(database, AGENTS[0]).audit_trail
    for changed in ('{"timestamp":7,"action":[]}', '{"timestamp":"0001-01-01T00:00:00+23:59"}', "[]", "no JSON"):
        await trail.append(AuditEntry(actor="agent", action="pay", resource="", outcome="success", timestamp=NOW), ALICE)
        change = sql("UPDATE audit SET entry = :entry WHERE number = (SELECT max(number) FROM audit)")
        await database.execute(change.bindparams(entry=changed))
    early = NOW - timedelta(days=9000)  # of a worker whose clock was wrong
    for at in (NOW, early, NOW):
        await trail.append(AuditEntry(actor="agent", action="pay", resource="", outcome="success", timestamp=at), ALICE)
    found = await perform(database, tmp_path, "audit.list", agent="agent0", action="pay", since="2026-11-30")
    assert [one.number for one in found] == [5, 7]
    assert len(await perform(database, tmp_path, "audit.list", agent="agent0")) == 7


async def test_people_are_listed_with_their_conversations_those_who_wrote_last_first(
    database: Database, tmp_path: Path
) -> None:
    _, make = MADE["sessions.list"]
    rows = [make(number)._replace(last_interaction=MICROS + number, turns=number) for number in range(1, 7)]
    await store(database, conversations, [*rows, make(9)._replace(owner="silent@localhost", turns=0)])
    found = await perform(database, tmp_path, "people.list")
    assert [(one.person, one.agents, one.conversations, one.turns) for one in found] == [
        (ALICE, 3, 3, 12),
        (BOB, 3, 3, 9),
        ("silent@localhost", 1, 1, 0),
    ]
    assert [one.person for one in await perform(database, tmp_path, "people.list", limit=1)] == [ALICE]
    [second, _] = await perform(database, tmp_path, "people.list", before=found[0].last_interaction)
    assert (second.person, second.last_interaction) == (BOB, found[1].last_interaction)
    [alice, bob, _] = await perform(database, tmp_path, "people.list", agent="agent0")
    assert (alice.agents, alice.turns, bob.turns) == (1, 6, 3)


@contextmanager
def record_reads() -> Iterator[list[str]]:
    """Record the statements of all databases of the process that read."""
    executed: list[str] = []

    def record(connection: object, cursor: object, statement: str, *_: object) -> None:
        if statement.lstrip().startswith("SELECT"):
            executed.append(statement)

    event.listen(Engine, "before_cursor_execute", record)
    try:
        yield executed
    finally:
        event.remove(Engine, "before_cursor_execute", record)


@pytest.mark.parametrize("number", [2000, pytest.param(100_000, marks=pytest.mark.release)])
@pytest.mark.parametrize("name", [*MADE, "people.list"])
async def test_a_list_has_the_same_statements_and_rows_for_a_thousand_rows_and_for_many(
    database: Database, tmp_path: Path, name: str, number: int
) -> None:
    table, make = MADE["sessions.list" if name == "people.list" else name]
    figures = []
    for numbers in (range(1, 1001), range(1001, number + 1)):
        for start in numbers[::9000]:
            await store(database, table, [make(number) for number in range(start, min(start + 9000, numbers.stop))])
        with record_reads() as executed:
            rows = await perform(database, tmp_path, name, limit=100)
        figures.append((executed, len(rows)))
    statements, _ = figures[0]
    assert figures[0] == figures[1]
    assert len(statements) <= 3
    assert [each for each in statements if "LIMIT" not in each and "asked_people" not in each] == []  # those of the page's rows
