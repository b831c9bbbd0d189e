"""Questions to people, and the requests that wait for their answers."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"

Whole = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "parked_requests",
        sa.Column("id", Whole, primary_key=True, autoincrement=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("key", sa.LargeBinary, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("root", sa.Text, nullable=False),
        sa.Column("thread", sa.Text),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("channel", sa.Text, nullable=False),
        sa.Column("message_ids", sa.Text, nullable=False),
        sa.Column("parked_at", Whole, nullable=False),
    )
    op.create_index("parked_requests_by_owner", "parked_requests", ["agent", "owner"])
    op.create_table(
        "questions",
        sa.Column("id", Whole, primary_key=True, autoincrement=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("question_id", sa.Text, nullable=False),
        sa.Column("request", Whole, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("step", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("thread", sa.Text),
        sa.Column("requester", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("form", sa.Text, nullable=False),
        sa.Column("code", sa.Text, nullable=False),
        sa.Column("reference", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("answer", sa.Text),
        sa.Column("decided_by", sa.Text, nullable=False),
        sa.Column("created_at", Whole, nullable=False),
        sa.Column("expires_at", Whole, nullable=False),
        sa.Column("wake_at", Whole, nullable=False),
        sa.Column("changed_at", Whole, nullable=False),
        sa.UniqueConstraint("agent", "question_id"),
    )
    is_open = sa.text("state = 'open'")
    op.create_index("questions_by_time", "questions", ["agent", "wake_at"], sqlite_where=is_open, postgresql_where=is_open)
    op.create_index("questions_by_request", "questions", ["request"])
    op.create_table(
        "asked_people",
        sa.Column("question", Whole, sa.ForeignKey("questions.id", ondelete="CASCADE"), nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("person", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("question", "person"),
    )
    op.create_index("asked_people_by_person", "asked_people", ["agent", "person"])
