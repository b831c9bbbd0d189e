"""Knowledge: shelves, documents, passages, vectors and full text."""

import sqlalchemy as sa
from alembic import op

from spade_coreason.storage.backends import full_text

revision = "0002"
down_revision = "0001"

Whole = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.create_table(
        "shelves",
        sa.Column("id", Whole, primary_key=True, autoincrement=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.UniqueConstraint("agent", "scope", "holder"),
    )
    op.create_table(
        "documents",
        sa.Column("id", Whole, primary_key=True, autoincrement=False),
        sa.Column("shelf", Whole, sa.ForeignKey("shelves.id", ondelete="CASCADE"), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("passages", sa.Integer, nullable=False),
        sa.Column("characters", sa.Integer, nullable=False),
        sa.Column("added_at", Whole, nullable=False),
        sa.UniqueConstraint("shelf", "name"),
    )
    op.create_index("documents_by_digest", "documents", ["shelf", "digest"])
    op.create_table(
        "passages",
        sa.Column("id", Whole, primary_key=True, autoincrement=False),
        sa.Column("shelf", Whole, sa.ForeignKey("shelves.id", ondelete="CASCADE"), nullable=False),
        sa.Column("document", Whole, sa.ForeignKey("documents.id", ondelete="CASCADE"), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("words", sa.Text, nullable=False),
    )
    op.create_index("passages_by_document", "passages", ["document", "number"])
    op.create_index("passages_by_shelf", "passages", ["shelf"])
    op.create_table(
        "vectors",
        sa.Column("passage", Whole, sa.ForeignKey("passages.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("dimension", sa.Integer, nullable=False),
        sa.Column("vector", sa.LargeBinary, nullable=False),
    )
    full_text.create(op.get_bind())
