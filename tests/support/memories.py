"""Interaction memories over files and over a table of PostgreSQL."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from spade_coreason.memory.interaction.file import MemoryLimits
from spade_coreason.memory.interaction.rows import MemoryRows
from spade_coreason.memory.interaction.store import AgentInteractionMemory
from spade_coreason.storage import Database, open_database

AGENT = "support_agent@example.com"


class OpenMemory(Protocol):
    """A function that opens the memory of an agent, as another process would."""

    def __call__(self, agent: str = AGENT, **options: Any) -> AgentInteractionMemory: ...


def open_over_files(directory: Path) -> OpenMemory:
    """Open memories over files of a directory."""
    return lambda agent=AGENT, **options: AgentInteractionMemory(agent, directory, **options)


def memory_over(
    database: Database, agent: str = AGENT, limits: MemoryLimits | None = None, **options: Any
) -> AgentInteractionMemory:
    """Return the memory of an agent over a database. Call this on its event loop."""
    limits = limits or MemoryLimits()
    return AgentInteractionMemory(agent, limits=limits, store=MemoryRows(database, agent, limits), **options)


@asynccontextmanager
async def open_over_table(url: str) -> AsyncIterator[OpenMemory]:
    """Open memories over a database of this event loop."""
    database = await open_database(url, "off")
    try:
        yield lambda agent=AGENT, **options: memory_over(database, agent, **options)
    finally:
        await database.close()


@contextmanager
def table_in_thread(url: str) -> Iterator[OpenMemory]:
    """Open memories over a database whose event loop runs in another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    context = open_over_table(url)

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    async def call(function: OpenMemory, agent: str, options: dict[str, Any]) -> AgentInteractionMemory:
        return function(agent, **options)

    try:
        opened = run(context.__aenter__())
        try:
            yield lambda agent=AGENT, **options: run(call(opened, agent, options))
        finally:
            run(context.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
