"""What each table is for erasure, export, retention and backup, and that the code does so.

A new table needs a line in `PURPOSES`, and its rows in `make_rows`.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, NamedTuple
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, insert, inspect

from spade_coreason.app.stored_host import StoredHost
from spade_coreason.config import Settings
from spade_coreason.domain.identifiers import candidate_conversation_ids
from spade_coreason.memory import export_person
from spade_coreason.operations.definition import Actor, Call, CallerKind
from spade_coreason.operations.people import OfWholePerson, delete_person, export_whole_person
from spade_coreason.storage import back_up, open_database, restore, schema
from spade_coreason.storage.backends.database import Database
from tests.support.archives import unpack
from tests.support.databases import SQLITE, execute
from tests.support.records import AGENT, ALICE, BOB, OTHER_AGENT, new_conversation, open_repository, store_turn

TESTER = Actor(CallerKind.MACHINE_USER, "user tester")


class Purpose(NamedTuple):
    """What happens to the rows of a table.

    `erasure` of a person: its rows are "deleted", or stay "anonymous", or stay as they are, as a rule of access does ("kept"),
    or the table is "about nobody". `export` names the keys of the export that have them. `retention` says what deletes them in
    time. Without `is_backed_up` a table is made anew.
    """

    erasure: Literal["deleted", "anonymous", "kept", "about nobody"]
    export: str | None
    retention: str | None
    is_backed_up: bool = True


PURPOSES = {
    "conversations": Purpose("deleted", "conversations", "conversation.retention"),
    "interactions": Purpose("deleted", "conversations", "conversation.retention"),
    "variables": Purpose("deleted", "variables", "conversation.retention"),
    "inbox": Purpose("anonymous", "requests", "seven days after the request is closed"),
    "steps": Purpose("deleted", "requests", "the end of the turn"),
    "crashed_requests": Purpose("deleted", "requests", "seven days after the failure"),
    "incidents": Purpose("deleted", "incidents", "the largest number for a person and for an agent"),
    "shelves": Purpose("deleted", "documents", None),
    "documents": Purpose("deleted", "documents", None),
    "passages": Purpose("deleted", "documents", None),
    "vectors": Purpose("deleted", None, None),  # they are computed from the passages, which the export has
    "audit": Purpose("anonymous", "audit", None),  # the hashes stay, so that the trail can be verified
    "audit_heads": Purpose("about nobody", None, None),
    "topic_subscriptions": Purpose("deleted", "topics", None),
    "topic_items": Purpose("anonymous", "topics", "the retention of the topic"),
    "topic_deliveries": Purpose("deleted", None, "the delivery"),  # of items that others have published
    "tasks": Purpose("deleted", "notifications schedules tasks", "seven days after the last change, or the last due time"),
    "parked_requests": Purpose("deleted", "parked_requests", "the answer, or the end of its time"),
    "questions": Purpose("deleted", "questions", "seven days after the last change"),
    "asked_people": Purpose("deleted", "questions", "the deletion of the question"),
    "api_keys": Purpose("kept", "keys", None),  # as an admission; a name is never free again
    "webhooks": Purpose("about nobody", None, None),  # it is of the platform; a name is never free again
    "webhook_bodies": Purpose("about nobody", None, "the end of the secret"),  # keyed hashes, against replays
    "door_threads": Purpose("deleted", "doors", "the deletion of the conversation, or 90 days after the last use"),
    "door_files": Purpose("deleted", "doors", "seven days"),
    # Only the memory itself exports it: on SQLite it is a file. A retention deletes it with its conversation.
    "interaction_memory": Purpose("deleted", None, "conversation.retention"),
    # It has hashes only, for twelve hours. A restored backup has no sessions, so that none lives again.
    # The deletion of a person at one agent keeps them; `people.delete` ends them.
    "logins": Purpose("kept", None, "two minutes (links), twelve hours (sessions)", is_backed_up=False),
    "sequences": Purpose("about nobody", None, None, is_backed_up=False),  # it goes on behind the restored row ids
    "compatibility": Purpose("about nobody", None, None, is_backed_up=False),  # of the program that restores
    "workers": Purpose("about nobody", None, None, is_backed_up=False),  # of the platforms that run
    "leases": Purpose("about nobody", None, None, is_backed_up=False),
    "worker_calls": Purpose("about nobody", None, "the answer, or the end of a worker", is_backed_up=False),
    "alembic_version": Purpose("about nobody", None, None, is_backed_up=False),
}
# A person publishes items for everybody. They stay, without its name.
_PUBLISHED_FOR_ALL = {("topic_items", "payload")}


def secret_of(person: str) -> str:
    return f"secret-of-{person.partition('@')[0]}"


def make_rows(person: str, first: int) -> dict[str, list[dict[str, Any]]]:
    """Return rows about a person for every table; `first` is its first row id."""
    secret = secret_of(person)
    text = json.dumps(secret)
    conversation = f"thread-{person}"
    of_agent = {"agent": AGENT}
    holders = [("person", person), ("preferences", person), ("refused", person), ("messages.person", person)]
    return {
        "conversations": [
            {**of_agent, "id": first, "conversation_id": conversation, "owner": person, "session_id": secret, "state": "active"}
            | dict.fromkeys(("interaction_count", "max_interactions", "window_start", "turns"), 1)
            | dict.fromkeys(("created_at", "last_interaction"), 1_000_000)
            | {"failures": 0}
        ],
        "interactions": [
            {"id": first, "conversation": first, "number": 1, "interaction_id": secret, "timestamp": 1, "body": text}
        ],
        "variables": [
            {**of_agent, "scope": scope, "holder": holder, "name": f"{scope}-{person}", "value": text, "updated_at": 1}
            for scope, holder in [*holders, ("conversation", conversation)]
        ],
        "inbox": [
            {**of_agent, "id": first, "key": bytes([first] * 16), "sender": person, "received_at": 1, "state": 0}
            | {"request": text, "channel": "xmpp"}
        ],
        "steps": [{"request": first, "name": secret, "number": 1, "arguments_hash": secret, "result": text}],
        "crashed_requests": [
            {**of_agent, "id": first, "sender": person, "received_at": 1, "request": text, "crashes": 1, "stops": 0}
        ],
        "incidents": [
            {**of_agent, "id": first, "incident": secret, "person": person, "occurred_at": 1}
            | {"errors": "[]", "texts": json.dumps([secret])}
        ],
        "shelves": [{**of_agent, "id": first, "scope": "person", "holder": person}],
        "documents": [
            {"id": first, "shelf": first, "name": secret, "digest": b"d", "passages": 1, "characters": 1, "added_at": 1}
        ],
        "passages": [{"id": first, "shelf": first, "document": first, "number": 1, "text": secret, "words": secret}],
        "vectors": [{"passage": first, "model": "m", "dimension": 1, "vector": secret.encode()}],
        "audit": [{**of_agent, "number": first, "person": person, "integrity_hash": "h", "entry": json.dumps({"of": secret})}],
        "audit_heads": [{"agent": f"agent-{first}", "number": first, "integrity_hash": "h"}],
        "topic_subscriptions": [{**of_agent, "subscriber": person, "pattern": secret}],
        "topic_items": [
            {**of_agent, "id": first, "item_id": f"item-{first}", "topic": "t", "publisher": person, "published_at": 1}
            | {"hops": 0, "payload": json.dumps({"value": secret})}
        ],
        "topic_deliveries": [{**of_agent, "item": first, "subscriber": person, "topic": "t", "failures": 1, "error": secret}],
        "tasks": [make_notification(first, person), make_schedule(first + 1, person), make_delivery(first + 2, person)],
        "parked_requests": [make_parked(first, person)],
        "questions": [make_question(first, person)],
        "asked_people": [{**of_agent, "question": first, "person": person}],
        "api_keys": [make_key(first, person)],
        "webhooks": [make_webhook(first)],
        "webhook_bodies": [{"webhook": first, "secret_number": 1, "body": bytes([first] * 32), "accepted_at": 1}],
        "door_threads": [make_door_thread(first, person)],
        "door_files": [make_door_file(first, person)],
        "interaction_memory": [
            {
                **of_agent,
                "id": first,
                "conversation_id": conversation,
                "entry": json.dumps({"content": secret, "timestamp": ""}),
            }
        ],
    }


def make_door_thread(row: int, owner: str) -> dict[str, Any]:
    return {"agent": AGENT, "owner": owner, "digest": bytes([row] * 32), "thread": secret_of(owner), "used_at": 1}


def make_door_file(row: int, owner: str) -> dict[str, Any]:
    secret = secret_of(owner)
    return {
        **{"id": row, "agent": AGENT, "owner": owner, "request": str(UUID(int=row)), "digest": b"d", "token": f"{secret}{row}"},
        **{"name": secret, "type": "text/plain", "size": 1, "data": b"d", "created_at": 1},
    }


def make_key(row: int, account: str) -> dict[str, Any]:
    return {
        **{"id": row, "name": secret_of(account), "agents": json.dumps([AGENT]), "withdrawn": "[]", "account": account},
        **{"users": "", "secret_hash": bytes([row] * 32), "created_by": "user tester", "created_at": 1, "issued_at": 1},
    }


def make_webhook(row: int) -> dict[str, Any]:
    return {
        **{"id": row, "name": f"webhook-{row}", "agent": AGENT, "kind": "github", "thread": None, "secret": "s" * 32},
        **{"secret_number": 1, "answer_key": bytes(32), "created_by": "user tester", "created_at": 1, "issued_at": 1},
    }


def make_notification(row: int, person: str, root: str = "") -> dict[str, Any]:
    secret = secret_of(root or person)
    return {
        **{"id": row, "agent": AGENT, "kind": "notification", "key": str(UUID(int=row)), "owner": person, "root": root},
        **{"thread": secret, "state": "waiting", "reason": secret, "attempts": 0},
        **{"data": json.dumps({"content": [secret], "messages": [secret]})},
        **dict.fromkeys(("created_at", "changed_at", "due_at", "wake_at"), 1),
    }


def make_delivery(row: int, subscriber: str) -> dict[str, Any]:
    return {
        **{"id": row, "agent": AGENT, "kind": "delivery", "key": f"{subscriber} t", "owner": subscriber, "root": ""},
        **{"thread": "", "state": "waiting", "reason": secret_of(subscriber), "attempts": 0, "data": '{"topic": "t"}'},
        **dict.fromkeys(("created_at", "changed_at", "due_at", "wake_at"), 1),
    }


def make_schedule(row: int, owner: str, root: str = "") -> dict[str, Any]:
    secret = secret_of(root or owner)
    data = {"kind": "reminder", "cron": "", "zone": "", "missed": "once"}
    return {
        **{"id": row, "agent": AGENT, "kind": "schedule", "key": str(UUID(int=row)), "owner": owner, "root": root},
        **{"thread": secret, "state": "waiting", "reason": "", "attempts": 0},
        **{"data": json.dumps({**data, "request": {"sender": secret, "payload": {"query": secret}}})},
        **dict.fromkeys(("created_at", "changed_at", "due_at", "wake_at"), 1),
    }


def make_parked(row: int, owner: str, root: str = "") -> dict[str, Any]:
    request = json.dumps({"query": secret_of(root or owner)})
    return {
        **{"id": row, "agent": AGENT, "key": bytes([row] * 16), "owner": owner, "root": root, "thread": None},
        **{"request": request, "digest": b"", "channel": "xmpp", "message_ids": "[]", "parked_at": 1},
    }


def make_question(row: int, requester: str) -> dict[str, Any]:
    secret = secret_of(requester)
    return {
        **{"id": row, "agent": AGENT, "question_id": str(UUID(int=row)), "request": row, "kind": "question", "step": secret},
        **{"number": 1, "thread": None, "requester": requester, "text": secret, "form": "{}", "code": "ABC", "reference": ""},
        **{"state": "open", "answer": json.dumps({"text": secret, "person": requester}), "decided_by": requester},
        **dict.fromkeys(("created_at", "expires_at", "changed_at"), 1),
    }


BEHIND_OTHERS = {
    "conversations": "it belongs to the agent or the room, and is deleted if no turn is left",
    "audit_heads": "it is about nobody",
    "api_keys": "a key stands for the person whom it names",
    "webhooks": "they are about nobody",
    "webhook_bodies": "they are about nobody",
    "audit": "its entries name the person behind the request",
    "door_threads": "a caller asks for itself",
    "door_files": "a caller sends for itself",
    "topic_subscriptions": "an agent subscribes for itself",
}
"""The tables without rows in `make_rows_behind_others`, and why."""


def make_rows_behind_others(first: int) -> dict[str, list[dict[str, Any]]]:
    """Return rows that came from Alice by way of an agent, for each table, beside a turn of Bob in the same conversation."""
    secret, of_agent, mine = secret_of(ALICE), {"agent": AGENT}, {"scope": "conversation", "holder": "shared"}
    output = {"data": [{"data": {"item_id": f"item-{first}"}}]}
    alices = {"meta": {"channel": "program", "root_sender": ALICE, "incident": secret}, "output": output, "lineage": {}}
    bobs = {"meta": {"channel": "program", "root_sender": BOB}, "output": {"text": secret_of(BOB)}, "lineage": {}}
    turn = {"conversation": first, "interaction_id": str(uuid4())}
    request = json.dumps(
        {"channel": "program", "sender": OTHER_AGENT, "stanza_id": secret, "payload": {}, "hops": 1, "root_sender": ALICE}
    )
    received = {"sender": OTHER_AGENT, "received_at": 1, "request": request}
    return {
        "interactions": [
            {
                **turn,
                "id": first,
                "number": 1,
                "timestamp": 1_000,
                "body": json.dumps({**alices, "input": secret}),
                "root": ALICE,
            },
            {**turn, "id": first + 1, "number": 2, "timestamp": 2_000, "body": json.dumps(bobs), "root": BOB},
        ],
        "variables": [
            {**of_agent, **mine, "name": secret, "value": json.dumps(secret), "updated_at": 1_000},
            {**of_agent, **mine, "name": "of bob", "value": json.dumps(secret_of(BOB)), "updated_at": 2_000},
            {
                **of_agent,
                "scope": "person",
                "holder": OTHER_AGENT,
                "name": "n",
                "value": json.dumps(secret),
                "updated_at": 1_000,
            },
        ],
        "inbox": [{**of_agent, **received, "id": first, "key": bytes([first] * 16), "state": 0, "channel": "xmpp"}],
        "steps": [{"request": first, "name": secret, "number": 1, "arguments_hash": secret, "result": json.dumps(secret)}],
        "crashed_requests": [{**of_agent, **received, "id": first, "crashes": 1, "stops": 0}],
        "incidents": [
            {**of_agent, "id": first, "incident": secret, "person": OTHER_AGENT, "occurred_at": 1}
            | {"errors": "[]", "texts": json.dumps([secret])}
        ],
        "shelves": [{**of_agent, **mine, "id": first}],
        "documents": [
            {"id": first, "shelf": first, "name": secret, "digest": b"d", "passages": 1, "characters": 1, "added_at": 1_500},
            {
                "id": first + 1,
                "shelf": first,
                "name": "turn 1",
                "digest": b"e",
                "passages": 1,
                "characters": 1,
                "added_at": 9_000,
            },
        ],
        "passages": [
            {"id": row, "shelf": first, "document": row, "number": 1, "text": secret, "words": secret}
            for row in (first, first + 1)
        ],
        "vectors": [{"passage": first, "model": "m", "dimension": 1, "vector": secret.encode()}],
        "topic_items": [
            {**of_agent, "id": first, "item_id": f"item-{first}", "topic": "t", "publisher": OTHER_AGENT, "published_at": 1}
            | {"hops": 0, "payload": json.dumps({"value": secret})}
        ],
        "topic_deliveries": [
            {**of_agent, "item": first, "subscriber": OTHER_AGENT, "topic": "t", "failures": 1, "error": secret}
        ],
        "tasks": [make_notification(first, OTHER_AGENT, ALICE), make_schedule(first + 1, OTHER_AGENT, ALICE)],
        "parked_requests": [make_parked(first, OTHER_AGENT, ALICE)],
        "questions": [make_question(first, ALICE)],
        "asked_people": [{**of_agent, "question": first, "person": "carol@localhost"}],
        "interaction_memory": [
            {**of_agent, "id": row, "conversation_id": "shared", "entry": json.dumps({"content": text, "timestamp": time})}
            for row, text, time in (
                (first, secret, "1970-01-01T00:00:00.001Z"),
                (first + 1, secret_of(BOB), "1970-01-01T00:00:09.000Z"),
            )
        ],
    }


async def fill(database: Database) -> None:
    rows_of_people = [make_rows(person, first) for person, first in ((ALICE, 100), (BOB, 200))]
    # Not in the writer: pytest of Python 3.11 fails to show the traceback of a failure there.
    assert rows_of_people[0].keys() == {table.name for table in schema.DATA_TABLES}

    def work(connection: Connection) -> None:
        for rows in rows_of_people:
            for table in schema.DATA_TABLES:
                connection.execute(insert(table), rows[table.name])
        connection.execute(insert(schema.logins), [make_login(100, ALICE), make_login(200, BOB)])

    await database.write(work)


def make_login(row: int, person: str) -> dict[str, Any]:
    made = {"id": row, "secret_hash": bytes([row] * 32), "person": person, "is_link": False}
    return {**made, "created_at": 1, "expires_at": 2}


def read_table(url: str, table: str) -> list[dict[str, str]]:
    return [stringify(row) for row in execute(url, f"SELECT * FROM {table}")]


def stringify(row: dict[str, Any]) -> dict[str, str]:
    return {name: value.decode("latin-1") if isinstance(value, bytes) else str(value) for name, value in row.items()}


async def test_every_table_of_the_schema_has_its_purposes(database: Database) -> None:
    """A new table must say what erases it, exports it, deletes it in time and backs it up."""
    found = await database.read(lambda connection: inspect(connection).get_table_names())
    tables = {name for name in found if not name.startswith("passage_words")}  # the full text of passages
    assert tables == PURPOSES.keys()
    assert tables - {"alembic_version"} == schema.metadata.tables.keys() == {table.name for table, _ in schema.KEPT}
    assert {name for name, purpose in PURPOSES.items() if purpose.is_backed_up} == {table.name for table in schema.DATA_TABLES}


async def test_erasing_a_person_does_with_each_table_what_its_purpose_says(database_url: str) -> None:
    database = await open_database(database_url, "off")
    await fill(database)
    before = {table: read_table(database_url, table) for table in PURPOSES if table != "sequences"}
    await (await open_repository(database, AGENT)).erase_person(ALICE)
    for table, old_rows in before.items():
        new_rows = read_table(database_url, table)
        purpose, is_alices = PURPOSES[table].erasure, lambda row: ALICE in str(row) or secret_of(ALICE) in str(row)
        if purpose == "about nobody":
            assert new_rows == old_rows, table
            assert not any(map(is_alices, old_rows)), table
            continue
        if purpose == "kept":
            assert new_rows == old_rows, table
            continue
        assert all(row in new_rows for row in old_rows if secret_of(BOB) in str(row) or BOB in str(row)), table
        visible = [{name: value for name, value in row.items() if (table, name) not in _PUBLISHED_FOR_ALL} for row in new_rows]
        assert not any(map(is_alices, visible)), table
        assert len(old_rows) == 2 * len(make_rows(ALICE, 1).get(table, [0]))
        assert len(new_rows) == (len(old_rows) if purpose == "anonymous" else len(old_rows) // 2), table
    await database.close()


@pytest.mark.parametrize("thread", [None, "holiday"])
async def test_what_is_due_in_a_conversation_is_deleted_by_forget_but_not_by_its_retention(
    database: Database, thread: str | None
) -> None:
    repository = await open_repository(database, AGENT)
    name = candidate_conversation_ids(thread, ALICE, AGENT)[0]
    places = [(ALICE, thread), (ALICE, "other"), (BOB, thread)]

    def store(connection: Connection) -> None:
        for row, (owner, place) in enumerate(places, 1):
            connection.execute(insert(schema.tasks), [{**make_notification(row, owner), "thread": place}])
            connection.execute(insert(schema.tasks), [{**make_schedule(row + 10, owner), "thread": place}])
            connection.execute(insert(schema.parked_requests), [{**make_parked(row, owner), "thread": place}])
            connection.execute(insert(schema.questions), [make_question(row, owner)])

    async def read_left() -> list[list[int]]:
        notifications = await repository.notifications.load_page()
        lists = notifications, await repository.schedules.load(), await repository.questions.load()
        return [sorted(one.id for one in rows) for rows in lists]

    await database.write(store)
    by_retention = await store_turn(repository, new_conversation(repository, name))
    report = await repository.delete_conversation(by_retention)
    assert (report.interactions, report.notifications, report.schedules, report.questions) == (1, 0, 0, 0)
    assert await read_left() == [[1, 2, 3], [11, 12, 13], [1, 2, 3]]
    forgotten = await store_turn(repository, new_conversation(repository, name))
    report = await repository.delete_conversation(forgotten, with_copies=True)
    assert (report.interactions, report.notifications, report.schedules) == (1, 1, 1)
    assert (report.requests, report.questions) == (1, 1)
    assert await read_left() == [[2, 3], [12, 13], [2, 3]]


async def test_what_came_from_a_person_by_way_of_an_agent_is_found_in_each_table(database_url: str, tmp_path: Path) -> None:
    """A new table needs a row in `make_rows_behind_others`, or a reason in `BEHIND_OTHERS`."""
    database = await open_database(database_url, "off")
    await fill(database)
    rows = make_rows_behind_others(40)
    assert rows.keys() | BEHIND_OTHERS.keys() == {table.name for table in schema.DATA_TABLES}

    def store(connection: Connection) -> None:
        [conversation] = make_rows(OTHER_AGENT, 40)["conversations"]
        connection.execute(insert(schema.conversations), [{**conversation, "conversation_id": "shared"}])
        for table in schema.DATA_TABLES:
            if table.name in rows:
                for row in rows[table.name]:
                    connection.execute(insert(table), [row])

    await database.write(store)
    host = StoredHost(Settings(data_dir=tmp_path), [], database, None)
    exported = await export_whole_person(Call(host, TESTER), OfWholePerson(person=ALICE))
    [passed_on] = [each["passed_on"] for each in exported["agents"] if each["agent"] == AGENT]
    [conversation] = passed_on["conversations"]
    assert [len(conversation[part]) for part in ("turns", "variables", "documents")] == [1, 2, 1]
    assert len(passed_on["requests"]) == 2  # one is open, and one has crashed
    deleted = await delete_person(Call(host, TESTER), OfWholePerson(person=ALICE))
    assert deleted.is_complete
    if not database.backend.has_memories:
        del rows["interaction_memory"]  # the files are the memory; the rows of a backup are none
    for table in rows:
        left = [row for row in read_table(database_url, table) if ALICE in str(row) or secret_of(ALICE) in str(row)]
        assert left == [], table
        assert any(secret_of(BOB) in str(row) or BOB in str(row) for row in read_table(database_url, table)), table
    await database.close()


async def test_an_export_has_what_each_table_stores_about_a_person(database: Database) -> None:
    await fill(database)
    exported = await export_person(await open_repository(database, AGENT), None, ALICE)
    for table, purpose in PURPOSES.items():
        if purpose.export is not None:
            for key in purpose.export.split():
                part = json.dumps(exported[key])
                assert secret_of(ALICE) in part or (table == "incidents" and len(exported["incidents"]) == 1), table
    assert BOB not in json.dumps(exported)
    assert secret_of(BOB) not in json.dumps(exported)


async def test_a_backup_has_every_table_that_is_backed_up(database_url: str, tmp_path: Path) -> None:
    database = await open_database(database_url, "off")
    await fill(database)
    (tmp_path / "memory").mkdir()
    await back_up(database, tmp_path / "memory", tmp_path / "backup.tar", "test", lambda done, total: None)
    await database.close()
    unpack(tmp_path / "backup.tar", tmp_path, "platform.db")
    restored = await open_database(f"{SQLITE}{tmp_path}/restored.db", "off")
    await restore(restored, tmp_path / "restored", tmp_path / "backup.tar", lambda done, total: None)
    await restored.close()
    for file in ("platform.db", "restored.db"):
        with closing(sqlite3.connect(tmp_path / file)) as copy:
            for table, purpose in PURPOSES.items():
                if purpose.is_backed_up:
                    [(count,)] = copy.execute(f"SELECT count(*) FROM {table}").fetchall()
                    assert count == len(read_table(database_url, table)) > 0, table
            assert copy.execute("SELECT count(*) FROM logins").fetchall() == [(0,)]
