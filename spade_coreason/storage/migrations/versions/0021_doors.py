"""The conversations of callers of doors, and the files that they send."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"

Whole = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "door_threads",
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("thread", sa.Text),
        sa.Column("request", sa.Text),
        sa.Column("body", sa.LargeBinary),
        sa.Column("used_at", Whole, nullable=False),
        sa.PrimaryKeyConstraint("agent", "owner", "digest"),
    )
    op.create_table(
        "door_files",
        sa.Column("id", Whole, primary_key=True, autoincrement=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("token", sa.Text, nullable=False, unique=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("size", Whole, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.Column("created_at", Whole, nullable=False),
    )
    op.create_index("door_files_by_owner", "door_files", ["agent", "owner", "request"])
