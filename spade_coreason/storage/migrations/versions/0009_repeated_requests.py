"""The identity of programs' requests: a hash of what they ask, and the turn that answered them."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("inbox", sa.Column("digest", sa.LargeBinary))
    op.add_column("inbox", sa.Column("interaction", sa.BigInteger().with_variant(sa.Integer, "sqlite")))
