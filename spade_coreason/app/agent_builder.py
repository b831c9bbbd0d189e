"""The construction of agents: each with its runtime, and with what all agents of a platform share."""

from __future__ import annotations

import asyncio
import logging
from collections import ChainMap, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

from ..config import AgentSettings, Settings
from ..contracts import Interceptor
from ..domain.environment.https_trust import HttpsTrust
from ..domain.jid import bare_jid, jid_domain
from ..doors import KeyRing, WebhookRing
from ..exceptions import StoreError
from ..memory import AgentInteractionMemory
from ..operations.host import OperationHost
from ..runtime import (
    AccessRequests,
    AgentNetwork,
    AgentParts,
    AgentRules,
    AgentRuntime,
    Channel,
    CrashGuard,
    FanOutLimit,
    Files,
    InterceptorSource,
    OnConversationEnd,
    PlatformDirectory,
    UploadFile,
    UploadWarnings,
    load_agent,
    load_interceptors,
    make_interceptor,
)
from ..storage import AgentRepository, Database
from ..xmpp import HostedAgent, LocalExchange, Login, ServerEndpoint
from .channels import ChannelFactories
from .factories import (
    build_access_policy,
    build_embedder,
    build_memory,
    build_memory_config,
    build_memory_table,
    build_peer_options,
    build_policy,
    build_room_configs,
    build_summariser,
    build_token_counter,
    build_tracing,
    load_avatar,
)

log = logging.getLogger(__name__)


