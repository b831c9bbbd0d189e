"""One running agent as the operations of its commands see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...domain.quotas import Quotas
from ...exceptions import StoreError
from ...memory import AgentInteractionMemory, Knowledge
from ...operations.host import OperationHost, RunningAgent, find_log_level, set_log_level
from ...operations.status import PlatformStatus
from ...storage import AgentRepository, Database, StoredKey, StoredWebhook


class AgentHost:
    """One running agent as operations see it (`OperationHost`). Its people and operators reach this agent only."""

    is_running = True

    def __init__(
        self,
        repository: AgentRepository,
        control: RunningAgent,
        get_memory: Callable[[], AgentInteractionMemory] | None,
        knowledge: Knowledge,
        quotas: Quotas,
        get_platform: Callable[[], OperationHost | None] = lambda: None,
    ) -> None:
        self.agent = repository.agent
        self.database: Database | None = repository.database
        self._repository = repository
        self._control = control
        self._get_memory = get_memory
        self._knowledge = knowledge
        self._quotas = quotas
        self._get_platform = get_platform

    @property
    def whole(self) -> OperationHost:
        """The platform of the agent; the agent alone if it runs without one."""
        return self._get_platform() or self

    async def list_agents(self) -> Sequence[str]:
        """Return the agent."""
        return (self.agent,)

    def list_served(self) -> Sequence[str]:
        """Return the agent."""
        return (self.agent,)

    def repository(self, agent: str) -> AgentRepository:
        """Return the stored data of the agent, or the trail of the platform."""
        return self._repository if agent == self.agent else AgentRepository(self._repository.database, agent)

    def memory(self, agent: str) -> AgentInteractionMemory | None:
        """Return the interaction memory of the agent; None if it has none."""
        return None if self._get_memory is None else self._get_memory()

    def knowledge(self, agent: str) -> Knowledge:
        """Return the knowledge of the agent."""
        return self._knowledge

    def quotas(self, agent: str) -> Quotas:
        """Return the quotas of the agent."""
        return self._quotas

    def take_key(self, key: StoredKey) -> None:
        """Do nothing: an agent alone is behind no doors."""

    def take_webhook(self, webhook: StoredWebhook) -> None:
        """Do nothing: an agent alone is behind no doors."""

    async def running_agent(self, agent: str, *, changes: bool = False) -> RunningAgent | None:
        """Return what runs of the agent; None for another one."""
        return self._control if agent == self.agent else None

    async def status(self) -> PlatformStatus:
        """Raise StoreError: an agent does not know its platform."""
        raise StoreError("an agent does not know the status of its platform")

    async def find_log_levels(self) -> set[str]:
        """Return the level of the log of this process."""
        return {find_log_level()}

    async def set_log_level(self, level: str) -> None:
        """Set the level of the log of this process."""
        set_log_level(level)

    async def hand_over(self, agents: Sequence[str]) -> bool:
        """Return False: there are no workers."""
        return False

    def take_share(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing: an agent does not stop its platform."""
