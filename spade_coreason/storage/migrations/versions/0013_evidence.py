"""The evidence of a message, and the key of its id and content."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("inbox", sa.Column("evidence", sa.Text))
    op.add_column("inbox", sa.Column("message_key", sa.LargeBinary))
