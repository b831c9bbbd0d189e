"""Audit trails."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

Whole = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("number", Whole, nullable=False),
        sa.Column("person", sa.Text, nullable=False),
        sa.Column("integrity_hash", sa.Text, nullable=False),
        sa.Column("entry", sa.Text),
        sa.PrimaryKeyConstraint("agent", "number"),
    )
    op.create_index("audit_by_person", "audit", ["agent", "person"])
    op.create_table(
        "audit_heads",
        sa.Column("agent", sa.Text, primary_key=True),
        sa.Column("number", Whole, nullable=False),
        sa.Column("integrity_hash", sa.Text, nullable=False),
    )
