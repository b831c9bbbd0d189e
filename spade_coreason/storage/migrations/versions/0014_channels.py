"""The channel of a request."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column("inbox", sa.Column("channel", sa.Text))
    op.add_column("crashed_requests", sa.Column("channel", sa.Text))
