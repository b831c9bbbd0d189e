"""One running agent as the operations of its commands see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...domain.quotas import Quotas
from ...memory import AgentInteractionMemory, Knowledge
from ...operations.host import OperationHost, RunningAgent
from ...storage import AgentRepository


class AgentHost(OperationHost):
    """One running agent as operations see it. Its people and operators reach this agent only."""

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
        super().__init__(repository.database, [self.agent], lambda agent: quotas)
        self._control = control
        self._get_memory = get_memory
        self._knowledge = knowledge
        self._get_platform = get_platform

    @property
    def whole(self) -> OperationHost:
        """The platform of the agent; the agent alone if it runs without one."""
        return self._get_platform() or self

    async def list_agents(self) -> Sequence[str]:
        """Return the agent."""
        return self.agents

    def list_served(self) -> Sequence[str]:
        """Return the agent."""
        return self.agents

    def memory(self, agent: str) -> AgentInteractionMemory | None:
        """Return the interaction memory of the agent; None if it has none."""
        return None if self._get_memory is None else self._get_memory()

    def knowledge(self, agent: str) -> Knowledge:
        """Return the knowledge of the agent."""
        return self._knowledge

    async def running_agent(self, agent: str, *, changes: bool = False) -> RunningAgent | None:
        """Return what runs of the agent; None for another one."""
        return self._control if agent == self.agent else None
