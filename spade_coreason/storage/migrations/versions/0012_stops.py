"""The number of stops of the platform that have cut off the turn of a request."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.add_column("crashed_requests", sa.Column("stops", sa.Integer, nullable=False, server_default="0"))
