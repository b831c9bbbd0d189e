"""The stored data of a platform that does not run, as operations see it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from ..config import Settings
from ..domain.jid import bare_jid
from ..domain.quotas import Quotas
from ..exceptions import DatabaseEmptyError, StoreError
from ..memory import AgentInteractionMemory, Embedder, Knowledge
from ..operations.host import OperationHost, RunningAgent
from ..operations.status import PlatformStatus
from ..storage import (
    AgentRepository,
    Database,
    StoredKey,
    StoredWebhook,
    find_database_file,
    list_stored_agents,
    lock_database,
    lock_directory,
    open_database,
)
from .factories import build_embedder, build_memory, import_memories


class StoredHost:
    """The stored data as operations see it (`OperationHost`)."""

    def __init__(self, settings: Settings, agents: Sequence[str], database: Database | None, embedder: Embedder | None) -> None:
        self.database = database
        self.is_running = False
        self._settings = settings
        self._agents = agents
        self._embedder = embedder

    @property
    def whole(self) -> OperationHost:
        """The host itself."""
        return self

    async def list_agents(self) -> Sequence[str]:
        """Return the agents (bare JIDs) that are configured or have stored data."""
        # An agent that a backup restored here, or that was removed from the configuration, is known to the database only.
        stored = await list_stored_agents(self.database) if self.database is not None else []
        configured = (bare_jid(agent.jid) for agent in self._settings.agents)
        return tuple(dict.fromkeys([*configured, *self._agents, *stored]))

    def list_served(self) -> Sequence[str]:
        """Return none: nothing runs in this process."""
        return ()

    def repository(self, agent: str) -> AgentRepository:
        """Return the stored data of an agent. Raise StoreError if nothing was ever stored."""
        if self.database is None:
            raise StoreError(f"{self._settings.data_dir}: nothing is stored here yet")
        return AgentRepository(self.database, agent)

    def memory(self, agent: str) -> AgentInteractionMemory:
        """Return the interaction memory of an agent. Raise StoreError if its file is damaged."""
        if self.database is None and find_database_file(self._settings.storage.url) is None:
            raise StoreError(f"{self._settings.data_dir}: nothing is stored here yet")
        return build_memory(self._settings, self.database, agent)

    def knowledge(self, agent: str) -> Knowledge:
        """Return the knowledge of an agent."""
        return Knowledge(self.repository(agent).knowledge, self._embedder)

    def quotas(self, agent: str) -> Quotas:
        """Return the quotas of an agent: of its settings, or the common ones if it is not configured."""
        return self._settings.quotas_of_jid(agent)

    def take_key(self, key: StoredKey) -> None:
        """Do nothing: nothing runs."""

    def take_webhook(self, webhook: StoredWebhook) -> None:
        """Do nothing: nothing runs."""

    async def running_agent(self, agent: str, *, changes: bool = False) -> RunningAgent | None:
        """Return None: nothing runs."""
        return None

    async def status(self) -> PlatformStatus:
        """Raise StoreError: nothing runs."""
        raise StoreError("no platform is running")

    async def find_log_levels(self) -> set[str]:
        """Return none: nothing runs."""
        return set()

    async def set_log_level(self, level: str) -> None:
        """Do nothing: nothing runs."""

    async def hand_over(self, agents: Sequence[str]) -> bool:
        """Return False: there are no workers."""
        return False

    def take_share(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing: nothing runs."""


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
