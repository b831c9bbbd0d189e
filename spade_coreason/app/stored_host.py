"""The stored data of a platform that does not run, as operations see it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from ..config import Settings
from ..domain.jid import bare_jid
from ..exceptions import DatabaseEmptyError, StoreError
from ..memory import AgentInteractionMemory, Embedder
from ..operations.host import OperationHost
from ..storage import (
    Database,
    find_database_file,
    lock_database,
    lock_directory,
    open_database,
)
from .factories import build_embedder, build_memory, import_memories


class StoredHost(OperationHost):
    """The stored data as operations see it."""

    def __init__(self, settings: Settings, agents: Sequence[str], database: Database | None, embedder: Embedder | None) -> None:
        configured = (bare_jid(agent.jid) for agent in settings.agents)
        super().__init__(database, [*configured, *agents], settings.quotas_of_jid, embedder)
        self.is_running, self.place = False, settings.data_dir
        self._settings = settings

    def memory(self, agent: str) -> AgentInteractionMemory:
        """Return the interaction memory of an agent. Raise StoreError if its file is damaged."""
        if self.database is None and find_database_file(self._settings.storage.url) is None:
            raise StoreError(f"{self._settings.data_dir}: nothing is stored here yet")
        return build_memory(self._settings, self.database, agent)


@asynccontextmanager
async def open_stored_host(
    settings: Settings, agents: Sequence[str], *, is_exclusive: bool = False, creates_directory: bool = False
) -> AsyncIterator[StoredHost]:
    """Open the stored data. `agents` are further bare JIDs that may have some.

    With `is_exclusive` it may be changed; DataDirectoryInUseError if another process has it.
    """
    if creates_directory:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    is_exclusive = is_exclusive and settings.data_dir.is_dir()
    async with AsyncExitStack() as stack:
        if is_exclusive:
            stack.enter_context(lock_directory(settings.data_dir))
            if (file := find_database_file(settings.storage.url)) is not None and file.is_file():
                stack.enter_context(lock_database(settings.storage.url))
        database = await _open(settings, is_exclusive=is_exclusive)
        if database is not None:
            stack.push_async_callback(database.close)
            if is_exclusive:
                await import_memories(settings, database)
        embedder = build_embedder(settings)
        if embedder is not None:
            stack.push_async_callback(embedder.close)
        yield StoredHost(settings, agents, database, embedder)


async def _open(settings: Settings, *, is_exclusive: bool) -> Database | None:
    file = find_database_file(settings.storage.url)
    if file is not None and not file.is_file() and not is_exclusive:
        return None
    try:
        return await open_database(settings.storage.url, settings.storage.durability, is_read_only=not is_exclusive)
    except DatabaseEmptyError:
        return None
