"""The tables as earlier revisions of the schema had them, from those of now, with their rows. A platform never goes back."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

from alembic import op
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import BigInteger, Column, Connection, text

import spade_coreason.storage

_TABLES = {
    "0030": ("tasks",),
    "0028": ("logins",),
    "0024": ("worker_calls",),
    "0023": ("leases", "workers"),
    "0022": ("interaction_memory",),
    "0021": ("webhook_bodies", "webhooks"),
    "0020": ("door_files", "door_threads"),
    "0019": ("api_keys",),
    "0018": ("asked_people", "questions", "parked_requests"),
    "0017": ("schedules", "notifications"),
    "0016": ("compatibility",),
    "0014": ("sequences",),
    "0010": ("topic_deliveries", "topic_items", "topic_subscriptions"),
    "0009": ("steps",),
    "0006": ("incidents",),
    "0005": ("crashed_requests",),
    "0002": ("audit_heads", "audit"),
    "0001": ("vectors", "passages", "documents", "shelves"),
}
"""The tables that are not there yet at a revision, and are at the next one."""
_COLUMNS = {
    "0029": (("interactions", "root"),),
    "0027": (("workers", "channel"),),
    "0026": (
        ("topic_deliveries", "parked"),
        ("topic_items", "root"),
        ("asked_people", "waits"),
        ("questions", "approvers"),
        ("questions", "shown_at"),
        ("door_threads", "question"),
    ),
    "0025": (("leases", "manifest_version"), ("leases", "manifest")),
    "0024": tuple(("leases", name) for name in ("lost_worker", "lost_at", "lost_reason", "card", "card_at")),
    "0023": (("crashed_requests", "runs_alone"),),
    "0013": (("crashed_requests", "channel"), ("inbox", "channel")),
    "0012": (("inbox", "message_key"), ("inbox", "evidence")),
    "0011": (("crashed_requests", "stops"),),
    "0008": (("inbox", "interaction"), ("inbox", "digest")),
    "0007": (("passages", "word_rules"),),
}
"""The same of columns: pairs of table and column."""
_REVISIONS = [f"{number:04}" for number in range(1, 32)]


def downgrade(connection: Connection, revision: str) -> None:
    """Change the tables to those of a revision, which they have had before."""
    context = MigrationContext.configure(connection)
    with Operations.context(context):
        current = context.get_current_revision()
        assert current in _REVISIONS, f"add the way back from {current}"
        for earlier in reversed(_REVISIONS[_REVISIONS.index(revision) : _REVISIONS.index(current)]):
            _prepare(connection, earlier, is_sqlite=connection.dialect.name == "sqlite")
            for table, column in _COLUMNS.get(earlier, ()):
                op.drop_column(table, column)
            for table in _TABLES.get(earlier, ()):
                op.drop_table(table)
        connection.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})


def _prepare(connection: Connection, revision: str, *, is_sqlite: bool) -> None:
    """Change what is neither a table nor a column."""
    match revision:
        case "0030":
            _separate_tasks(connection)
        case "0029":
            op.drop_index("interactions_by_root", "interactions")
        case "0026":
            op.drop_index("people_with_rights")
        case "0015" if not is_sqlite:
            op.drop_index("inbox_by_agent", "inbox")
            op.execute("ALTER TABLE inbox RESET (fillfactor)")
        case "0007":
            if is_sqlite:
                op.execute("DROP TRIGGER passage_words_changed")
            op.drop_index("passages_by_word_rules", "passages")
        case "0004":
            is_unfinished = text("state < 2")
            op.create_index("inbox_unfinished", "inbox", ["agent"], sqlite_where=is_unfinished, postgresql_where=is_unfinished)
            op.create_index("conversations_by_state", "conversations", ["agent", "state", "last_interaction"])
        case "0003" if is_sqlite:
            op.create_index("inbox_agent_key_key", "inbox", ["agent", "key"], unique=True)
        case "0003":
            op.create_unique_constraint("inbox_agent_key_key", "inbox", ["agent", "key"])
        case "0001" if is_sqlite:
            for trigger in ("passage_added", "passage_removed"):
                op.execute(f"DROP TRIGGER {trigger}")
            op.drop_table("passage_words")


def _separate_tasks(connection: Connection) -> None:
    """Make the tables of notifications and of schedules, and move the tasks there; the due times go to the questions."""
    is_open = text("state = 'open'")
    op.add_column("questions", Column("wake_at", BigInteger, nullable=False, server_default="0"))
    op.drop_index("topic_deliveries_by_topic", "topic_deliveries")
    op.create_index("topic_deliveries_by_subscriber", "topic_deliveries", ["agent", "subscriber", "item"])
    op.drop_index("questions_open", "questions")
    op.create_index("questions_by_time", "questions", ["agent", "wake_at"], sqlite_where=is_open, postgresql_where=is_open)
    due_time = "SELECT wake_at FROM tasks WHERE tasks.agent = questions.agent AND kind = 'question' AND key = question_id"
    op.execute(f"UPDATE questions SET wake_at = COALESCE(({due_time}), wake_at)")
    path = Path(spade_coreason.storage.__file__).parent / "migrations" / "versions"
    runpy.run_path(str(next(path.glob("0018_*.py"))))["upgrade"]()
    for row in (
        connection.execute(text("SELECT * FROM tasks WHERE kind IN ('notification', 'schedule') ORDER BY id")).mappings().all()
    ):
        data, same = json.loads(row["data"]), {name: row[name] for name in ("id", "agent", "root", "thread", "state", "reason")}
        times = {name: row[name] for name in ("created_at", "due_at")}
        if row["kind"] == "notification":
            messages = json.dumps(data["messages"]) if "messages" in data else None
            own = {"notification_id": row["key"], "person": row["owner"], "changed_at": row["changed_at"]}
            own |= {"attempts": row["attempts"], "content": json.dumps(data["content"]), "messages": messages}
            _insert(connection, "notifications", {**same, **times, **own})
            continue
        request, metadata = data["request"], data["request"].get("metadata", {})
        origin = {"kind": request.get("channel", "due_to_nobody"), "sender": request["sender"]}
        origin |= {"name": metadata["every"]} if "every" in metadata else {}
        if request.get("address"):
            origin |= {"address": request["address"], "nickname": request["nickname"]}
        origin |= {name: metadata[name] for name in ("room", "nickname", "occupant", "reply_thread") if name in metadata}
        context = {name: request[name] for name in ("hops", "root_sender", "hides_person") if name in request}
        origin |= {"context": context} if context else {}
        own = {"schedule_id": row["key"], "owner": row["owner"], "wake_at": row["wake_at"], "thread": request.get("thread")}
        own |= {name: data[name] for name in ("kind", "cron", "zone", "missed")}
        payload = json.dumps(request["payload"])
        _insert(connection, "schedules", {**same, **times, **own, "origin": json.dumps(origin), "payload": payload})


def _insert(connection: Connection, table: str, values: dict[str, Any]) -> None:
    statement = f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join(f':{name}' for name in values)})"
    connection.execute(text(statement), values)
