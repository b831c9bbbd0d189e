"""A runner over a database that tests start and stop, and the agent that it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Self

from spade_coreason import AgentDefinition, AgentInteractionMemory, AgentRequest, ResponseHandler, Session
from spade_coreason.contracts import Interceptor
from spade_coreason.contracts.times import utc_now
from spade_coreason.domain.access import AccessPolicy
from spade_coreason.runtime import (
    AgentNetwork,
    AgentParts,
    AgentRules,
    AgentRuntime,
    Files,
    OutboundMessage,
    PeerOptions,
    UploadFile,
)
from spade_coreason.storage import Commit
from spade_coreason.storage.repository import AgentRepository
from spade_coreason.testing import Policy
from spade_coreason.xmpp.transport import XmppTransport
from tests.support.databases import WriterGate, open_without_sync
from tests.support.no_uploads import refuse_upload
from tests.support.records import AGENT, ALICE
from tests.support.requests import build_incoming
from tests.support.transports import STANZA_BYTES


def make_runtime(
    agent: Any,
    repository: AgentRepository,
    network: AgentNetwork,
    policy: Policy | None = None,
    *,
    allow: Iterable[str] | None = ("*",),
    access: AccessPolicy | None = None,
    upload: UploadFile = refuse_upload,
    memory: Callable[[], AgentInteractionMemory] | None = None,
    clock: Callable[[], datetime] = utc_now,
    **options: Any,
) -> AgentRuntime:
    """Make the runtime of an agent to which by default everybody has access; `options`: see `AgentParts.build_runtime`.

    `access` replaces `allow`.
    """
    rules = AgentRules(access or AccessPolicy(repository.agent, allow), policy or Policy())
    parts = AgentParts(repository, network, Files(upload), PeerOptions(), rules, memory=memory, clock=clock)
    return parts.build_runtime(agent, **options)


class Observation(NamedTuple):
    """The state that an agent sees at the start of a turn: turns in its window, all turns, texts of its interaction memory."""

    window: int = 0
    history: int = 0
    known: tuple[str, ...] = ()


class RememberingAgent:
    """An agent that answers with its `Observation`, adds it to `observations`, and stores a secret in variables and memory."""

    manifest = AgentDefinition.simple("notes")

    def __init__(self, memory: AgentInteractionMemory | None = None, release: asyncio.Event | None = None) -> None:
        self.memory = memory
        self.release = release
        self.started = asyncio.Event()
        self.observations: list[Observation] = []

    async def assist(self, request: AgentRequest, session: Session, response: ResponseHandler) -> None:
        name = request.metadata["conversation_id"]
        known = [] if self.memory is None else await self.memory.aget_information(name)
        if self.memory is not None:
            await self.memory.aadd_information(name, f"a secret of {session.identity.id}")
        await session.store("v", f"a secret of {session.identity.id}")
        self.started.set()
        if self.release is not None:
            await self.release.wait()
        seen = Observation(len(await session.window()), len(await session.history(1000)), tuple(known))
        await response.data(seen._asdict())
        self.observations.append(seen)


class RunnerHarness:
    """A runner over the database at a URL; each `async with` block starts and stops it."""

    def __init__(
        self,
        database_url: str,
        agent: Any = None,
        policy: Policy | None = None,
        clock: Callable[[], datetime] = utc_now,
        interceptors: Sequence[Interceptor] = (),
        access: AccessPolicy | None = None,
    ) -> None:
        self.url = database_url
        self.clock = clock
        self.agent: Any = agent or RememberingAgent()
        self.policy = policy or Policy()
        self.interceptors = interceptors
        self.access = access
        self.sent: list[str] = []
        """The texts of all stanzas that left."""
        self.messages: list[OutboundMessage] = []
        """The same as messages. The network has acknowledged none of them."""
        self.rooms: set[str] = set()
        self.writes = WriterGate()

    async def __aenter__(self) -> Self:
        self.database = await open_without_sync(self.url, self.writes)
        self.repository = AgentRepository(self.database, AGENT)
        runtime = make_runtime(
            self.agent,
            self.repository,
            self.make_network(),
            self.policy,
            access=self.access,
            clock=self.clock,
            interceptors=self.interceptors,
        )
        self.runner, self.gateway = runtime.runner, runtime.gateway
        await self.runner.open()
        self.runner.send_unsent()
        return self

    def make_network(self) -> AgentNetwork:
        """Make the network of the agent: it takes messages, and never says that it has them."""
        return XmppTransport(AGENT, self._send, STANZA_BYTES, is_room=lambda address: address in self.rooms).network

    async def __aexit__(self, *_: object) -> None:
        await self.runner.drain(0)
        await self.runner.close()
        await self.database.close()

    def _send(self, messages: Sequence[OutboundMessage]) -> None:
        self.messages += messages
        self.sent += [message.content for message in messages]

    def receive(self, text: str, thread: str | None = "t", sender: str = ALICE) -> Commit[bool]:
        stored = self.runner.intake.receive(build_incoming(text, sender, thread=thread))
        assert stored is not None
        return stored

    async def receive_and_wait(self, text: str, thread: str | None = "t", sender: str = ALICE) -> None:
        await self.receive(text, thread, sender)
        await self.runner.mailboxes.wait_until_idle()
