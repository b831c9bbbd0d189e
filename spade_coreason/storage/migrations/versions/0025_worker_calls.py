"""Calls between workers, the last takeover of each agent, and its card."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"

Whole = sa.BigInteger().with_variant(sa.Integer, "sqlite")
ADDED = {"lost_worker": sa.Text, "lost_at": Whole, "lost_reason": sa.Text, "card": sa.Text, "card_at": Whole}


def upgrade() -> None:
    op.create_table(
        "worker_calls",
        sa.Column("id", Whole, primary_key=True, autoincrement=False),
        sa.Column("caller", Whole, sa.ForeignKey("workers.id", ondelete="CASCADE"), nullable=False),
        sa.Column("worker", Whole, sa.ForeignKey("workers.id", ondelete="CASCADE"), nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("method", sa.Text, nullable=False),
        sa.Column("arguments", sa.Text, nullable=False),
        sa.Column("is_stopped", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("answer", sa.Text),
    )
    op.create_index("worker_calls_by_caller", "worker_calls", ["caller"])
    op.create_index("worker_calls_by_worker", "worker_calls", ["worker"])
    for name, kind in ADDED.items():
        op.add_column("leases", sa.Column(name, kind))
