"""The assembly of one agent, for the platform, for tests and for dry runs: its parts, its runner and its gateway.

`AgentParts` is what there is before the agent, whose constructor may take some of it. `AgentParts.build_runtime` builds the
rest around the agent: its conversations, its intake, its control and its turns, each from what was built before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, TypeAlias

from ..concurrency import DeadlineExceededError, run_with_timeout
from ..contracts import Agent, AgentDefinition, Interceptor, MemoryConfig
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
from .access.access_requests import AccessRequests
from .access.admission import Admission
from .access.known_people import KnownPeople
from .access.revocation import AccessRevocation
from .agent_control import AgentControl
from .agent_factory import Injectables
from .channels import AgentNetwork, Channel
from .commands.agent_commands import AgentCommandRunner
from .commands.agent_host import AgentHost
from .commands.context import CommandContext
from .commands.effects import CommandEffects
from .commands.executor import CommandExecutor
from .commands.registry import Commands
from .conversations.agent_lifecycle import AgentLifecycle
from .conversations.conversation_loader import ConversationLoader
from .conversations.expiry import ConversationExpiry, OnConversationEnd
from .conversations.parts import ConversationParts
from .conversations.persons import Persons
from .conversations.retention_job import EphemeralOwners, RetentionJob
from .crash_guard import CrashGuard
from .event_emitter import EventEmitter
from .files import Files, UploadFile
from .handlers import route_to_handlers
from .initiative.channel import ScheduleChannel
from .initiative.decorator import every_of
from .initiative.notifications import AgentNotifications
from .initiative.notifier import Notifier
from .initiative.people import People
from .intake.gateway import InboundGateway
from .intake.received_reactions import ReceivedReactions
from .intake.recovery import InboxRecovery
from .intake.repeated_requests import RepeatedRequests
from .intake.request_intake import RequestIntake
from .intake.scheduler import Scheduler
from .intake.tracing import HandleRequest, TracedIntake, name_turns_in_log, trace_turns
from .languages import PersonLanguages
from .live_erasure import LiveErasure
from .mailboxes.gate import TurnGate
from .mailboxes.limits import MailboxCapacity, QuotaLimit
from .mailboxes.mailboxes import Mailboxes, MailboxWorkers
from .mailboxes.withdrawal import Withdrawal
from .observability.incidents import IncidentRecorder
from .observability.metrics import Metrics
from .peers.open_requests import OpenRequests
from .peers.peers import PeerOptions, Peers
from .questions.desk import QuestionDesk
from .replies.long_answers import LongAnswers
from .replies.outbox import Outbox
from .replies.output import TurnOutputs
from .replies.program_requests import InFlightRequests
from .request_handler import ConversationAdmission, GuardedHandler, LateChecks, RequestHandler
from .runner import Runner
from .tasks import AgentTasks, TaskClock
from .topics.announcement import SubscriptionAnnouncement
from .topics.decorator import subscriptions_of
from .topics.store import TopicStore
from .turns.turn import TurnFactory, TurnRunner
from .turns.turn_execution import TurnExecution, TurnStore

log = logging.getLogger(__name__)


class AgentRules(NamedTuple):
    """The rules of one agent: who may talk to it, and its limits and timeouts."""

    access: AccessPolicy
    policy: Policy


class AgentParts:
    """The parts of one agent that there are before it: its constructor may take some, and its runner uses them.

    `repository` has the rows of the agent, whose bare JID is `repository.agent`. `memory` returns the interaction memory; None
    for an agent without one. `clock` is the time of conversations.
    """

    def __init__(
        self,
        repository: AgentRepository,
        network: AgentNetwork,
        files: Files,
        peer_options: PeerOptions,
        rules: AgentRules,
        *,
        memory: Callable[[], AgentInteractionMemory] | None = None,
        embedder: Embedder | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        access, policy = rules
        jid = self.jid = repository.agent
        """The bare JID of the agent."""
        self.repository = repository
        self.network = network
        self.files = files
        self.peer_options = peer_options
        self.access = access
        self.policy = policy
        self.memory = memory
        self.clock = clock
        self.cancelling = asyncio.Event()
        """Set while a stop cancels the running turns. Their requests run again after the next start."""
        self.metrics = Metrics()
        self.languages = PersonLanguages()
        self.persons = Persons(repository, self.languages)
        self.known_people = KnownPeople(repository, access.operators)
        self.tasks = AgentTasks(repository.tasks, jid, clock, policy.timings.retry_s)
        self.notifications = AgentNotifications(repository, self.tasks, self.persons, access, network, policy.notifications)
        self.people = People(jid, self.notifications)
        self.manifest_changed: EventEmitter[[]] = EventEmitter()
        """Emitted when the agent has another manifest than at its start."""
        self.open_requests = OpenRequests(self.cancelling.is_set)
        self.peers = Peers(jid, self.open_requests, network.requests, peer_options, self.known_people)
        self.topic_store = TopicStore(
            jid, repository.topics, self.open_requests, network.requests, self.tasks, access, peer_options.trusted_agents
        )
        self.knowledge = Knowledge(KnowledgeRepository(repository.database, jid), embedder, clock=clock)
        self.usage = Usage(repository, clock)

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
        memory_config: MemoryConfig | None = None,
        *,
        on_conversation_end: Sequence[OnConversationEnd] = (),
        summariser: Summariser | None = None,
        count_tokens: TokenCounter | None = None,
        interceptors: Sequence[Interceptor] = (),
        crash_guard: CrashGuard | None = None,
        tracing: Tracing | None = None,
        get_platform: Callable[[], OperationHost | None] = lambda: None,
    ) -> AgentRuntime:
        """Build the runner, the intake and the gateway of an agent.

        `memory_config` is that of its manifest, if it replaces that of the policy. `on_conversation_end` are called with the
        conversation id and the final state when an episode ends; a method of the agent of this name is called last.
        `summariser` and `count_tokens` are parts of the memory strategy. `interceptors` decide on new requests, and run around
        `assist`, in their order. `crash_guard` is the one of the process. `tracing` makes the traces, if there are any.
        `get_platform` returns the platform of the agent, once that is there.
        """
        crash_guard = crash_guard or CrashGuard(RunningRequests())
        if isinstance(changed := getattr(agent, "manifest_changed", None), EventEmitter):
            changed.subscribe(self.manifest_changed.emit)
        self.manifest_changed.subscribe(lambda: self.peer_options.platform.update(self.jid, agent.manifest))
        history_windows = HistoryWindows(
            self.repository,
            memory_config or self.policy.memory,
            count_tokens or estimate_tokens,
            summariser or ExtractiveSummariser(),
            self.knowledge,
        )
        program_requests = InFlightRequests()
        conversations = _build_conversations(self, agent, history_windows, program_requests, is_traced=tracing is not None)
        for callback in (*on_conversation_end, getattr(agent, "on_conversation_end", None)):
            if callable(callback):
                conversations.expiry.conversation_ended.subscribe(callback)
        incidents = IncidentRecorder(self.repository, self.clock)
        intake = _build_intake(self, agent, conversations, program_requests, incidents, interceptors, crash_guard, tracing)
        control = _build_control(self, conversations, intake)
        quotas = replace(self.policy.quotas, operators=self.policy.operators)
        host = AgentHost(self.repository, control, self.memory, self.knowledge, quotas, get_platform)
        turns = _build_turns(self, agent, conversations, intake, host, incidents, interceptors, crash_guard, tracing)
        runner = Runner(
            agent=agent,
            repository=self.repository,
            policy=self.policy,
            metrics=self.metrics,
            languages=self.languages,
            conversations=conversations,
            notifier=intake.notifier,
            task_clock=TaskClock(self.tasks),
            intake=intake.requests,
            revocation=intake.revocation,
            reactions=intake.reactions,
            control=control,
            executor=turns.executor,
            turn_runner=turns.runner,
            workers=turns.workers,
        )
        patterns = [subscription.pattern for subscription in subscriptions_of(agent)]
        announcement = SubscriptionAnnouncement(self.peers, self.repository, patterns, self.peer_options.topic_broker)
        ephemeral_owners = EphemeralOwners(self.repository, conversations.mailboxes, conversations.withdrawal, history_windows)
        return AgentRuntime(agent, self, runner, intake.gateway, announcement, ephemeral_owners)


def _build_conversations(
    parts: AgentParts,
    agent: Agent,
    history_windows: HistoryWindows,
    program_requests: InFlightRequests,
    *,
    is_traced: bool,
) -> ConversationParts:
    """Build what waits, what is in memory, and what leaves."""
    repository, policy, clock = parts.repository, parts.policy, parts.clock
    quota_limit = QuotaLimit(repository, replace(policy.quotas, operators=policy.operators), policy.limits.concurrency, clock)
    mailboxes = Mailboxes(
        repository,
        quota_limit,
        TurnGate(),
        program_requests,
        parts.cancelling,
        max_queued=policy.limits.queue,
        remembered_turns=policy.remembered_turns,
    )
    lifecycle = AgentLifecycle(agent, policy.rules.lifecycle, policy.rules.idle_shutdown_s, policy.timings.shutdown_s)
    prune = history_windows.with_current_window
    expiry = ConversationExpiry(repository, mailboxes, lifecycle, policy.rules, clock, prune, policy.timings)
    channels = parts.network.channels
    channels = {**channels, SCHEDULE_CHANNEL: ScheduleChannel(channels[DEFAULT_CHANNEL])}
    long_answers = LongAnswers(parts.jid, parts.files, policy.limits.file_over_bytes)
    return ConversationParts(
        mailboxes=mailboxes,
        withdrawal=Withdrawal(mailboxes, repository.inbox),
        quota_limit=quota_limit,
        lifecycle=lifecycle,
        expiry=expiry,
        history_windows=history_windows,
        loader=ConversationLoader(
            repository, mailboxes.conversations, expiry, history_windows, parts.persons, policy.rules, clock
        ),
        retention_job=RetentionJob(
            repository, parts.memory, mailboxes, expiry, policy, clock, history_windows.cancel_for_conversation
        ),
        outbox=Outbox(channels, repository.inbox, parts.metrics, is_traced=is_traced),
        outputs=TurnOutputs(
            channels, policy.timings, long_answers, program_requests.open_output, shows_thoughts=policy.rules.thoughts
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Intake:
    """The ways on which requests come in: by messages, by the clock, from the last run, and after the answer of a person."""

    gateway: InboundGateway
    requests: RequestIntake
    admission: Admission
    access_requests: AccessRequests
    revocation: AccessRevocation
    commands: Commands
    recovery: InboxRecovery
    repeated: RepeatedRequests
    desk: QuestionDesk
    notifier: Notifier
    scheduler: Scheduler
    reactions: ReceivedReactions


def _build_intake(
    parts: AgentParts,
    agent: Agent,
    conversations: ConversationParts,
    program_requests: InFlightRequests,
    incidents: IncidentRecorder,
    interceptors: Sequence[Interceptor],
    crash_guard: CrashGuard,
    tracing: Tracing | None,
) -> _Intake:
    """Build what takes requests in, and what makes them of due times and answers."""
    repository, network, policy, clock = parts.repository, parts.network, parts.policy, parts.clock
    access, languages, metrics, tasks = parts.access, parts.languages, parts.metrics, parts.tasks
    mailboxes, withdrawal, outbox = conversations.mailboxes, conversations.withdrawal, conversations.outbox
    commands = Commands(
        agent,
        is_enabled=policy.rules.commands,
        operators=policy.operators,
        prefixes=policy.rules.command_prefixes,
        has_page=policy.has_page and not policy.approvals.page,
    )
    capacity = MailboxCapacity(mailboxes.senders, mailboxes.archive_hold, policy.limits.queue)
    admission = Admission(parts.jid, capacity, conversations.quota_limit, incidents, metrics, interceptors)
    recovery = InboxRecovery(
        repository, withdrawal, admission, outbox, commands, languages, crash_guard, policy.rules.on_restart
    )
    desk = QuestionDesk(repository, access, policy.approvals, languages, recovery.queue, tasks)
    notifier = Notifier(
        repository,
        parts.notifications,
        mailboxes,
        conversations.loader,
        conversations.history_windows,
        conversations.outputs,
        policy.rules.max_interactions,
    )
    repeated = RepeatedRequests(repository, mailboxes, program_requests, outbox, metrics, clock)
    flow = repository, withdrawal, admission, commands, repeated, desk, languages, clock
    requests = RequestIntake(*flow) if tracing is None else TracedIntake(tracing, *flow)
    access_requests = AccessRequests(access, repository, agent.manifest.metadata.name, network.notices, languages)
    revocation = AccessRevocation(parts.jid, access_requests, mailboxes, outbox)
    is_room = network.channels[DEFAULT_CHANNEL].is_room
    zone = policy.notifications.zone
    scheduler = Scheduler(repository, tasks, zone, requests, withdrawal, access, is_room, every_of(agent))
    access_requests.decided.subscribe(lambda person, is_admitted: scheduler.resume() if is_admitted else None)
    access_requests.decided.subscribe(lambda person, is_admitted: parts.topic_store.on_access_changed())
    access_requests.contacts_changed.subscribe(parts.topic_store.on_access_changed)
    if access.has_roster:
        access_requests.contacts_changed.subscribe(scheduler.resume)
    access_requests.decided.subscribe(desk.review)
    access_requests.contacts_changed.subscribe(desk.review)
    access_requests.access_lost.subscribe(desk.review)
    reactions = ReceivedReactions(agent, repository, mailboxes, policy.rules.assist_timeout_s)
    gateway = InboundGateway(
        requests,
        reactions,
        parts.peers,
        access_requests,
        network,
        parts.known_people,
        capacity,
        notifier,
    )
    return _Intake(
        gateway=gateway,
        requests=requests,
        admission=admission,
        access_requests=access_requests,
        revocation=revocation,
        commands=commands,
        recovery=recovery,
        repeated=repeated,
        desk=desk,
        notifier=notifier,
        scheduler=scheduler,
        reactions=reactions,
    )


def _build_control(parts: AgentParts, conversations: ConversationParts, intake: _Intake) -> AgentControl:
    """Build the agent as operations use it."""
    grace_s = parts.policy.timings.cancel_grace_s
    erasure = LiveErasure(parts.repository, conversations, parts.tasks, intake.admission, parts.memory, grace_s)
    return AgentControl(
        repository=parts.repository,
        mailboxes=conversations.mailboxes,
        expiry=conversations.expiry,
        clock=parts.clock,
        recovery=intake.recovery,
        quota_limit=conversations.quota_limit,
        access_requests=intake.access_requests,
        erasure=erasure,
        questions=intake.desk,
        notifications=parts.notifications,
        schedules=intake.scheduler,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turns:
    """The parts that work on requests: the workers, the runner of turns, and the executor of commands."""

    workers: MailboxWorkers
    runner: TurnRunner
    executor: CommandExecutor


def _build_turns(
    parts: AgentParts,
    agent: Agent,
    conversations: ConversationParts,
    intake: _Intake,
    host: AgentHost,
    incidents: IncidentRecorder,
    interceptors: Sequence[Interceptor],
    crash_guard: CrashGuard,
    tracing: Tracing | None,
) -> _Turns:
    """Build what answers requests: by a command, or by a turn of the agent."""
    repository, policy, metrics, clock = parts.repository, parts.policy, parts.metrics, parts.clock
    inbox, outbox, outputs = repository.inbox, conversations.outbox, conversations.outputs
    factory = TurnFactory(repository, conversations.history_windows, intake.scheduler, intake.desk, policy, clock)
    runner = TurnRunner(
        route_to_handlers(agent),
        interceptors,
        conversations.lifecycle,
        crash_guard,
        metrics,
        incidents,
        policy,
        parts.cancelling,
    )
    store = TurnStore(repository, outbox, intake.desk, parts.notifications, parts.usage, metrics)
    context = CommandContext(
        agent=agent,
        operators=frozenset(policy.operators),
        rules=policy.rules,
        shows_thoughts=policy.rules.thoughts,
        zone=policy.notifications.zone,
        prefixes=policy.rules.command_prefixes,
        approvals_page=policy.approvals.page,
        clock=clock,
        mailboxes=conversations.mailboxes,
        withdrawal=conversations.withdrawal,
        erased_people=intake.admission.erased_people,
        loader=conversations.loader,
        files=parts.files,
        host=host,
    )
    effects = CommandEffects(context, intake.desk, conversations.expiry, conversations.withdrawal)
    agent_commands = AgentCommandRunner(repository, outputs, factory, runner, store, effects, metrics)
    executor = CommandExecutor(repository, intake.commands, context, intake.admission, agent_commands, effects, outbox)
    handler = RequestHandler(
        LateChecks(intake.requests, intake.revocation, inbox, outbox, metrics, clock),
        conversations,
        executor,
        intake.desk,
        ConversationAdmission(inbox, policy, outbox, outputs, metrics),
        parts.usage,
        TurnExecution(outputs, factory, runner, store, conversations.history_windows, conversations.expiry, policy, metrics),
        clock,
    )
    retry_s, waits_for_storage = policy.timings.retry_s, crash_guard.waits_for_storage
    guarded = GuardedHandler(
        handler, intake.repeated, parts.languages, conversations, repository, metrics, retry_s, waits_for_storage
    )
    handle: HandleRequest = guarded.handle
    if tracing is not None:
        handle = trace_turns(handle, parts.jid, tracing)
    if names_turns():
        handle = name_turns_in_log(handle, parts.jid)
    workers = MailboxWorkers(conversations.mailboxes, conversations.quota_limit, crash_guard, handle)
    return _Turns(workers=workers, runner=runner, executor=executor)


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
