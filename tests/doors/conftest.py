"""What tests of doors share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of an empty database."""
    return f"sqlite+aiosqlite:///{tmp_path}/platform.db"
