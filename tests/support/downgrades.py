"""The tables as earlier revisions of the schema had them, from those of now, with their rows. A platform never goes back."""

from __future__ import annotations

from alembic import op
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection, text

_TABLES = {
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
_REVISIONS = [f"{number:04}" for number in range(1, 29)]


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
