"""The manifests of agents behind doors, which other workers read."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"

Whole = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.add_column("leases", sa.Column("manifest", sa.Text))
    op.add_column("leases", sa.Column("manifest_version", Whole, nullable=False, server_default=sa.text("0")))
