"""The journal of durable steps."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

Whole = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "steps",
        sa.Column("request", Whole, sa.ForeignKey("inbox.id", ondelete="CASCADE"), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("arguments_hash", sa.Text, nullable=False),
        sa.Column("result", sa.Text),
        sa.PrimaryKeyConstraint("request", "name", "number"),
    )
