"""Agents as they are configured, made and never started, for commands that look at them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from ..domain.jid import bare_jid
from ..exceptions import CoReasonError

if TYPE_CHECKING:
    from ..config import Settings
    from ..contracts import AgentInterface
    from ..llm import Offer
    from ..memory import Knowledge, Usage
    from ..runtime import Files, Peers
    from ..storage import Database


@runtime_checkable
class HasMCPServers(Protocol):
    """An agent that uses MCP servers: what they offer, and what is wrong with them."""

    async def examine_mcp_servers(self) -> tuple[Sequence[Offer], Sequence[CoReasonError]]: ...


@runtime_checkable
class HasModels(Protocol):
    """An agent with language models: what is wrong with them."""

    async def examine_models(self) -> Sequence[CoReasonError]: ...


def build_unstarted_agent(settings: Settings, number: int) -> AgentInterface:
    """The agent that is configured, made and never started. ConfigError as for `load_agent`."""
    from ..memory import AgentInteractionMemory
    from ..runtime import Injectables, load_agent

    agent = settings.agents[number]
    jid = bare_jid(agent.jid)
    parts = Injectables(
        manifest_file=agent.manifest,
        peers=lambda: _offline_peers(jid),
        memory=lambda: AgentInteractionMemory(jid, settings.storage.memory_dir),
        knowledge=lambda: _offline_knowledge(jid),
        files=lambda: _offline_files(jid),
        usage=lambda: _offline_usage(jid),
    )
    place = settings.place(f"agents[{number}]")
    return load_agent(agent.agent, place=place, project=settings.project, injectables=parts, options=agent.options)


def _offline_peers(jid: str) -> Peers:
    """An agent's way to others, for an agent that is never started."""
    from ..runtime import OpenRequests, Peers

    def send(stanzas: list[str]) -> None:
        raise CoReasonError(f"{jid} is only checked: it is not online and cannot ask anybody")

    return Peers(jid, OpenRequests(), send)


def _offline_knowledge(jid: str) -> Knowledge:
    """An agent's knowledge, for an agent that is never started."""
    from ..memory import Knowledge
    from ..storage import KnowledgeRepository

    return Knowledge(KnowledgeRepository(_unavailable_database(jid), jid))


def _offline_usage(jid: str) -> Usage:
    """What an agent's models used, for an agent that is never started."""
    from ..memory import Usage
    from ..storage import AgentRepository

    return Usage(AgentRepository(_unavailable_database(jid), jid))


def _unavailable_database(jid: str) -> Database:
    class NoDatabase:
        def __getattr__(self, name: str) -> Any:
            raise CoReasonError(f"{jid} is only checked: nothing is stored, and nothing known")

    return cast("Database", NoDatabase())


def _offline_files(jid: str) -> Files:
    """An agent's way to files, for an agent that is never started."""
    from ..runtime import Files

    async def put(name: str, *_: object) -> str:
        raise CoReasonError(f"{jid} is only checked: it is not online and cannot upload {name!r}")

    return Files(put)
