"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

Whole = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "conversations",
        sa.Column("id", Whole, primary_key=True, autoincrement=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("conversation_id", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("interaction_count", sa.Integer, nullable=False),
        sa.Column("max_interactions", sa.Integer, nullable=False),
        sa.Column("created_at", Whole, nullable=False),
        sa.Column("last_interaction", Whole, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("quiet_until", Whole),
        sa.Column("window_start", Whole, nullable=False),
        sa.Column("turns", Whole, nullable=False),
        sa.UniqueConstraint("agent", "conversation_id"),
    )
    op.create_index("conversations_by_state", "conversations", ["agent", "state", "last_interaction"])
    op.create_index("conversations_by_owner", "conversations", ["agent", "owner"])
    op.create_table(
        "interactions",
        sa.Column("id", Whole, primary_key=True, autoincrement=False),
        sa.Column("conversation", Whole, sa.ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
        sa.Column("number", Whole, nullable=False),
        sa.Column("interaction_id", sa.Text, nullable=False),
        sa.Column("timestamp", Whole, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_index("interactions_by_number", "interactions", ["conversation", "number"])
    op.create_table(
        "variables",
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.Column("updated_at", Whole, nullable=False),
        sa.PrimaryKeyConstraint("agent", "scope", "holder", "name"),
    )
    op.create_table(
        "inbox",
        sa.Column("id", Whole, primary_key=True, autoincrement=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("key", sa.LargeBinary, nullable=False),
        sa.Column("sender", sa.Text, nullable=False),
        sa.Column("received_at", Whole, nullable=False),
        sa.Column("state", sa.Integer, nullable=False),
        sa.Column("request", sa.Text),
        sa.Column("answer", sa.Text),
        sa.UniqueConstraint("agent", "key"),
    )
    is_unfinished = sa.text("state < 2")
    op.create_index("inbox_unfinished", "inbox", ["agent"], sqlite_where=is_unfinished, postgresql_where=is_unfinished)
