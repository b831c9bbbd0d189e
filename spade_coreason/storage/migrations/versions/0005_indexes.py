"""Drop the indexes that contain columns which every turn changes."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.drop_index("inbox_unfinished", "inbox")
    op.drop_index("conversations_by_state", "conversations")


def downgrade() -> None:
    is_unfinished = sa.text("state < 2")
    op.create_index("inbox_unfinished", "inbox", ["agent"], sqlite_where=is_unfinished, postgresql_where=is_unfinished)
    op.create_index("conversations_by_state", "conversations", ["agent", "state", "last_interaction"])
