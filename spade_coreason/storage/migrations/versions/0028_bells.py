"""The channel on which a worker is told that it has to look."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    op.add_column("workers", sa.Column("channel", sa.Text))
