"""The store of one agent, on both databases."""

from __future__ import annotations

import pytest

from spade_coreason.stores import AgentStore, Database
from tests.turns import AGENT


@pytest.fixture
def store(database: Database) -> AgentStore:
    return AgentStore(database, AGENT)
