"""Interaction memories over each store, for the tests of what all have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.memories import OpenMemory, open_over_files, open_over_table, table_in_thread


@pytest.fixture(params=["files", pytest.param("table", marks=pytest.mark.servers)])
def open_memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenMemory]:
    """Open the memory of an agent, as another process would. The test runs over files, and over a table of PostgreSQL.

    The database of the table has an event loop in another thread.
    """
    if request.param == "files":
        yield open_over_files(tmp_path)
    else:
        with table_in_thread(request.getfixturevalue("postgres").url()) as open_memory:
            yield open_memory


@pytest.fixture(
    params=["files", *(pytest.param(f"table {where}", marks=pytest.mark.servers) for where in ("elsewhere", "here"))]
)
async def open_amemory(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenMemory]:
    """The same for a test with an event loop, which may be that of the database."""
    if request.param == "files":
        yield open_over_files(tmp_path)
    elif request.param == "table elsewhere":
        with table_in_thread(request.getfixturevalue("postgres").url()) as open_memory:
            yield open_memory
    else:
        async with open_over_table(request.getfixturevalue("postgres").url()) as open_memory:
            yield open_memory
