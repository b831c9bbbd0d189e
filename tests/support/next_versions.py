"""The next versions of the package, as copies: each has one more migration, and stores what the ones before do not know."""

from __future__ import annotations

import shutil
from pathlib import Path

import spade_coreason
from spade_coreason.storage import schema

_MIGRATION = '''"""Something new in every table, and a new table."""

import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = "{before}"


def upgrade() -> None:
    for table in {tables}:
        op.add_column(table, sa.Column("added_{revision}", sa.Text, server_default="new"))
        op.create_index(f"{{table}}_added_{revision}", table, ["added_{revision}"])
    op.create_table("added_{revision}", sa.Column("id", sa.BigInteger, primary_key=True))
'''
_CHANGES = (
    (
        "domain/messages.py",
        "        return to_json(fields, exclude_none=True)",
        '        fields["added"] = "new"\n        return to_json(fields, exclude_none=True)',
    ),
    ("domain/messages.py", "    tokens: int\n", "    tokens: int\n    added: str = 'new'\n"),
    ("app/workers/directory.py", "    admitted: list[str]\n", "    admitted: list[str]\n    added: str = 'new'\n"),
)
"""What a next version adds to a request, to its earlier runs, and to a card: file, old text, new text."""


def name_revision(number: int) -> str:
    """Return the revision of the schema of a next version, counted from 1."""
    return f"{int(schema.REVISION) + number:04}"


def make_next_version(directory: Path, number: int = 1) -> Path:
    """Copy the package into a new directory, with so many further migrations. Return what PYTHONPATH names."""
    package = directory / "spade_coreason"
    shutil.copytree(Path(spade_coreason.__file__).parent, package)
    for further in range(1, number + 1):
        revision, before = name_revision(further), name_revision(further - 1)
        text = _MIGRATION.format(revision=revision, before=before, tables=list(schema.metadata.tables))
        (package / "storage" / "migrations" / "versions" / f"{revision}_added.py").write_text(text)
    newest = f'REVISION = "{name_revision(number)}"'
    for file, old, new in (*_CHANGES, ("storage/schema.py", f'\nREVISION = "{schema.REVISION}"', f"\n{newest}")):
        text = (package / file).read_text()
        assert text.count(old) == 1, (file, old)
        (package / file).write_text(text.replace(old, new))
    return directory
