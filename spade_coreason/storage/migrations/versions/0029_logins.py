"""The logins of people to the page in the browser."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"

Whole = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "logins",
        sa.Column("id", Whole, primary_key=True, autoincrement=False),
        sa.Column("secret_hash", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("person", sa.Text, nullable=False),
        sa.Column("is_link", sa.Boolean, nullable=False),
        sa.Column("created_at", Whole, nullable=False),
        sa.Column("expires_at", Whole, nullable=False),
    )
    op.create_index("logins_by_person", "logins", ["person"])
