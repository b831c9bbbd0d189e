"""The echo agents that are measured: a bare slixmpp client, a SPADE behaviour, and a hosted agent.

All run on asyncio's own event loop. Each kind is entered once in a process and yields `start`, which starts one agent a call.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from spade_coreason.runtime import CrashGuard, Files, PeerOptions
from spade_coreason.storage import AgentRepository, RunningRequests, open_database

if TYPE_CHECKING:
    from spade_coreason.runtime import AgentNetwork, AgentRuntime, UploadFile
    from spade_coreason.storage import Database
    from spade_coreason.xmpp.connection.endpoint import ServerEndpoint
    from spade_coreason.xmpp.host import HostedAgent

Start: TypeAlias = Callable[[str, str], Awaitable[None]]
"""Start an agent with this bare JID and password, and wait until it is online."""


@dataclass(frozen=True)
class Environment:
    """The server, and a directory for the data of an agent."""

    host: str
    port: int
    ca_file: Path
    directory: Path


@asynccontextmanager
async def raw(environment: Environment) -> AsyncIterator[Start]:
    """Run bare slixmpp clients: the event `message`, no stream management, nothing stored."""
    import slixmpp

    clients: list[Any] = []
    context = ssl.create_default_context(cafile=environment.ca_file)

    async def start(jid: str, password: str) -> None:
        client = slixmpp.ClientXMPP(f"{jid}/agent", password)
        client.enable_direct_tls = False  # otherwise the first attempt is direct TLS, which a STARTTLS port cannot answer
        client.ssl_context = context
        online = asyncio.Event()

        def answer(message: Any) -> None:
            if message["type"] in ("chat", "normal"):
                message.reply(message["body"]).send()

        client.add_event_handler("session_start", lambda _: online.set())
        client.add_event_handler("message", answer)
        client.connect(environment.host, environment.port)
        clients.append(client)
        await online.wait()
        client.send_presence()

    try:
        yield start
    finally:
        await asyncio.gather(*(client.disconnect(wait=1.0) for client in clients))


@asynccontextmanager
async def spade(environment: Environment) -> AsyncIterator[Start]:
    """Run SPADE agents as in SPADE's manual: a CyclicBehaviour that receives and replies, nothing stored."""
    policy = asyncio.get_event_loop_policy()
    from spade.agent import Agent
    from spade.behaviour import CyclicBehaviour

    agents: list[Any] = []

    class Echo(CyclicBehaviour):  # type: ignore[misc]  # SPADE comes without types
        async def run(self) -> None:
            message = await self.receive(timeout=60)
            if message is not None:
                await self.send(message.make_reply())

    class EchoAgent(Agent):  # type: ignore[misc]  # as above
        async def _async_connect(self) -> None:
            # SPADE only connects to the host of the JID's domain.
            online = asyncio.Event()
            self.client.add_event_handler("session_start", lambda _: online.set())
            self.client.add_event_handler("message", self._message_received)
            self.client.enable_direct_tls = False
            self.client.connect(host=environment.host, port=environment.port)
            await online.wait()

        async def setup(self) -> None:
            self.add_behaviour(Echo())

    async def start(jid: str, password: str) -> None:
        agent = EchoAgent(f"{jid}/agent", password, port=environment.port)
        asyncio.set_event_loop_policy(policy)  # SPADE's container sets that of uvloop for the whole process
        await agent.start(auto_register=False)
        agents.append(agent)

    try:
        yield start
    finally:
        for agent in agents:
            await agent.stop()


@asynccontextmanager
async def hosted(environment: Environment, durability: Literal["full", "normal"] = "full") -> AsyncIterator[Start]:
    """Run our agents: stream management, storage before acknowledgement, one transaction a turn.

    All share one endpoint, one database and one guard against crashes, as those of a platform.
    """
    from spade_coreason.runtime import tune_gc
    from spade_coreason.xmpp import ServerEndpoint, tune_tls_buffers

    tune_tls_buffers()  # as `up` does
    endpoint = ServerEndpoint(environment.host, environment.port, ca_file=environment.ca_file)
    database = await open_database(f"sqlite+aiosqlite:///{environment.directory}/platform.db", durability)
    crash_guard = CrashGuard(RunningRequests())
    agents: list[HostedAgent] = []

    async def start(jid: str, password: str) -> None:
        agent = build_hosted(jid, password, endpoint, database, crash_guard)
        await agent.start()
        agents.append(agent)
        if len(agents) == 1:
            # As `up` does, but once it has all. What a further agent is still busy with would never be collected.
            tune_gc()

    try:
        yield start
    finally:
        await asyncio.gather(*(agent.stop(grace_s=1.0) for agent in agents))
        await database.close()


def build_hosted(
    jid: str, password: str, endpoint: ServerEndpoint, database: Database, crash_guard: CrashGuard | None = None
) -> HostedAgent:
    """Build one of our agents. It echoes, and its conversations have no end."""
    from spade_coreason import AgentDefinition
    from spade_coreason.agents.echo import EchoAgent
    from spade_coreason.domain.access import AccessPolicy
    from spade_coreason.domain.policy import Policy, Rules
    from spade_coreason.runtime import AgentParts, AgentRules
    from spade_coreason.xmpp import HostedAgent, Login

    policy = Policy(rules=Rules(max_interactions=0))

    def build(network: AgentNetwork, upload: UploadFile) -> AgentRuntime:
        parts = AgentParts(
            AgentRepository(database, jid), network, Files(upload), PeerOptions(), AgentRules(AccessPolicy(jid), policy)
        )
        return parts.build_runtime(EchoAgent(AgentDefinition.simple("echo")), crash_guard=crash_guard)

    return HostedAgent(Login(jid, password), endpoint, build, stanza_bytes=policy.limits.stanza_bytes)


KINDS: dict[str, Callable[[Environment], AbstractAsyncContextManager[Start]]] = {
    "slixmpp": raw,
    "SPADE": spade,
    "hosted": hosted,
    "hosted, durability normal": partial(hosted, durability="normal"),
}
