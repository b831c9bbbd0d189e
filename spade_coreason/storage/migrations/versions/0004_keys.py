"""Drop the index of the inbox keys. The one process that writes has an index in memory."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

Whole = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_COLUMNS = "id, agent, key, sender, received_at, state, request, answer"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.drop_constraint("inbox_agent_key_key", "inbox")
    else:
        _recreate_inbox()


def _recreate_inbox() -> None:
    """Copy the inbox into a new table, because SQLite cannot drop a constraint."""
    op.rename_table("inbox", "inbox_before")
    op.drop_index("inbox_unfinished", "inbox_before")
    op.create_table(
        "inbox",
        sa.Column("id", Whole, primary_key=True, autoincrement=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("key", sa.LargeBinary, nullable=False),
        sa.Column("sender", sa.Text, nullable=False),
        sa.Column("received_at", Whole, nullable=False),
        sa.Column("state", sa.Integer, nullable=False),
        sa.Column("request", sa.Text),
        sa.Column("answer", sa.Text),
    )
    op.execute(f"INSERT INTO inbox ({_COLUMNS}) SELECT {_COLUMNS} FROM inbox_before ORDER BY id")
    op.drop_table("inbox_before")
    op.create_index("inbox_unfinished", "inbox", ["agent"], sqlite_where=sa.text("state < 2"))