class AgentBuilder:
    """Builds the agents of a platform. They share the database, the embedder, the directory and the exchange in the process."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        crash_guard: CrashGuard,
        key_ring: KeyRing,
        webhook_ring: WebhookRing,
        *,
        on_conversation_end: tuple[OnConversationEnd, ...],
        interceptors: Sequence[InterceptorSource],
        channels: ChannelFactories,
    ) -> None:
        self.settings = settings
        self.database = database
        self.crash_guard = crash_guard
        self.key_ring = key_ring
        """The keys with which callers reach the agents by doors."""
        self.webhook_ring = webhook_ring
        """The webhooks by which events reach them."""
        self._on_conversation_end = on_conversation_end
        self._interceptors = interceptors
        self._channels = channels
        self._channels_of_agents: dict[str, Mapping[str, Channel]] = {}
        """The channels beside XMPP, by bare JID and name. An agent that is built again has the same."""
        self.embedder = build_embedder(settings)
        self._tracing = build_tracing(settings)
        self._memories: dict[str, AgentInteractionMemory] = {}
        self._upload_warnings: defaultdict[str, UploadWarnings] = defaultdict(UploadWarnings)
        ca_file = settings.server.tls.ca_file
        self._https_trust = HttpsTrust(ca_file) if ca_file is not None else None
        self._fan_out = FanOutLimit(settings.peers.requests_per_root)
        self._local_exchange = LocalExchange() if settings.peers.local == "direct" and len(settings.agents) > 1 else None
        self.host: OperationHost | None = None
        """The platform as operations see it, once it is there. Commands of people reach all agents by it."""
        self.directory = PlatformDirectory()
        """The agents of the platform, without those that are directories themselves."""

    def build(
        self, place: str, settings: AgentSettings, endpoint: ServerEndpoint, password: str, *, register: bool
    ) -> HostedAgent:
        """Build an agent that is not online yet. Raise ConfigError, at a key below `place`, or StoreError."""
        host = HostedAgent(
            Login(settings.jid, password, register),
            endpoint,
            partial(self._build_runtime, place, settings, endpoint),
            stanza_bytes=self.settings.limits.stanza_bytes,
            avatar=load_avatar(settings, place),
            rooms=build_room_configs(self.settings, settings),
            local_exchange=self._local_exchange,
        )
        if not settings.directory:
            runtime, runner = host.runtime, host.runtime.runner
            access_requests, count_turns = runtime.gateway.access_requests, lambda: runner.mailboxes.busy_count
            self.directory.add(
                bare_jid(settings.jid), runtime.agent.manifest, access_requests, host.takes_requests, count_turns
            )
        return host

    def get_memory(self, jid: str) -> AgentInteractionMemory:
        """Return the interaction memory of an agent (a bare JID). The first call reads its file; StoreError if it cannot."""
        if jid not in self._memories:
            self._memories[jid] = build_memory(self.settings, self.database, jid)
        return self._memories[jid]

    async def forget(self, jid: str) -> None:
        """Close what was made for an agent (a bare JID) that is served here no more. StoreError if its memory is not stored."""
        self.directory.remove(jid)
        self._channels_of_agents.pop(jid, None)
        self.key_ring.on_lost.pop(jid, None)
        self.webhook_ring.on_lost.pop(jid, None)
        if (memory := self._memories.pop(jid, None)) is not None:  # what it knows is stale when the agent comes back
            await memory.aclose()

    async def open_memory(self, jid: str) -> None:
        """Open the interaction memory of an agent (a bare JID) before the agent. StoreError if that is not possible.

        With a database that has memories, those of files move there.
        """
        if self.database.backend.has_memories:
            from ..memory import import_memory_files

            memory = build_memory_table(self.settings, self.database, jid)
            await import_memory_files(memory, self.settings.storage.memory_dir, self.database.backend.alone)
        else:
            await asyncio.to_thread(self.get_memory, jid)  # it reads the whole file

    async def close(self) -> None:
        """Close what the agents share, and their interaction memories."""
        try:
            if self.embedder is not None:
                await self.embedder.close()
        finally:
            for memory in self._memories.values():
                try:
                    await memory.aclose()
                except StoreError as error:  # no data is lost: entries that could not be merged stay in the journal
                    log.error("%s", error)

    def _build_runtime(
        self, place: str, settings: AgentSettings, endpoint: ServerEndpoint, network: AgentNetwork, upload: UploadFile
    ) -> AgentRuntime:
        jid, project = bare_jid(settings.jid), self.settings.project
        if jid not in self._channels_of_agents:
            self._channels_of_agents[jid] = {name: make(jid) for name, make in self._channels.items()}
        parts = AgentParts(
            AgentRepository(self.database, jid),
            network._replace(channels={**self._channels_of_agents[jid], **network.channels}),
            Files(
                self._find_upload(jid, upload),
                warnings=self._upload_warnings[jid_domain(jid)],
                trust=self._https_trust,
                own_urls=self._list_file_places(endpoint),
            ),
            build_peer_options(self.settings, settings, self.directory, self._fan_out),
            AgentRules(
                build_access_policy(self.settings, settings),
                build_policy(self.settings, settings, None, has_forgery=endpoint.has_forgery),
            ),
            memory=partial(self.get_memory, jid),
            embedder=self.embedder,
        )
        agent = load_agent(
            settings.agent,
            place=place,
            project=project,
            injectables=parts.as_injectables(settings.manifest),
            options=settings.options,
        )
        memory = self.settings.memory_of(settings)
        runtime = parts.build_runtime(
            agent,
            build_memory_config(self.settings.memory, settings.memory, agent.manifest.config.memory),
            on_conversation_end=self._on_conversation_end,
            summariser=build_summariser(memory),
            count_tokens=build_token_counter(memory, project, f"{place}.memory.tokenizer"),
            interceptors=self._build_interceptors(place, settings),
            crash_guard=self.crash_guard,
            tracing=self._tracing,
            get_platform=lambda: self.host,
        )
        self._admit_callers(jid, runtime.gateway.access_requests)
        return runtime

    def _find_upload(self, jid: str, upload: UploadFile) -> UploadFile:
        web = self.settings.web
        if web is None or not web.page:
            return upload
        from ..doors import upload_to_page

        return upload_to_page(upload, AgentRepository(self.database, jid).callers, web.public_url)

    def _list_file_places(self, endpoint: ServerEndpoint) -> list[str]:
        """Return the beginnings of the links to files of this platform, which agents may fetch from any address."""
        web = self.settings.web
        return [
            *([endpoint.files_url] if endpoint.files_url else []),
            *([f"{web.public_url}/files/"] if web is not None else []),
        ]

    def _admit_callers(self, jid: str, access_requests: AccessRequests) -> None:
        """Let callers with live keys and webhooks reach an agent. A rejection of a person ends the keys that stand for them."""
        key_ring = self.key_ring
        callers: ChainMap[str, str] = ChainMap(self.webhook_ring.callers_of(jid), key_ring.callers_of(jid))  # type: ignore[arg-type]  # none is changed
        access_requests.access.callers = callers
        access_requests.decided.subscribe(lambda person, is_admitted: None if is_admitted else key_ring.withdraw(jid, person))
        key_ring.on_lost[jid] = self.webhook_ring.on_lost[jid] = access_requests.access_lost.emit

    def _build_interceptors(self, place: str, settings: AgentSettings) -> list[Interceptor]:
        """Build the interceptors of an agent: those of the configuration for all agents, the given ones, and its own."""
        jid, project = bare_jid(settings.jid), self.settings.project
        return [
            *load_interceptors(self.settings.interceptors, project, self.settings.place("interceptors"), jid),
            *(make_interceptor(source, "interceptors", jid, project) for source in self._interceptors),
            *load_interceptors(settings.interceptors, project, f"{place}.interceptors", jid),
        ]
