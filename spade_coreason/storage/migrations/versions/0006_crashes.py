"""Requests whose turns ran when the process died."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

Whole = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "crashed_requests",
        sa.Column("id", Whole, primary_key=True, autoincrement=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("sender", sa.Text, nullable=False),
        sa.Column("received_at", Whole, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("crashes", sa.Integer, nullable=False),
        sa.Column("failed_at", Whole),
    )
