"""Configured agents that are built and never started, for commands that examine them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from ..domain.jid import bare_jid
from ..exceptions import CoReasonError

if TYPE_CHECKING:
    from ..config import Settings
    from ..contracts import Agent
    from ..llm import Offer
    from ..runtime import OutboundMessage
    from ..storage import Database


@runtime_checkable
class HasMCPServers(Protocol):
    """An agent that can examine its MCP servers: their tools and their problems."""

    async def examine_mcp_servers(self) -> tuple[Sequence[Offer], Sequence[CoReasonError]]: ...


@runtime_checkable
class HasModels(Protocol):
    """An agent that can examine its language models for problems."""

    async def examine_models(self) -> Sequence[CoReasonError]: ...


@runtime_checkable
class HasApprovers(Protocol):
    """An agent that names the group which approves its calls; None if it is that of the settings."""

    @property
    def approvers(self) -> str | None: ...


@runtime_checkable
class HasCard(Protocol):
    """An agent whose manifest may come from elsewhere: until its card is read, it has only a name."""

    @property
    def awaits_card(self) -> bool: ...


def build_unstarted_agent(settings: Settings, number: int) -> Agent:
    """Build a configured agent without starting it. Raise ConfigError as `load_agent` and `load_interceptors` do."""
    from ..domain.access import AccessPolicy
    from ..domain.policy import Policy
    from ..memory import AgentInteractionMemory
    from ..runtime import AgentParts, AgentRules, Files, PeerOptions, load_agent, load_interceptors
    from ..storage import AgentRepository
    from ..xmpp import XmppTransport

    agent, project = settings.agents[number], settings.project
    jid, place = bare_jid(agent.jid), settings.place(f"agents[{number}]")
    load_interceptors(settings.interceptors, project, settings.place("interceptors"), jid)
    load_interceptors(agent.interceptors, project, f"{place}.interceptors", jid)
    unavailable = _Unavailable(jid)
    parts = AgentParts(
        AgentRepository(cast("Database", unavailable), jid),
        XmppTransport(jid, unavailable.send, settings.limits.stanza_bytes).network,
        Files(unavailable.upload),
        PeerOptions(),
        AgentRules(AccessPolicy(jid), Policy()),
        memory=lambda: AgentInteractionMemory(jid, settings.storage.memory_dir),
    )
    injectables = parts.as_injectables(agent.manifest)
    return load_agent(agent.agent, place=place, project=project, injectables=injectables, options=agent.options)


class _Unavailable:
    """The network, the database and the files of an agent (a bare JID) that is never started."""

    row_ids = writes = inbox_index = None  # a repository takes these from the database before it uses them

    def __init__(self, jid: str) -> None:
        self._jid = jid

    def send(self, messages: Sequence[OutboundMessage]) -> None:
        raise CoReasonError(f"{self._jid} is only being checked: it is offline and cannot send requests")

    async def upload(self, name: str, *_: object) -> str:
        raise CoReasonError(f"{self._jid} is only being checked: it is offline and cannot upload {name!r}")

    def __getattr__(self, name: str) -> Any:
        raise CoReasonError(f"{self._jid} is only being checked: it has no knowledge, and cannot store any")
