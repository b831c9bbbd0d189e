"""Failures that people were told of by a number."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

Whole = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "incidents",
        sa.Column("id", Whole, primary_key=True, autoincrement=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("incident", sa.Text, nullable=False),
        sa.Column("person", sa.Text, nullable=False),
        sa.Column("conversation_id", sa.Text),
        sa.Column("occurred_at", Whole, nullable=False),
        sa.Column("errors", sa.Text, nullable=False),
        sa.Column("texts", sa.Text, nullable=False),
    )
    op.create_index("incidents_by_agent", "incidents", ["agent", "id"])
    op.create_index("incidents_by_person", "incidents", ["agent", "person", "id"])
