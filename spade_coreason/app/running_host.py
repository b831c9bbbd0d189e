"""The running platform as operations see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..memory import AgentInteractionMemory, Knowledge
from ..operations.host import OperationHost, RunningAgent, find_log_level, set_log_level
from ..operations.status import PlatformStatus
from ..storage import Database, StoredKey, StoredWebhook
from .agent_builder import AgentBuilder
from .workers.membership import Membership

if TYPE_CHECKING:
    from ..xmpp import HostedAgent


class RunningHost(OperationHost):
    """The running platform as operations see it."""

    def __init__(
        self,
        jids: Sequence[str],
        database: Database,
        builder: AgentBuilder,
        agents: Mapping[str, HostedAgent],
        get_status: Callable[[], Awaitable[PlatformStatus]],
        stop: Callable[[], None],
        membership: Membership | None = None,
    ) -> None:
        super().__init__(database, jids, builder.settings.quotas_of_jid, builder.embedder)
        self.is_running = True
        self._get_status = get_status
        self._stop = stop
        self._builder = builder
        self._agents = agents
        self._membership = membership
        self._colleagues = None if membership is None else membership.colleagues

    def list_served(self) -> Sequence[str]:
        """Return the agents (bare JIDs) that run in this process."""
        return list(self._agents)

    def memory(self, agent: str) -> AgentInteractionMemory:
        """Return the interaction memory of an agent."""
        return self._builder.get_memory(agent)

    def knowledge(self, agent: str) -> Knowledge:
        """Return the knowledge of an agent."""
        host = self._agents.get(agent)
        return super().knowledge(agent) if host is None else host.runtime.parts.knowledge

    def take_secret(self, stored: StoredKey | StoredWebhook) -> None:
        """Take a key or a webhook as it is stored now, so that the doors accept it, or accept it no more, at once."""
        if isinstance(stored, StoredKey):
            self._builder.key_ring.take(stored)
        else:
            self._builder.webhook_ring.take(stored)
        if self._colleagues is not None:
            self._colleagues.wake_doors()

    async def running_agent(self, agent: str, *, changes: bool = False) -> RunningAgent | None:
        """Return what runs of an agent, here or in another worker; None if it is in none, or could not be made."""
        if (host := self._agents.get(agent)) is not None:
            return host.runtime.runner.control
        if self._colleagues is None:
            return None
        # An agent that is not configured any more has a lease, but no worker will take it.
        return await self._colleagues.find_agent(agent, changes=changes and agent in self.agents)

    async def status(self) -> PlatformStatus:
        """Return the status of the platform."""
        return await self._get_status()

    async def find_log_levels(self) -> set[str]:
        """Return the levels of the logs of this process and of the other workers."""
        others = set() if self._colleagues is None else await self._colleagues.find_log_levels()
        return {find_log_level(), *others}

    async def set_log_level(self, level: str) -> None:
        """Set the level of the log of this process and of the other workers."""
        set_log_level(level)
        if self._colleagues is not None:
            await self._colleagues.set_log_level(level)

    async def hand_over(self, agents: Sequence[str]) -> bool:
        """Begin to give agents to other workers, and take none until `take_share`. Return False without another worker."""
        return self._membership is not None and await self._membership.workforce.hand_over(agents)

    def take_share(self) -> None:
        """End what `hand_over` began."""
        if self._membership is not None:
            self._membership.workforce.take_share()

    def stop(self) -> None:
        """Stop the platform, once the present calls are answered."""
        self._stop()
