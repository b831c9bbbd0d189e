"""Notifications, schedules and the due times of questions are tasks of one table. Brokers make tasks of deliveries."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"

_PAGE_ROWS = 500


def upgrade() -> None:
    big = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    texts = ("agent", "kind", "key", "owner", "root", "thread", "state", "reason")
    tasks = op.create_table(
        "tasks",
        sa.Column("id", big, primary_key=True, autoincrement=False),
        *(sa.Column(name, sa.Text, nullable=name == "thread") for name in texts),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        *(sa.Column(name, big, nullable=False) for name in ("created_at", "changed_at", "due_at", "wake_at")),
        sa.UniqueConstraint("agent", "kind", "key"),
    )
    waits = sa.text("state = 'waiting'")
    op.create_index("tasks_by_time", "tasks", ["agent", "wake_at"], sqlite_where=waits, postgresql_where=waits)
    op.create_index("tasks_by_owner", "tasks", ["agent", "owner", "created_at"])
    connection = op.get_bind()
    for table, make in (("notifications", _make_notification), ("schedules", _make_schedule)):
        page = sa.text(f"SELECT * FROM {table} WHERE id > :after ORDER BY id LIMIT {_PAGE_ROWS}")
        after = -1
        while rows := connection.execute(page, {"after": after}).all():
            after = rows[-1].id
            same = ("id", "agent", "root", "state", "reason", "created_at", "due_at")
            connection.execute(tasks.insert(), [{**{name: getattr(row, name) for name in same}, **make(row)} for row in rows])
        op.drop_table(table)
    columns = (
        "id, agent, 'question', question_id, '', '', NULL, 'waiting', '', 0, '{}', created_at, changed_at, wake_at, wake_at"
    )
    op.execute(f"INSERT INTO tasks SELECT {columns} FROM questions WHERE state = 'open'")
    op.drop_index("topic_deliveries_by_subscriber", "topic_deliveries")
    op.create_index("topic_deliveries_by_topic", "topic_deliveries", ["agent", "subscriber", "topic", "item"])
    op.drop_index("questions_by_time", "questions")
    op.drop_column("questions", "wake_at")
    is_open = sa.text("state = 'open'")
    op.create_index("questions_open", "questions", ["agent"], sqlite_where=is_open, postgresql_where=is_open)


def _read(text):
    """Return the value of a JSON text. One that was damaged stays a text, with which its task fails alone."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _make_notification(row):
    data = {"content": _read(row.content)}
    if row.messages is not None:
        data["messages"] = _read(row.messages)
    return {
        **{"kind": "notification", "key": row.notification_id, "owner": row.person, "thread": row.thread},
        **{"attempts": row.attempts, "data": json.dumps(data), "changed_at": row.changed_at, "wake_at": row.due_at},
    }


def _make_schedule(row):
    origin = _read(row.origin)
    origin, payload = origin if isinstance(origin, dict) else {}, _read(row.payload)
    kind, given = origin.get("kind", "due_to_nobody"), {"owner": row.owner, "address": "", "nickname": "", **origin}
    metadata = {name: origin[name] for name in ("room", "nickname", "occupant", "reply_thread") if name in origin}
    if row.kind == "every":
        metadata["every"] = origin.get("name")
    if row.root and "address" not in origin:
        metadata["root_sender"] = row.root
    request = {
        **{
            "channel": kind,
            "sender": origin.get("sender", row.owner),
            "stanza_id": "",
            "payload": payload if isinstance(payload, dict) else {},
        },
        **{name: given[name] for name in ("owner", "address", "nickname")},
        **{name: value for name, value in origin.get("context", {}).items() if value},
        **({} if row.thread is None else {"thread": row.thread}),
        **({"message_type": "groupchat"} if kind == "due_in_room" else {}),
        **({"metadata": metadata} if metadata else {}),
    }
    data = {"kind": row.kind, "cron": row.cron, "zone": row.zone, "missed": row.missed, "request": request}
    return {
        **{"kind": "schedule", "key": row.schedule_id, "owner": row.owner, "thread": origin.get("reply_thread", row.thread)},
        **{"attempts": 0, "data": json.dumps(data), "changed_at": row.created_at, "wake_at": row.wake_at},
    }
