"""What waits in a database of schema 0030 goes on as tasks: nothing is lost, sent twice or due at another time."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID, uuid5

import pytest

from spade_coreason import AgentDefinition, AgentRequest, AgentTester, Response, Session, every
from spade_coreason.domain.channel_kinds import CHANNEL_KINDS, SCHEDULE_CHANNEL
from spade_coreason.domain.messages import NO_CONTEXT, InboundRequest, RequestContext
from spade_coreason.runtime.initiative.schedules import to_public
from spade_coreason.runtime.intake.scheduler import make_request
from spade_coreason.storage import (
    AgentRepository,
    Task,
    TopicItem,
    TopicRepository,
    open_database,
    to_micros,
    to_notification,
)
from tests.support.clock import Clock
from tests.support.databases import execute
from tests.support.downgrades import downgrade
from tests.support.errors import ExpectedErrors
from tests.support.records import AGENT, ALICE, BOB

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
DUE = NOW + timedelta(days=1)
ROOM = "garden@rooms.localhost"


def make_id(number: int) -> str:
    return str(UUID(int=number + 2**100))


def make_notification(number: int, state: str, **fields: Any) -> dict[str, Any]:
    content = json.dumps([{"block_type": "MARKDOWN", "content": f"news {number}"}])
    row = {"id": number, "agent": AGENT, "notification_id": make_id(number), "person": ALICE, "thread": None, "root": ""}
    row |= {"state": state, "reason": "", "attempts": 0, "content": content, "messages": None}
    return {**row, "created_at": to_micros(NOW), "changed_at": to_micros(NOW), "due_at": to_micros(DUE), **fields}


class Origin(NamedTuple):
    """Where a schedule of the old table came from, and what else its row had."""

    origin: dict[str, Any]
    fields: dict[str, Any]


ORIGINS = {
    "of a person": Origin({"kind": "due_to_person", "sender": f"{ALICE}/phone"}, {"thread": "t"}),
    "behind an agent": Origin(
        {"kind": "due_to_nobody", "sender": BOB, "context": {"hops": 2, "root_sender": ALICE, "hides_person": False}},
        {"owner": BOB, "root": ALICE},
    ),
    "of a hidden person": Origin(
        {"kind": "due_to_nobody", "sender": BOB, "context": {"hops": 1, "root_sender": "", "hides_person": True}},
        {"owner": BOB},
    ),
    "in a room": Origin(
        {"kind": "due_in_room", "sender": f"{ROOM}/ann", "address": ROOM, "nickname": "ann", "room": ROOM, "occupant": ALICE},
        {"owner": ROOM, "root": ALICE},
    ),
    "a job": Origin({"kind": "job", "sender": ALICE, "reply_thread": "t"}, {"kind": "job", "thread": "the job"}),
    "a job without a thread": Origin({"kind": "job", "sender": ALICE, "reply_thread": None}, {"kind": "job", "thread": "j"}),
    "@every": Origin(
        {"kind": "due_to_nobody", "name": "tick"},
        {
            "kind": "every",
            "owner": AGENT,
            "thread": "every:tick",
            "payload": "{}",
            "cron": "0 8 * * *",
            "zone": "Europe/Berlin",
        },
    ),
    "suspended": Origin(
        {"kind": "due_to_person", "sender": ALICE},
        {"state": "suspended", "reason": "the person has no access", "missed": "skip"},
    ),
    "delayed": Origin({"kind": "due_to_person", "sender": ALICE}, {"wake_at": to_micros(DUE + timedelta(hours=3))}),
}


def make_schedule(number: int, name: str) -> dict[str, Any]:
    row = {"id": number, "agent": AGENT, "schedule_id": make_id(number), "kind": "reminder", "owner": ALICE, "root": ""}
    row |= {"thread": None, "payload": '{"query": "tea"}', "cron": "", "zone": "", "missed": "once", "state": "waiting"}
    row |= {"reason": "", "created_at": to_micros(NOW), "due_at": to_micros(DUE), "wake_at": to_micros(DUE)}
    return {**row, "origin": json.dumps(ORIGINS[name].origin), **ORIGINS[name].fields}


def make_request_of_0030(row: dict[str, Any], due_at: datetime) -> InboundRequest:
    """Return the request of a due time as the program of schema 0030 made it."""
    origin = json.loads(row["origin"])
    kind, due_text = CHANNEL_KINDS[origin["kind"]], due_at.astimezone(UTC).isoformat()
    metadata = {"schedule": row["schedule_id"], "due_at": due_text}
    metadata |= {name: origin[name] for name in ("room", "nickname", "occupant") if name in origin}
    if row["kind"] == "every":
        metadata["every"] = origin["name"]
    if "reply_thread" in origin:
        metadata["reply_thread"] = origin["reply_thread"]
    if row["root"] and "address" not in origin:
        metadata["root_sender"] = row["root"]
    context = origin.get("context", {})
    return InboundRequest(
        kind,
        origin.get("sender", row["owner"]),
        "",
        row["thread"],
        json.loads(row["payload"]),
        "",
        "groupchat" if kind.is_room else "chat",
        metadata,
        request_id=uuid5(UUID(row["schedule_id"]), due_text),
        context=RequestContext(**context) if context else NO_CONTEXT,
        owner=row["owner"],
        address=origin.get("address", ""),
        nickname=origin.get("nickname", ""),
        channel_name=SCHEDULE_CHANNEL,
    )


async def migrate(database_url: str, **tables: list[dict[str, Any]]) -> list[Task]:
    """Store rows in a database of schema 0030, and return the tasks after its migration."""
    database = await open_database(database_url, "off")
    await database.write(lambda connection: downgrade(connection, "0030"))
    await database.close()
    for table, rows in tables.items():
        for row in rows:
            values = ", ".join("NULL" if v is None else str(v) if isinstance(v, int) else f"'{v}'" for v in row.values())
            execute(database_url, f"INSERT INTO {table} ({', '.join(row)}) VALUES ({values})")
    database = await open_database(database_url, "off")
    stored = await AgentRepository(database, AGENT).tasks.load()
    await database.close()
    return sorted(stored, key=lambda task: task.id)


async def test_a_notification_keeps_its_state_its_time_and_its_messages(database_url: str) -> None:
    rows = [
        make_notification(1, "waiting"),
        make_notification(2, "waiting", messages='["<message/>", "<message id=\\"2\\"/>"]', attempts=2, reason="it came back"),
        make_notification(3, "sent", thread="t", root=BOB, messages='["<message/>"]'),
        make_notification(4, "waiting", content='{"question": "Which?", "choices": [["a", "A"]], "request": 7}'),
    ]
    stored = await migrate(database_url, notifications=rows)
    for row, task in zip(rows, stored, strict=True):
        found = to_notification(task)
        assert (found.id, found.person, found.thread, found.state) == (make_id(row["id"]), ALICE, row["thread"], row["state"])
        assert (found.reason, found.attempts, found.due_at) == (row["reason"], row["attempts"], DUE)
        assert (task.kind, task.root, task.wake_at) == ("notification", row["root"], to_micros(DUE))
        assert task.values["content"] == json.loads(row["content"])
        assert task.values.get("messages") == json.loads(row["messages"] or "null")


@pytest.mark.parametrize("name", ORIGINS)
async def test_a_schedule_asks_the_same_at_the_same_time(database_url: str, name: str) -> None:
    row = make_schedule(1, name)
    [task] = await migrate(database_url, schedules=[row])
    asked = make_request(task, DUE)
    expected = make_request_of_0030(row, DUE)
    for field in ("payload", "metadata", "context", "thread", "sender", "owner", "address", "nickname", "kind", "request_id"):
        assert getattr(asked, field) == getattr(expected, field), field
    assert (asked.to_json(), asked.stored_root) == (expected.to_json(), expected.stored_root)
    shown = to_public(task)
    assert (shown.id, shown.kind, shown.owner, shown.thread) == (make_id(1), row["kind"], row["owner"], row["thread"])
    assert (shown.cron, shown.zone, shown.missed) == (row["cron"], row["zone"], row["missed"])
    assert (shown.state, shown.reason, shown.due_at, shown.created_at) == (row["state"], row["reason"], DUE, NOW)
    assert (task.root, task.wake_at) == (row["root"], row["wake_at"])
    assert task.thread == ("t" if name == "a job" else None if name == "a job without a thread" else row["thread"])


async def test_all_of_many_rows_are_moved_and_the_old_tables_are_gone(database_url: str) -> None:
    notifications = [make_notification(number, "waiting") for number in range(1, 1201)]
    stored = await migrate(database_url, notifications=notifications, schedules=[make_schedule(2000, "of a person")])
    assert [task.id for task in stored] == [*range(1, 1201), 2000]
    for table in ("notifications", "schedules"):
        with pytest.raises(Exception, match=table):
            execute(database_url, f"SELECT * FROM {table}")


class Ticking:
    """Ticks each hour."""

    manifest = AgentDefinition.simple("ticking")

    @every("0 * * * *", zone="Europe/Berlin", missed="skip")
    async def tick(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Do nothing."""

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Do nothing."""


async def test_a_method_that_runs_at_times_keeps_its_due_time(database_url: str) -> None:
    clock = Clock(NOW)
    async with AgentTester(Ticking(), jid=AGENT, database=database_url, clock=clock) as t:
        [before] = await t.schedules()
    database = await open_database(database_url, "off")
    await database.write(lambda connection: downgrade(connection, "0030"))
    await database.close()
    clock.advance(minutes=30)
    async with AgentTester(Ticking(), jid=AGENT, database=database_url, clock=clock) as t:
        assert await t.schedules() == [before]


class Asking:
    """Asks Bob, who has two days."""

    manifest = AgentDefinition.simple("asking")

    async def assist(self, request: AgentRequest, session: Session, response: Response) -> None:
        """Ask him."""
        answer = await response.ask_person("Which?", to=BOB, timeout=timedelta(days=2))
        await response.markdown(answer.text)


async def test_an_open_question_has_its_reminder_and_its_end_at_the_same_times(
    database_url: str, expected_errors: ExpectedErrors
) -> None:
    expected_errors("incident")  # no one answers
    clock = Clock(NOW)
    async with AgentTester(Asking(), jid=AGENT, database=database_url, clock=clock) as t:
        await t.say("go")
        await t.settled()
    database = await open_database(database_url, "off")
    await database.write(lambda connection: downgrade(connection, "0030"))
    await database.close()
    [stored] = execute(database_url, "SELECT wake_at, expires_at FROM questions")
    assert (stored["wake_at"], stored["expires_at"]) == (to_micros(DUE), to_micros(NOW + timedelta(days=2)))
    async with AgentTester(Asking(), jid=AGENT, database=database_url, clock=clock) as t:
        for time_passed, texts in ((timedelta(hours=23), 0), (timedelta(hours=1), 1), (timedelta(hours=23), 0)):
            await t.advance(time_passed)
            assert len(t.unread(BOB)) == texts
            assert await t.questions(BOB)
        await t.advance(timedelta(hours=1))
        assert await t.questions(BOB) == []


async def test_what_waits_for_a_subscriber_is_delivered(database_url: str) -> None:
    database = await open_database(database_url, "off")
    topics = TopicRepository(database, AGENT)
    await topics.subscribe(BOB, ["#"])
    for topic in ("news", "news", "weather"):
        await topics.publish(TopicItem(make_id(database.row_ids.next()), topic, ALICE, NOW, {}))
    [parked, *_] = await topics.load_deliveries(BOB, 9)
    await topics.record_failure(parked, 0, "", NOW)
    await database.write(lambda connection: downgrade(connection, "0030"))
    await database.close()
    database = await open_database(database_url, "off")
    topics = TopicRepository(database, AGENT)
    await topics.begin(NOW)
    found = [(task.owner, task.key, task.wake_at) for task in await topics.tasks.load()]
    assert sorted(found) == [
        ("", "", to_micros(NOW)),
        *((BOB, f"{BOB} {topic}", to_micros(NOW)) for topic in ("", "news", "weather")),
    ]
    await database.close()


async def test_a_damaged_row_keeps_no_database_from_its_migration(database_url: str) -> None:
    damaged = make_schedule(2, "of a person") | {"origin": "no JSON", "payload": "[1"}
    news = [make_notification(1, "waiting", content="no JSON", messages="[")]
    notification, schedule, other = await migrate(
        database_url, notifications=news, schedules=[damaged, make_schedule(3, "of a person")]
    )
    assert notification.values == {"content": "no JSON", "messages": "["}
    assert (to_public(schedule).payload, to_public(schedule).owner) == ({}, ALICE)
    assert to_public(other).payload == json.loads(make_schedule(3, "of a person")["payload"])
