"""Most of the memory knows no kind of database: its tests run on SQLite, and on PostgreSQL before a release."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.databases import new_database_url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.release)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database. A test of search, of a deletion or of a compaction has the mark `on_both_databases`."""
    return new_database_url(request, tmp_path)
