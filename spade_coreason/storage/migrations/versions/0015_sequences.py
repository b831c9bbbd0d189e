"""The sequence of row ids. It begins behind the highest one."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"

Whole = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_NUMBERED = (
    "inbox",
    "crashed_requests",
    "interactions",
    "conversations",
    "shelves",
    "documents",
    "passages",
    "incidents",
    "topic_items",
)


def upgrade() -> None:
    sequences = op.create_table(
        "sequences",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("next_id", Whole, nullable=False),
    )
    connection = op.get_bind()
    highest = (connection.scalar(sa.select(sa.func.max(sa.column("id"))).select_from(sa.table(name))) for name in _NUMBERED)
    op.bulk_insert(sequences, [{"name": "rows", "next_id": 1 + max(id_ or 0 for id_ in highest)}])
