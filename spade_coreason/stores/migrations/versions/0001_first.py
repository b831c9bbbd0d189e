"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "conversations",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("conversation_id", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("session_id", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("interaction_count", sa.Integer, nullable=False),
        sa.Column("max_interactions", sa.Integer, nullable=False),
        sa.Column("created_at", sa.Integer, nullable=False),
        sa.Column("last_interaction", sa.Integer, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("quiet_until", sa.Integer),
        sa.Column("window_start", sa.Integer, nullable=False),
        sa.Column("turns", sa.Integer, nullable=False),
        sa.UniqueConstraint("agent", "conversation_id"),
    )
    op.create_index("conversations_by_state", "conversations", ["agent", "state", "last_interaction"])
    op.create_index("conversations_by_owner", "conversations", ["agent", "owner"])
    op.create_table(
        "interactions",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("conversation", sa.Integer, sa.ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("interaction_id", sa.Text, nullable=False),
        sa.Column("timestamp", sa.Integer, nullable=False),
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
        sa.Column("updated_at", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("agent", "scope", "holder", "name"),
    )
    op.create_table(
        "inbox",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("key", sa.LargeBinary, nullable=False),
        sa.Column("sender", sa.Text, nullable=False),
        sa.Column("received_at", sa.Integer, nullable=False),
        sa.Column("state", sa.Integer, nullable=False),
        sa.Column("request", sa.Text),
        sa.Column("answer", sa.Text),
        sa.UniqueConstraint("agent", "key"),
    )
    op.create_index("inbox_unfinished", "inbox", ["agent"], sqlite_where=sa.text("state < 2"))


def downgrade() -> None:
    for table in ("inbox", "variables", "interactions", "conversations"):
        op.drop_table(table)
