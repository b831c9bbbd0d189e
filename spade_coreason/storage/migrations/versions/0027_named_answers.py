"""Which question an answer by a door names, when a question was shown, who may decide it, and who is asked later.

An item has the person behind it, and its delivery may wait for a person, too.
"""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"

Whole = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.add_column("door_threads", sa.Column("question", sa.Text))
    op.add_column("questions", sa.Column("shown_at", Whole))
    op.add_column("questions", sa.Column("approvers", sa.Text))
    op.add_column("asked_people", sa.Column("waits", sa.Boolean))
    op.add_column("topic_items", sa.Column("root", sa.Text))
    op.add_column("topic_deliveries", sa.Column("parked", sa.Integer))
    is_open = sa.text("state = 'open' AND kind = 'approval'")
    op.create_index("open_approvals", "questions", ["agent"], sqlite_where=is_open, postgresql_where=is_open)
    sqlite, postgres = sa.text("waits = 1"), sa.text("waits")
    op.create_index("waiting_people", "asked_people", ["agent"], sqlite_where=sqlite, postgresql_where=postgres)


def downgrade() -> None:
    op.drop_index("waiting_people")
    op.drop_index("open_approvals")
    op.drop_column("topic_deliveries", "parked")
    op.drop_column("topic_items", "root")
    op.drop_column("asked_people", "waits")
    op.drop_column("questions", "approvers")
    op.drop_column("questions", "shown_at")
    op.drop_column("door_threads", "question")
