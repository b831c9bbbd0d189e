"""Topics: subscriptions, items and their deliveries."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

Whole = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "topic_subscriptions",
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("subscriber", sa.Text, nullable=False),
        sa.Column("pattern", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("agent", "subscriber", "pattern"),
    )
    op.create_table(
        "topic_items",
        sa.Column("id", Whole, primary_key=True, autoincrement=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("item_id", sa.Text, nullable=False),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("publisher", sa.Text, nullable=False),
        sa.Column("published_at", Whole, nullable=False),
        sa.Column("hops", sa.Integer, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("dead_letter", sa.Text),
        sa.UniqueConstraint("agent", "item_id"),
    )
    op.create_index("topic_items_by_topic", "topic_items", ["agent", "topic", "id"])
    op.create_table(
        "topic_deliveries",
        sa.Column("item", Whole, sa.ForeignKey("topic_items.id", ondelete="CASCADE"), nullable=False),
        sa.Column("subscriber", sa.Text, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("item", "subscriber"),
    )
    op.create_index("topic_deliveries_by_subscriber", "topic_deliveries", ["agent", "subscriber", "item"])
