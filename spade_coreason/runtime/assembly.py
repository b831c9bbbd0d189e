"""The assembly of one agent, for the platform, for tests and for dry runs: its parts, its runner and its gateway."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeAlias

from ..concurrency import DeadlineExceededError, DeadlineTimers, run_with_timeout
from ..contracts import Agent, AgentDefinition, Interceptor
from ..contracts.times import utc_now
from ..domain.access import AccessPolicy
from ..domain.channel_kinds import DEFAULT_CHANNEL, SCHEDULE_CHANNEL
from ..domain.observability.tracing import Tracing
from ..domain.observability.turn_log import names_turns
from ..domain.policy import Policy
from ..memory import (
    AgentInteractionMemory,
    Embedder,
    ExtractiveSummariser,
    HistoryWindows,
    Knowledge,
    Summariser,
    TokenCounter,
    Usage,
    estimate_tokens,
)
from ..operations.host import OperationHost
from ..storage import AgentRepository, KnowledgeRepository, RunningRequests
from .agent_control import AgentControl
from .agent_factory import Injectables
from .agent_lifecycle import AgentLifecycle
from .channels import AgentNetwork, Channel
from .commands.agent_host import AgentHost
from .commands.context import CommandContext
from .commands.executor import CommandExecutor
from .commands.registry import Commands
from .crash_guard import CrashGuard
from .event_emitter import EventEmitter
from .files import Files, UploadFile
from .initiative.channel import ScheduleChannel
from .initiative.decorator import every_of
from .initiative.initiative import Initiative
from .initiative.notifier import Notifier
from .initiative.people import People
from .initiative.scheduler import Scheduler
from .intake.access_requests import AccessRequests
from .intake.admission import Admission
from .intake.conversation_loader import ConversationLoader
from .intake.gateway import InboundGateway
from .intake.known_people import KnownPeople
from .intake.mailboxes import Mailboxes
from .intake.quota_limit import QuotaLimit
from .intake.received_reactions import ReceivedReactions
from .intake.recovery import InboxRecovery
from .intake.repeated_requests import RepeatedRequests
from .intake.request_intake import RequestIntake
from .intake.revocation import AccessRevocation
from .languages import PersonLanguages
from .live_erasure import LiveErasure
from .observability.turns import HandleRequest, TracedIntake, name_turns_in_log, trace_turns
from .peers.open_requests import OpenRequests
from .peers.peers import PeerOptions, Peers
from .questions.desk import QuestionDesk
from .runner import Runner
from .tasks import TaskRunner
from .topics.announcement import SubscriptionAnnouncement
from .topics.decorator import subscriptions_of
from .topics.store import TopicStore
from .turns.long_answers import LongAnswers
from .turns.outbox import Outbox
from .turns.output import ReplyTimers
from .turns.turn_services import TurnServices
from .turns.worker import MailboxWorkers, RequestHandler
from .upkeep.expiry import ConversationExpiry, OnConversationEnd
from .upkeep.incidents import IncidentRecorder
from .upkeep.metrics import Metrics
from .upkeep.retention_job import EphemeralOwners, RetentionJob

log = logging.getLogger(__name__)


class AgentParts:
    """The parts of one agent that its constructor may take and that its runner uses.

    `repository` has the rows of the agent, whose bare JID is `repository.agent`. `memory` returns the interaction memory; None
    for an agent without one. `get_platform` returns its platform, once that is there. `clock` is the time of conversations.
    """

    def __init__(
        self,
        repository: AgentRepository,
        network: AgentNetwork,
        files: Files,
        peer_options: PeerOptions,
        *,
        memory: Callable[[], AgentInteractionMemory] | None = None,
        embedder: Embedder | None = None,
        get_platform: Callable[[], OperationHost | None] = lambda: None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        jid = self.jid = repository.agent
        """The bare JID of the agent."""
        self.repository = repository
        self.network = network
        self.files = files
        self.peer_options = peer_options
        self.memory = memory
        self.clock = clock
        self._get_platform = get_platform
        self._mailboxes: Mailboxes | None = None
        self.open_requests = OpenRequests(lambda: self._mailboxes is not None and self._mailboxes.is_cancelling_turns)
        self.known_people = KnownPeople(repository)
        self.people = People(jid, self._get_notifier)
        self._notifier: Notifier | None = None
        self.manifest_changed: EventEmitter[[]] = EventEmitter()
        """Emitted when the agent has another manifest than at its start."""
        self.peers = Peers(jid, self.open_requests, network.requests, peer_options, self.known_people)
        self.topic_store = TopicStore(
            jid, repository.topics, self.open_requests, network.requests, clock, peer_options.trusted_agents
        )
        self.knowledge = Knowledge(KnowledgeRepository(repository.database, jid), embedder, clock=clock)
        self.usage = Usage(repository, clock)

    def _get_notifier(self) -> Notifier:
        """Return the notifier of the agent. RuntimeError before its runtime is built."""
        if self._notifier is None:
            raise RuntimeError("people cannot be notified before the agent is started")
        return self._notifier

    def as_injectables(self, manifest_file: Path | None = None, manifest: AgentDefinition | None = None) -> Injectables:
        """Return the parts as arguments for the constructor of the agent."""
        return Injectables(
            manifest=manifest,
            manifest_file=manifest_file,
            peers=lambda: self.peers,
            people=lambda: self.people,
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
        on_conversation_end: Sequence[OnConversationEnd] = (),
        summariser: Summariser | None = None,
        count_tokens: TokenCounter | None = None,
        interceptors: Sequence[Interceptor] = (),
        crash_guard: CrashGuard | None = None,
        tracing: Tracing | None = None,
    ) -> AgentRuntime:
        """Build the runner, the intake and the gateway of an agent.

        `access` decides who may talk to it. `policy` has its limits and timeouts. `on_conversation_end` are called with the
        conversation id and the final state when an episode ends; a method of the agent of this name is called last.
        `summariser` and `count_tokens` are parts of the memory strategy. `interceptors` decide on new requests, and run around
        `assist`, in their order. `crash_guard` is the one of the process. `tracing` makes the traces, if there are any.
        """
        policy, crash_guard = policy or Policy(), crash_guard or CrashGuard(RunningRequests())
        repository, network, clock = self.repository, self.network, self.clock
        languages, metrics = PersonLanguages(), Metrics()
        channels = {**network.channels, SCHEDULE_CHANNEL: ScheduleChannel(network.channels[DEFAULT_CHANNEL])}
        self.known_people.add_operators(access.operators)
        access_requests = AccessRequests(access, repository, agent.manifest.metadata.name, network.notices, languages)
        tasks = TaskRunner(repository.tasks, self.jid, clock, policy.timings.retry_s)
        self.topic_store.attach(access_requests, tasks)
        if isinstance(changed := getattr(agent, "manifest_changed", None), EventEmitter):
            changed.subscribe(self.manifest_changed.emit)
        self.manifest_changed.subscribe(lambda: self.peer_options.platform.update(self.jid, agent.manifest))

        # What the turns share
        history_windows = HistoryWindows(
            repository, policy.memory, count_tokens or estimate_tokens, summariser or ExtractiveSummariser(), self.knowledge
        )
        quotas = replace(policy.quotas, operators=policy.operators)
        quota_limit = QuotaLimit(repository, quotas, policy.limits.concurrency, clock)
        mailboxes = self._mailboxes = Mailboxes(repository, quota_limit, policy.limits.queue, policy.remembered_turns)
        lifecycle = AgentLifecycle(agent, policy.rules.lifecycle, policy.rules.idle_shutdown_s, policy.timings.shutdown_s)
        expiry = ConversationExpiry(
            repository, mailboxes, lifecycle, policy.rules, clock, history_windows.with_current_window, policy.timings
        )
        for callback in (*on_conversation_end, getattr(agent, "on_conversation_end", None)):
            if callable(callback):
                expiry.conversation_ended.subscribe(callback)
        outbox = Outbox(channels, repository.inbox, metrics, is_traced=tracing is not None)
        services = TurnServices(
            agent=agent,
            interceptors=interceptors,
            jid=self.jid,
            repository=repository,
            policy=policy,
            clock=clock,
            mailboxes=mailboxes,
            crash_guard=crash_guard,
            lifecycle=lifecycle,
            expiry=expiry,
            history_windows=history_windows,
            long_answers=LongAnswers(self.jid, self.files, policy.limits.file_over_bytes),
            outbox=outbox,
            reply_timers=ReplyTimers(policy.timings),
            assist_timers=DeadlineTimers(policy.rules.assist_timeout_s, self.jid, policy.timings.blocked_s),
            job_timers=DeadlineTimers(policy.rules.job_timeout_s, self.jid, policy.timings.blocked_s),
            usage=self.usage,
            metrics=metrics,
            incidents=IncidentRecorder(repository, clock),
        )

        # Commands
        loader = ConversationLoader(services, languages)
        commands = Commands(
            agent,
            is_enabled=policy.rules.commands,
            operators=policy.operators,
            prefixes=policy.rules.command_prefixes,
            has_page=policy.has_page and not policy.approvals.page,
        )
        admission = Admission(self.jid, mailboxes, quota_limit, services.incidents, metrics, interceptors)
        erasure = LiveErasure(services, loader, quota_limit, admission, self.memory)
        recovery = InboxRecovery(
            repository, mailboxes, outbox, commands, languages, crash_guard, metrics, policy.rules.on_restart
        )
        control = AgentControl(repository, mailboxes, expiry, erasure, recovery, access_requests, quota_limit, clock)
        context = CommandContext(
            agent=agent,
            operators=frozenset(policy.operators),
            rules=policy.rules,
            shows_thoughts=policy.rules.thoughts,
            zone=policy.notifications.zone,
            prefixes=policy.rules.command_prefixes,
            approvals_page=policy.approvals.page,
            clock=clock,
            mailboxes=mailboxes,
            erased_people=admission.erased_people,
            loader=loader,
            files=self.files,
            host=AgentHost(repository, control, self.memory, self.knowledge, quotas, self._get_platform),
        )
        executor = CommandExecutor(services, loader, commands, context, admission)

        # The way of a request
        repeated = RepeatedRequests(repository, mailboxes, outbox, metrics, clock)
        intake_type = RequestIntake if tracing is None else TracedIntake
        intake = intake_type(repository, mailboxes, admission, executor, repeated, outbox, languages, clock)
        revocation = AccessRevocation(self.jid, access_requests, mailboxes, outbox)
        handler = RequestHandler(services, languages, loader, executor, intake, repeated, revocation)
        handle: HandleRequest = handler.handle
        if tracing is not None and isinstance(intake, TracedIntake):
            intake.tracing = tracing
            handle = trace_turns(handle, self.jid, tracing)
        if names_turns():
            handle = name_turns_in_log(handle, self.jid)
        workers = MailboxWorkers(mailboxes, quota_limit, crash_guard, handle)
        reactions = ReceivedReactions(agent, repository, mailboxes, policy.rules.assist_timeout_s)
        gateway = InboundGateway(
            intake, reactions, self.open_requests, access_requests, network, self.peer_options, self.known_people
        )

        # Initiative
        notifier = self._notifier = Notifier(services, loader, access, tasks)
        gateway.receive_bounce = notifier.receive_bounce
        zone = policy.notifications.zone
        is_room = channels[DEFAULT_CHANNEL].is_room
        scheduler = Scheduler(repository, tasks, intake, access, is_room, every_of(agent), zone)
        access_requests.decided.subscribe(lambda person, is_admitted: scheduler.resume() if is_admitted else None)
        if access.has_roster:
            access_requests.contacts_changed.subscribe(scheduler.resume)
        resume = partial(erasure.resume, recovery.queue)
        questions = QuestionDesk(repository, access, policy.approvals, languages, resume, tasks)
        control.questions = services.questions = questions
        access_requests.decided.subscribe(questions.review)
        access_requests.contacts_changed.subscribe(questions.review)
        access_requests.access_lost.subscribe(questions.review)
        intake.end_parked = questions.end_of_messages
        control.notifications, control.schedules = notifier, scheduler
        control.initiative = services.initiative = Initiative(services, notifier, scheduler, questions, tasks)

        # Opening and closing
        retention_job = RetentionJob(
            repository, self.memory, mailboxes, expiry, policy, clock, history_windows.cancel_for_conversation
        )
        runner = Runner(services, control, intake, workers, revocation, executor, reactions, retention_job)
        patterns = [subscription.pattern for subscription in subscriptions_of(agent)]
        announcement = SubscriptionAnnouncement(self.peers, repository, patterns, self.peer_options.topic_broker)
        ephemeral_owners = EphemeralOwners(repository, mailboxes, history_windows)
        return AgentRuntime(agent, self, runner, gateway, announcement, ephemeral_owners)


@dataclass(frozen=True, slots=True)
class AgentRuntime:
    """An agent with its parts, its runner and its gateway; what tells the topic broker of it, and erases its visitors."""

    agent: Agent
    parts: AgentParts
    runner: Runner
    gateway: InboundGateway
    announcement: SubscriptionAnnouncement
    ephemeral_owners: EphemeralOwners

    async def open_channels(self) -> None:
        """Open the channels, in their order. If one fails, the others may be open."""
        for channel in self.parts.network.channels.values():
            await channel.open(self.gateway)

    async def close_channels(self) -> None:
        """Close the channels at once. One that fails, or takes longer than a shutdown may, is logged and left."""
        await asyncio.gather(*(self._close_channel(name, channel) for name, channel in self.parts.network.channels.items()))

    async def _close_channel(self, name: str, channel: Channel) -> None:
        shutdown_s = self.runner.policy.timings.shutdown_s
        try:
            await run_with_timeout(channel.close(), shutdown_s)
        except DeadlineExceededError:
            log.error("%s: the channel %s does not close within %g s, and is left", self.runner.jid, name, shutdown_s)
        except Exception:
            log.exception("%s: the channel %s does not close", self.runner.jid, name)


BuildRuntime: TypeAlias = Callable[[AgentNetwork, UploadFile], AgentRuntime]
"""A function that builds an agent for a network, given its function that stores a file."""
