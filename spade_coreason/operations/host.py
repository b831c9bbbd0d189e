"""The platform as operations see it: a running one, or its stored data alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ..exceptions import ConfigError

if TYPE_CHECKING:
    from ..domain.quotas import Quotas
    from ..memory import AgentInteractionMemory, Knowledge
    from ..storage import AgentRepository, Database, StoredKey, StoredWebhook
    from .running_agent import RunningAgent
    from .status import PlatformStatus

ALL_AGENTS = "*"
"""The name that means all agents."""


class OperationHost(Protocol):
    """A platform as operations see it. Only one process may change its data."""

    @property
    def whole(self) -> OperationHost:
        """The whole platform, for operations that concern all agents. It is the host itself, unless that has one agent only."""
        ...

    @property
    def database(self) -> Database | None:
        """The database; None if nothing was ever stored."""
        ...

    async def list_agents(self) -> Sequence[str]:
        """Return the agents (bare JIDs) that are configured or have stored data."""
        ...

    def repository(self, agent: str) -> AgentRepository:
        """Return the stored data of an agent. Raise StoreError if nothing was ever stored."""
        ...

    def memory(self, agent: str) -> AgentInteractionMemory | None:
        """Return the interaction memory of an agent; None if it has none. Raise StoreError if its file is damaged."""
        ...

    def knowledge(self, agent: str) -> Knowledge:
        """Return the knowledge of an agent."""
        ...

    def quotas(self, agent: str) -> Quotas:
        """Return the quotas of an agent."""
        ...

    def take_webhook(self, webhook: StoredWebhook) -> None:
        """Take a webhook as it is stored now, so that the running doors take its events, or take them no more, at once."""
        ...

    async def running_agent(self, agent: str, *, changes: bool = False) -> RunningAgent | None:
        """Return what runs of an agent, here or in another worker; None if it does not run.

        With `changes` one that does not run stays so until the operation is over: no worker takes it.
        """
        ...

    def take_key(self, key: StoredKey) -> None:
        """Take a key as it is stored now, so that the running doors accept it, or accept it no more, at once."""
        ...

    @property
    def is_running(self) -> bool:
        """True for a running platform, False for its stored data alone."""
        ...

    async def status(self) -> PlatformStatus:
        """Return the status of the running platform."""
        ...

    def stop(self) -> None:
        """Stop the running platform, once the present calls are answered."""
        ...


def describe_agents(agents: Sequence[str]) -> str:
    """Return half a sentence that lists agents."""
    if len(agents) == 1:
        return f"the only agent is {agents[0]}"
    return f"the agents are {', '.join(agents)}" if agents else "there are no agents"


async def select_agents(host: OperationHost, name: str | None) -> tuple[str, ...]:
    """Return the agents (bare JIDs) that a name means: a JID, its local part, or all for None or "*".

    Raise ConfigError at `agent` if there is none, or several with that local part. A whole JID may name an agent that is
    stored nowhere.
    """
    known = tuple(await host.list_agents())
    if name is None or name == ALL_AGENTS:
        return known
    found = [jid for jid in known if name in (jid, jid.partition("@")[0])]
    if not found and "@" in name:
        return (name.partition("/")[0].lower(),)
    if len(found) != 1:
        raise ConfigError("agent", f'there is no agent "{name}"; {describe_agents(known)}')
    return tuple(found)


async def select_agent(host: OperationHost, name: str | None) -> str:
    """Return the one agent that a name means. Without a name it is the only one; ConfigError if there are others or none."""
    agents = await select_agents(host, name)
    if len(agents) == 1:
        return agents[0]
    known = ", ".join(agents)
    if name == ALL_AGENTS:
        raise ConfigError("agent", f'one is needed, and "*" means all; {describe_agents(agents)}')
    raise ConfigError("agent", f"is missing; the agents are {known}" if known else "is missing, and there are no agents here")


async def stored_agents(host: OperationHost, name: str | None) -> tuple[str, ...]:
    """Return the agents that a name means, as `select_agents`; none if nothing was ever stored."""
    agents = await select_agents(host, name)
    return agents if host.database is not None else ()


async def owner_of(host: OperationHost, agent: str, conversation: str) -> str:
    """Return the owner of a conversation (a bare JID); empty if it is not stored."""
    found = (await host.repository(agent).find_conversations([conversation])).get(conversation)
    return "" if found is None else found.owner
