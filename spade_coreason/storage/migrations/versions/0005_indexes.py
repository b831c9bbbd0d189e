"""Drop the indexes that contain columns which every turn changes."""

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.drop_index("inbox_unfinished", "inbox")
    op.drop_index("conversations_by_state", "conversations")
