"""Webhooks, and what each has accepted."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"

Whole = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", Whole, primary_key=True, autoincrement=False),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("thread", sa.Text),
        sa.Column("secret", sa.Text, nullable=False),
        sa.Column("secret_number", sa.Integer, nullable=False),
        sa.Column("previous_secret", sa.Text),
        sa.Column("previous_until", Whole),
        sa.Column("answer_key", sa.LargeBinary, nullable=False),
        sa.Column("created_at", Whole, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("issued_at", Whole, nullable=False),
        sa.Column("revoked_at", Whole),
    )
    op.create_table(
        "webhook_bodies",
        sa.Column("webhook", Whole, sa.ForeignKey("webhooks.id", ondelete="CASCADE"), nullable=False),
        sa.Column("secret_number", sa.Integer, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("accepted_at", Whole, nullable=False),
        sa.PrimaryKeyConstraint("webhook", "secret_number", "body"),
    )
