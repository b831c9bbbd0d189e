"""The store of one agent, on both databases."""

from __future__ import annotations

import pytest

from spade_coreason.storage.database import Database
from spade_coreason.storage.repository import AgentRepository

from ..support.records import AGENT


@pytest.fixture
def store(database: Database) -> AgentRepository:
    return AgentRepository(database, AGENT)
