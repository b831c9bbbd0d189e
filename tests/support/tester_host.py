"""All agents of an `AgentTester` as operations see a platform."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spade_coreason import AgentTester
from spade_coreason.domain.quotas import Quotas
from spade_coreason.memory import AgentInteractionMemory, Knowledge
from spade_coreason.operations.host import OperationHost, RunningAgent, find_log_level, set_log_level
from spade_coreason.operations.status import PlatformStatus
from spade_coreason.storage import AgentRepository, Database, StoredKey, StoredWebhook
from spade_coreason.storage.repository import list_stored_agents


class TesterHost:
    """All agents of a tester as operations see a platform. With `is_running` False they are seen as stored data."""

    __test__ = False

    def __init__(self, tester: AgentTester, *, is_running: bool = True) -> None:
        self._hosts = {jid: runner.command_context.host for jid, runner in tester.runners.items()}
        self._first = next(iter(self._hosts.values()))
        self.database: Database | None = self._first.database
        self.is_running = is_running

    @property
    def whole(self) -> OperationHost:
        """The host itself."""
        return self

    async def list_agents(self) -> Sequence[str]:
        """Return the agents of the tester, and others with stored data."""
        assert self.database is not None
        return tuple(dict.fromkeys([*self._hosts, *await list_stored_agents(self.database)]))

    def list_served(self) -> Sequence[str]:
        """Return the agents of the tester."""
        return list(self._hosts)

    def is_configured(self, agent: str) -> bool:
        """Return True for an agent of the tester."""
        return agent in self._hosts

    def repository(self, agent: str) -> AgentRepository:
        """Return the stored data of an agent."""
        return self._hosts.get(agent, self._first).repository(agent)

    def memory(self, agent: str) -> AgentInteractionMemory | None:
        """Return the interaction memory of an agent."""
        return self._hosts[agent].memory(agent) if agent in self._hosts else None

    def knowledge(self, agent: str) -> Knowledge:
        """Return the knowledge of an agent."""
        return self._hosts[agent].knowledge(agent)

    def quotas(self, agent: str) -> Quotas:
        """Return the quotas of an agent."""
        return self._hosts[agent].quotas(agent)

    def take_key(self, key: StoredKey) -> None:
        """Do nothing: a tester has no doors."""

    def take_webhook(self, webhook: StoredWebhook) -> None:
        """Do nothing: a tester has no doors."""

    async def running_agent(self, agent: str, *, changes: bool = False) -> RunningAgent | None:
        """Return what runs of an agent."""
        return await self._hosts[agent].running_agent(agent) if self.is_running and agent in self._hosts else None

    async def status(self) -> PlatformStatus:
        """Fail: the tester has none."""
        raise AssertionError

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
        """Do nothing."""


def find_text(directory: Path, *texts: str) -> list[str]:
    """Return the names of the files below a directory that contain one of the texts, each with the first text found."""
    found = []
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            found += [f"{path.name}: {text}" for text in texts if text.encode() in data][:1]
    return found
