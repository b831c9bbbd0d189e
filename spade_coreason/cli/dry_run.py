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
    from ..memory import Knowledge, Usage
    from ..runtime import Files, Peers
    from ..storage import Database


@runtime_checkable
class HasMCPServers(Protocol):
    """An agent that can examine its MCP servers: their tools and their problems."""

    async def examine_mcp_servers(self) -> tuple[Sequence[Offer], Sequence[CoReasonError]]: ...


@runtime_checkable
class HasModels(Protocol):
    """An agent that can examine its language models for problems."""

    async def examine_models(self) -> Sequence[CoReasonError]: ...


def build_unstarted_agent(settings: Settings, number: int) -> Agent:
    """Build a configured agent without starting it. Raise ConfigError as `load_agent` does."""
    from ..memory import AgentInteractionMemory
    from ..runtime import Injectables, load_agent

    agent = settings.agents[number]
    jid = bare_jid(agent.jid)
    injectables = Injectables(
        manifest_file=agent.manifest,
        peers=lambda: _offline_peers(jid),
        memory=lambda: AgentInteractionMemory(jid, settings.storage.memory_dir),
        knowledge=lambda: _offline_knowledge(jid),
        files=lambda: _offline_files(jid),
        usage=lambda: _offline_usage(jid),
    )
    place = settings.place(f"agents[{number}]")
    return load_agent(agent.agent, place=place, project=settings.project, injectables=injectables, options=agent.options)


def _offline_peers(jid: str) -> Peers:
    """Build the access to other agents, for an agent that is never started."""
    from ..runtime import OpenRequests, OutboundMessage, Peers
    from ..xmpp import XmppTransport

    def send(messages: Sequence[OutboundMessage]) -> None:
        raise CoReasonError(f"{jid} is only checked: it is not online and cannot ask anybody")

    return Peers(OpenRequests(), XmppTransport(jid, send))


def _offline_knowledge(jid: str) -> Knowledge:
    """Build the knowledge of an agent that is never started."""
    from ..memory import Knowledge
    from ..storage import KnowledgeRepository

    return Knowledge(KnowledgeRepository(_unavailable_database(jid), jid))


def _offline_usage(jid: str) -> Usage:
    """Build the model usage of an agent that is never started."""
    from ..memory import Usage
    from ..storage import AgentRepository

    return Usage(AgentRepository(_unavailable_database(jid), jid))


def _unavailable_database(jid: str) -> Database:
    class NoDatabase:
        def __getattr__(self, name: str) -> Any:
            raise CoReasonError(f"{jid} is only checked: nothing is stored, and nothing known")

    return cast("Database", NoDatabase())


def _offline_files(jid: str) -> Files:
    """Build the access to files, for an agent that is never started."""
    from ..runtime import Files

    async def put(name: str, *_: object) -> str:
        raise CoReasonError(f"{jid} is only checked: it is not online and cannot upload {name!r}")

    return Files(put)
