"""An index of the inbox by agent, and free space in its pages for updates. On PostgreSQL only."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.create_index("inbox_by_agent", "inbox", [sa.text("hashtext(agent)")])
        op.execute("ALTER TABLE inbox SET (fillfactor = 50)")
