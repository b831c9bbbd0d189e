"""Stems in the words of passages. The platform adds them while it runs, because that takes a while for many passages."""

import sqlalchemy as sa
from alembic import op

from spade_coreason.storage.backends import full_text

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("passages", sa.Column("word_rules", sa.Text, nullable=False, server_default=""))
    op.create_index("passages_by_word_rules", "passages", ["word_rules"])
    full_text.create_change_triggers(op.get_bind())
