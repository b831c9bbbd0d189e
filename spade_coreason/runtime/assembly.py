"""The assembly of one agent, for the platform, for tests and for dry runs: its parts, its runner and its gateway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

from ..contracts import Agent, AgentDefinition, Interceptor
from ..contracts.base import utc_now
from ..domain.access import AccessPolicy, TrustedAgents
from ..domain.policy import Policy
from ..memory import AgentInteractionMemory, Embedder, Knowledge, Summariser, TokenCounter, Usage
from ..storage import AgentRepository, Database, KnowledgeRepository
from .agent_factory import Injectables
from .channels import AgentNetwork
from .crash_guard import CrashGuard
from .files import FetchFile, Files, UploadFile, UploadWarnings, fetch, refuse_upload
from .intake.access_requests import AccessRequests
from .intake.gateway import InboundGateway
from .intake.known_people import KnownPeople
from .languages import PersonLanguages
from .peers.directory import AgentFinder
from .peers.open_requests import OpenRequests
from .peers.peers import FanOutLimit, Peers
from .runner import Runner
from .topics.announcement import SubscriptionAnnouncement
from .topics.decorator import subscriptions_of
from .topics.store import TopicStore
from .upkeep.expiry import OnConversationEnd


class AgentParts:
    """The parts of one agent that its constructor may take and that its runner uses.

    `jid` is a bare JID. `upload` stores a file. `memory` returns the interaction memory; None for an
    agent without one. `fetch_file` gets the target of a link. `clock` is the time of conversations. `trusted_agents` and this
    agent tell each other the person whose request they pass on. `upload_warnings` is that of all agents of the server, and
    `fan_out` that of all agents of the process. `finder` finds other agents.
    `topic_broker` is the agent (a bare JID) that passes on the items of topics, if there is one.
    """

    def __init__(
        self,
        jid: str,
        database: Database,
        network: AgentNetwork,
        upload: UploadFile = refuse_upload,
        memory: Callable[[], AgentInteractionMemory] | None = None,
        *,
        fetch_file: FetchFile = fetch,
        embedder: Embedder | None = None,
        clock: Callable[[], datetime] = utc_now,
        trusted_agents: TrustedAgents | None = None,
        upload_warnings: UploadWarnings | None = None,
        fan_out: FanOutLimit | None = None,
        finder: AgentFinder | None = None,
        topic_broker: str | None = None,
    ) -> None:
        self.jid = jid
        self.finder = finder or AgentFinder(jid)
        self.topic_broker = topic_broker
        self.trusted_agents = trusted_agents or TrustedAgents()
        self.network = network
        self.memory = memory
        self.clock = clock
        self.repository = AgentRepository(database, jid)
        self.open_requests = OpenRequests(lambda: self._runner is not None and self._runner.is_cancelling_turns)
        self.people = KnownPeople(self.repository)
        self._runner: Runner | None = None
        self.peers = Peers(
            jid,
            self.open_requests,
            network.requests,
            self.trusted_agents,
            self.people,
            finder=self.finder,
            topic_broker=topic_broker,
            fan_out=fan_out,
        )
        self.topic_store = TopicStore(jid, self.repository.topics, self.open_requests, network.requests, clock)
        self.files = Files(upload, fetch_file, upload_warnings or UploadWarnings())
        self.knowledge = Knowledge(KnowledgeRepository(database, jid), embedder, clock=clock)
        self.usage = Usage(self.repository, clock)

    def as_injectables(self, manifest_file: Path | None = None, manifest: AgentDefinition | None = None) -> Injectables:
        """Return the parts as arguments for the constructor of the agent."""
        return Injectables(
            manifest=manifest,
            manifest_file=manifest_file,
            peers=lambda: self.peers,
            memory=self.memory,
            knowledge=lambda: self.knowledge,
            files=lambda: self.files,
            usage=lambda: self.usage,
            topic_store=lambda: self.topic_store,
        )

    def build_runtime(
        self,
        agent: Agent,
        access: AccessPolicy,
        policy: Policy | None = None,
        *,
        on_conversation_end: tuple[OnConversationEnd, ...] = (),
        summariser: Summariser | None = None,
        count_tokens: TokenCounter | None = None,
        interceptors: Sequence[Interceptor] = (),
        crash_guard: CrashGuard | None = None,
    ) -> AgentRuntime:
        """Build the runner and the gateway of an agent. `access` decides who may talk to it; for the rest see `Runner`."""
        self.people.add_operators(access.operators)
        languages = PersonLanguages(self.repository)
        access_requests = AccessRequests(access, self.repository, agent.manifest.metadata.name, self.network.notices, languages)
        self.topic_store.follow_access(access_requests)
        runner = Runner(
            agent,
            self.jid,
            self.repository,
            self.network.channels,
            policy,
            clock=self.clock,
            on_conversation_end=on_conversation_end,
            interaction_memory=self.memory,
            files=self.files,
            knowledge=self.knowledge,
            summariser=summariser,
            count_tokens=count_tokens,
            usage=self.usage,
            access_requests=access_requests,
            interceptors=interceptors,
            crash_guard=crash_guard,
            languages=languages,
        )
        self._runner = runner
        gateway = InboundGateway(
            runner,
            self.open_requests,
            access_requests,
            self.network.channels,
            self.network.notices,
            self.trusted_agents,
            self.people,
            self.topic_broker,
        )
        patterns = [subscription.pattern for subscription in subscriptions_of(agent)]
        announcement = SubscriptionAnnouncement(self.peers, self.repository, patterns, self.topic_broker)
        return AgentRuntime(agent, self, runner, gateway, announcement)


@dataclass(frozen=True, slots=True)
class AgentRuntime:
    """An agent with its parts, its runner, its gateway and the announcement of its subscriptions."""

    agent: Agent
    parts: AgentParts
    runner: Runner
    gateway: InboundGateway
    announcement: SubscriptionAnnouncement


BuildRuntime: TypeAlias = Callable[[AgentNetwork, UploadFile], AgentRuntime]
"""A function that builds an agent for a network, given its function that stores a file."""
