"""Notifications and schedules: what an agent does without being asked."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"

Whole = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "notifications",
        sa.Column("id", Whole, primary_key=True, autoincrement=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("notification_id", sa.Text, nullable=False),
        sa.Column("person", sa.Text, nullable=False),
        sa.Column("thread", sa.Text),
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("content", sa.Text, nullable=False),
        sa.Column("messages", sa.Text),
        sa.Column("created_at", Whole, nullable=False),
        sa.Column("changed_at", Whole, nullable=False),
        sa.Column("due_at", Whole, nullable=False),
        sa.UniqueConstraint("agent", "notification_id"),
    )
    is_waiting = sa.text("state = 'waiting'")
    op.create_index(
        "notifications_by_due_time",
        "notifications",
        ["agent", "due_at"],
        sqlite_where=is_waiting,
        postgresql_where=is_waiting,
    )
    op.create_index("notifications_by_person", "notifications", ["agent", "person", "created_at"])
    op.create_table(
        "schedules",
        sa.Column("id", Whole, primary_key=True, autoincrement=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("schedule_id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("thread", sa.Text),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("cron", sa.Text, nullable=False),
        sa.Column("zone", sa.Text, nullable=False),
        sa.Column("missed", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("created_at", Whole, nullable=False),
        sa.Column("due_at", Whole, nullable=False),
        sa.Column("wake_at", Whole, nullable=False),
        sa.UniqueConstraint("agent", "schedule_id"),
    )
    op.create_index(
        "schedules_by_due_time", "schedules", ["agent", "wake_at"], sqlite_where=is_waiting, postgresql_where=is_waiting
    )
    op.create_index("schedules_by_owner", "schedules", ["agent", "owner"])
