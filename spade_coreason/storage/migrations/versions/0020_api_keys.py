"""Keys with which programs reach agents by a door."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"

Whole = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", Whole, primary_key=True, autoincrement=False),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("agents", sa.Text, nullable=False),
        sa.Column("withdrawn", sa.Text, nullable=False),
        sa.Column("account", sa.Text, nullable=False),
        sa.Column("users", sa.Text, nullable=False),
        sa.Column("secret_hash", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("previous_hash", sa.LargeBinary),
        sa.Column("previous_until", Whole),
        sa.Column("created_at", Whole, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("issued_at", Whole, nullable=False),
        sa.Column("expires_at", Whole),
        sa.Column("revoked_at", Whole),
        sa.Column("last_used_at", Whole),
    )
