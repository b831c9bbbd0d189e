"""Which question an answer by a door names, when a question was shown, who may decide it, and who is asked later.

An item has the person behind it, and its delivery may wait for a person, too.
"""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"


NEW_COLUMNS = (
    ("door_threads", "question", sa.Text),
    ("questions", "shown_at", sa.BigInteger().with_variant(sa.Integer, "sqlite")),
    ("questions", "approvers", sa.Text),
    ("asked_people", "waits", sa.Boolean),
    ("topic_items", "root", sa.Text),
    ("topic_deliveries", "parked", sa.Integer),
)


def upgrade() -> None:
    for table, name, kind in NEW_COLUMNS:
        op.add_column(table, sa.Column(name, kind))
    has_right = sa.text("waits IS NOT NULL")
    op.create_index("people_with_rights", "asked_people", ["agent"], sqlite_where=has_right, postgresql_where=has_right)
    op.execute("UPDATE asked_people SET waits = false WHERE question IN (SELECT id FROM questions WHERE kind = 'approval')")
