"""Workers that share the agents of a PostgreSQL database."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"

Whole = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "workers",
        sa.Column("id", Whole, primary_key=True, autoincrement=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("started_at", Whole, nullable=False),
        sa.Column("expires_at", Whole, nullable=False),
        sa.Column("is_leaving", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("is_away", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("reaches_server", sa.Boolean),
        sa.Column("reach_began_at", Whole),
        sa.Column("reach_ended_at", Whole),
        sa.Column("snapshot", sa.Text),
    )
    op.create_table(
        "leases",
        sa.Column("agent", sa.Text, primary_key=True),
        sa.Column("worker", Whole, sa.ForeignKey("workers.id", ondelete="SET NULL")),
        sa.Column("changed_at", Whole, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("was_handed_over", sa.Boolean, nullable=False),
    )
    op.create_index("leases_by_worker", "leases", ["worker"])
    op.add_column("crashed_requests", sa.Column("runs_alone", sa.Boolean, nullable=False, server_default=sa.false()))
