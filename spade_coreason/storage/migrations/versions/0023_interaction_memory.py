"""Interaction memories. PostgreSQL has them in this table; with SQLite they are files."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    op.create_table(
        "interaction_memory",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("conversation_id", sa.Text, nullable=False),
        sa.Column("entry", sa.Text, nullable=False),
    )
    if op.get_bind().dialect.name == "postgresql":
        columns = ["agent", sa.text("hashtext(conversation_id)"), "id"]
        op.create_index("interaction_memory_by_conversation", "interaction_memory", columns)
