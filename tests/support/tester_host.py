"""All agents of an `AgentTester` as operations see a platform."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spade_coreason import AgentTester
from spade_coreason.domain.quotas import Quotas
from spade_coreason.memory import AgentInteractionMemory, Knowledge
from spade_coreason.operations.host import OperationHost, RunningAgent
from spade_coreason.storage import AgentRepository
from spade_coreason.storage.repository import list_stored_agents


class TesterHost(OperationHost):
    """All agents of a tester as operations see a platform. With `is_running` False they are seen as stored data."""

    __test__ = False

    def __init__(self, tester: AgentTester, *, is_running: bool = True) -> None:
        self._hosts = {jid: runner.executor.context.host for jid, runner in tester.runners.items()}
        self._first = next(iter(self._hosts.values()))
        self.database = self._first.database
        self.is_running = is_running

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

    async def running_agent(self, agent: str, *, changes: bool = False) -> RunningAgent | None:
        """Return what runs of an agent."""
        return await self._hosts[agent].running_agent(agent) if self.is_running and agent in self._hosts else None


def find_text(directory: Path, *texts: str) -> list[str]:
    """Return the names of the files below a directory that contain one of the texts, each with the first text found."""
    found = []
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            found += [f"{path.name}: {text}" for text in texts if text.encode() in data][:1]
    return found
