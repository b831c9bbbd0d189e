"""The oldest revision whose program may run on the schema."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.create_table("compatibility", sa.Column("oldest_revision", sa.Text, primary_key=True))
