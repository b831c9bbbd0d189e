"""The runner of one agent. It takes each request through five steps: load, execute, update, prune, save.

The seed describes these steps under Session Management and Runtime Behavior. The runner needs no network: requests come in
by `Runner.receive`, and messages go out by the `Channel` of each. `gateway` lists the way of a message.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from ..concurrency import DeadlineTimers, RateLimiter
from ..contracts import Agent, ErrorCode, Interceptor
from ..contracts.base import utc_now
from ..domain.access import NO_ACCESS
from ..domain.conversation import RUN, Outcome
from ..domain.duplicates import NO_EVIDENCE
from ..domain.identifiers import NO_DIGEST, derive_inbox_key, derive_request_key
from ..domain.jid import bare_jid
from ..domain.messages import Failed, InboundRequest, Refused, TextEmitted
from ..domain.policy import Policy
from ..domain.texts.translation import LANGUAGE, translate, use_language
from ..exceptions import StoreError
from ..memory import ActiveConversation, AgentInteractionMemory, HistoryWindows, Knowledge, Summariser, TokenCounter, Usage
from ..storage import AgentRepository, Commit, PendingRequest
from .agent_control import PAUSED_NOTICE, AgentControl
from .agent_lifecycle import AgentLifecycle
from .channels import NO_CHAINED_DEVICE, Channel, OutboundMessage, PresentationOptions
from .commands.context import CommandContext
from .commands.executor import CommandExecutor
from .commands.model import Command, CommandResult
from .commands.parser import ParsedCommand
from .commands.registry import Commands
from .crash_guard import CrashGuard
from .files import Files, refuse_upload
from .intake.access_requests import AccessRequests
from .intake.admission import MAX_HOPS, Admission, FloodLimit, Refusal, decide_for_conversation, refusal_notice
from .intake.corrections import find_replaced, inherit
from .intake.loader import ConversationLoader
from .intake.mailbox import Mailbox, QueuedRequest
from .intake.mailboxes import LARGE_CHARACTERS, Mailboxes
from .intake.quotas import QuotaLimit
from .intake.received_reactions import ReceivedReactions
from .intake.repeated_requests import (
    InFlightRequest,
    InFlightRequests,
    identify,
    identify_message,
    refuse_further_address,
    refuse_other_content,
    refuse_unanswered,
    repeat_reply,
)
from .languages import PersonLanguages
from .topics.requests import is_item
from .turns.long_answers import LongAnswers
from .turns.outbox import Outbox
from .turns.output import ReplyTimers, TurnOutput, dump_reply
from .turns.turn import Turn
from .turns.turn_services import TurnServices
from .upkeep.expiry import ConversationExpiry, OnConversationEnd
from .upkeep.incidents import IncidentRecorder
from .upkeep.metrics import Metrics
from .upkeep.retention_job import EphemeralOwners, Purged, RetentionJob

__all__ = ["MAX_HOPS", "Policy", "Runner"]

log = logging.getLogger(__name__)

_MAX_DUPLICATES_PER_MINUTE = 3000
"""Largest number of requests of one sender within a minute that are looked up because they may be duplicates."""


class Runner:
    """The runner of one agent: one turn at a time within a conversation, many conversations at once.

    `agent`: an object with `manifest` and `assist`. `jid`: its address, of which the bare JID counts. `repository`: the
    database rows of this agent. `channels`: those by which requests come, by name. `policy`: limits and timeouts. `clock`: the
    time of conversations. `on_conversation_end`: functions called with the conversation id and the final state when an episode
    ends; a method of the agent of this name is called last. `interaction_memory`: returns the agent's own memory. `files`:
    uploads, for replies too long for a chat. `knowledge`, `summariser`, `count_tokens`: parts of the memory strategy.
    `usage`: the counter of tokens. `access_requests`: what operators decide about strangers. `interceptors`: decide on new
    requests, and run around `assist`, in their order. `crash_guard`: the one of the process.
    `languages`: those that people have set, if others use them too.

    Call `open` before the agent goes online. To stop, call `drain`, then `close`. Use all methods from one event loop.
    """

    def __init__(
        self,
        agent: Agent,
        jid: str,
        repository: AgentRepository,
        channels: Mapping[str, Channel],
        policy: Policy | None = None,
        *,
        clock: Callable[[], datetime] = utc_now,
        on_conversation_end: tuple[OnConversationEnd, ...] = (),
        interaction_memory: Callable[[], AgentInteractionMemory] | None = None,
        files: Files | None = None,
        knowledge: Knowledge | None = None,
        summariser: Summariser | None = None,
        count_tokens: TokenCounter | None = None,
        usage: Usage | None = None,
        access_requests: AccessRequests | None = None,
        interceptors: Sequence[Interceptor] = (),
        crash_guard: CrashGuard | None = None,
        languages: PersonLanguages | None = None,
    ) -> None:
        self.agent = agent
        self.jid = bare_jid(jid)
        self.repository = repository
        self.policy = policy or Policy()
        self.knowledge = knowledge
        self.history_windows = HistoryWindows(
            repository, self.policy.memory, count_tokens=count_tokens, summariser=summariser, knowledge=knowledge
        )
        self.metrics = Metrics()
        self.commands = Commands(
            agent,
            is_enabled=self.policy.commands,
            operators=self.policy.operators,
            prefixes=self.policy.command_prefixes,
        )
        self._clock = clock
        self._access_requests = access_requests
        files = files or Files(refuse_upload)
        timings = self.policy.timings
        self._crash_guard = crash_guard or CrashGuard()
        quotas = replace(self.policy.quotas, operators=self.policy.operators)
        self.quota_limit = QuotaLimit(repository, quotas, self.policy.concurrency, clock, self.metrics.now)
        self._mailboxes = Mailboxes(
            repository, self.quota_limit, self.policy.queue, self.policy.remembered_turns, self._crash_guard
        )
        incidents = IncidentRecorder(repository, clock)
        self._admission = Admission(self.jid, self._mailboxes, self.quota_limit, incidents, interceptors)
        self.flood_limit = FloodLimit()
        """The senders whose further requests are to be dropped before they come here."""
        self._duplicate_limiter = RateLimiter(_MAX_DUPLICATES_PER_MINUTE)
        lifecycle = AgentLifecycle(agent, self.policy.lifecycle, self.policy.idle_shutdown_s, timings.shutdown_s)
        self._expiry = ConversationExpiry(
            repository,
            self._mailboxes,
            lifecycle,
            self.policy.rules,
            clock,
            self.history_windows.with_current_window,
            timings,
        )
        for callback in (*on_conversation_end, getattr(agent, "on_conversation_end", None)):
            if callable(callback):
                self._expiry.conversation_ended.subscribe(callback)
        self._channels = channels
        self.without_channel: Counter[str] = Counter()
        """The number of stored requests and replies that wait for a channel which this agent does not have, by its name."""
        self._outbox = Outbox(channels, repository.inbox)
        self._services = TurnServices(
            agent=agent,
            interceptors=interceptors,
            jid=self.jid,
            repository=repository,
            policy=self.policy,
            clock=clock,
            mailboxes=self._mailboxes,
            crash_guard=self._crash_guard,
            lifecycle=lifecycle,
            expiry=self._expiry,
            history_windows=self.history_windows,
            knowledge=knowledge,
            long_answers=LongAnswers(self.jid, files, self.policy.file_over_bytes),
            outbox=self._outbox,
            reply_timers=ReplyTimers(timings),
            assist_timers=DeadlineTimers(self.policy.assist_timeout_s, self.jid, timings.blocked_s),
            usage=usage or Usage(repository, clock),
            metrics=self.metrics,
            incidents=incidents,
        )
        self.languages = languages or PersonLanguages(repository)
        """The languages that people have set."""
        self.loader = ConversationLoader(self._services, self.languages)
        self.control = AgentControl(repository, self._mailboxes, self._expiry, clock)
        """The operations on the running agent."""
        self.command_context = CommandContext(
            agent=agent,
            repository=repository,
            rules=self.policy.rules,
            shows_thoughts=self.policy.thoughts,
            prefixes=self.policy.command_prefixes,
            clock=clock,
            mailboxes=self._mailboxes,
            loader=self.loader,
            control=self.control,
            files=files,
            quota_limit=self.quota_limit,
            access_requests=access_requests,
            get_interaction_memory=interaction_memory,
        )
        self._command_executor = CommandExecutor(
            self._services, self.loader, self.commands, self.command_context, self._admission
        )
        self._retention_job = RetentionJob(
            repository,
            interaction_memory,
            self._mailboxes,
            self._expiry,
            self.policy.retention,
            clock,
            self.history_windows.cancel_for_conversation,
        )
        self.ephemeral_owners = EphemeralOwners(repository, self._mailboxes, self.history_windows)
        self._feedback = ReceivedReactions(agent, repository, self._mailboxes, self.policy.assist_timeout_s)
        self._access_changed_at_s = math.inf
        """The last change of access, in seconds of `Metrics.now`. What the last run has left was received before it."""
        if access_requests is not None:
            access_requests.decided.subscribe(lambda person, is_admitted: self._cancel_refused_turns())
            access_requests.contacts_changed.subscribe(self._cancel_refused_turns)
        self._item_rules = replace(self.policy.rules, max_interactions=0)  # a topic has no end
        self._is_accepting = False

    # Opening and closing

    async def open(self) -> None:
        """Load what the last run left unfinished, and begin to accept requests.

        Requests that were received before this call are queued behind the recovered ones.
        """
        await self.control.load()
        await self.quota_limit.load()
        await self.languages.load()
        await self._expiry.open()
        self._retention_job.open()
        await self._services.lifecycle.open()
        pending = await self.repository.inbox.load_pending()
        # Requests that arrived during this call may be among the pending ones.
        early = self._mailboxes.take_unopened()
        early_rows = {queued.inbox_row for _, queued in early}
        self._is_accepting = True
        self._mailboxes.start(self)
        self.without_channel.clear()
        requests: dict[int, InboundRequest] = {}
        for pending_request in pending:
            if pending_request.channel not in self._channels:
                self.without_channel[pending_request.channel] += 1
            elif pending_request.reply is not None:
                self._outbox.add_unsent(pending_request.channel, pending_request.inbox_row, pending_request.reply)
            elif pending_request.request is not None:
                incoming = InboundRequest.from_json(pending_request.request, pending_request.channel)
                requests[pending_request.inbox_row] = incoming
        for name, count in self.without_channel.items():
            log.warning(
                "%s: requests or replies that wait for the channel %s, which is not installed: %d; install it and start again",
                self.jid,
                name,
                count,
            )
        replaced_rows = find_replaced(requests)
        for pending_request in pending:
            inbox_row = pending_request.inbox_row
            if inbox_row in replaced_rows:
                self.repository.inbox.close(inbox_row)
            elif inbox_row in requests and inbox_row not in early_rows:
                self._recover_request(requests[inbox_row], pending_request)
        for sender, queued in early:
            if queued.inbox_row not in replaced_rows:
                if queued.incoming.replaces:
                    self._withdraw_replaced(queued, True)
                self._mailboxes.put(queued, sender)
        self._access_changed_at_s = self.metrics.now()

    def _recover_request(self, incoming: InboundRequest, pending: PendingRequest) -> None:
        """Queue or refuse a request that was received and not finished before the restart (`Policy.on_restart`).

        A repeated request has a key that is not that of its content. It gets the answer to the request that it repeats.
        """
        key, inbox_row, channel = UUID(bytes=pending.key), pending.inbox_row, pending.channel
        if (failed := self._crash_guard.find_failed(inbox_row)) is not None:
            with use_language(self.languages.of_request(incoming)):
                text = (
                    translate("This request has crashed me, so I do not retry it. Please ask in another way.")
                    if failed.has_crashed
                    else translate(
                        "I was stopped again and again before I could answer this, so I do not retry it. Please ask again."
                    )
                )
            failure = Failed(text, ErrorCode.INTERNAL, False)
            self._outbox.add_unsent(channel, inbox_row, dump_reply(self._outbox.encode(incoming, key, failure)))
            return
        own_key, digest = identify(self.jid, incoming)
        is_repeated = bool(pending.digest) and key != own_key
        stored = Commit.completed(not is_repeated)
        if is_repeated or self.policy.on_restart == "rerun" or self._mailboxes.is_paused:  # in a pause its turn had not begun
            for_agent, command, is_for_agent = self._parse_command(incoming)
            received_at_s = self.metrics.now()
            queued = QueuedRequest(
                for_agent,
                own_key if is_repeated else key,
                inbox_row,
                stored,
                received_at_s,
                False,
                True,
                command,
                is_for_agent=is_for_agent,
                digest=digest,
            )
            self._mailboxes.put(queued, incoming.owner)
            return
        with use_language(self.languages.of_request(incoming)):
            text = translate("I was interrupted before I could answer this. Please ask again.")
        self._outbox.add_unsent(
            channel, inbox_row, dump_reply(self._outbox.encode(incoming, key, Failed(text, ErrorCode.UNAVAILABLE, True)))
        )

    def hold(self, at_most_s: float) -> None:
        """Start no turns of people's requests until `release`, so that older requests of the archive go before them."""
        self._mailboxes.archive_hold.begin(at_most_s)

    def release(self) -> None:
        """Start the turns that `hold` has held."""
        self._mailboxes.release_when_resolved()

    def send_unsent(self) -> None:
        """Send the final replies that the last run stored and the server did not acknowledge, with the same ids."""
        self._outbox.send_unsent()

    async def drain(self, grace_s: float) -> bool:
        """Start no new turns, and wait up to `grace_s` for those that run. Return False if some were cancelled.

        Requests whose turn was cancelled or had not begun stay in the inbox, and run after the next start.
        """
        self._is_accepting = False
        return await self._mailboxes.drain(grace_s)

    @property
    def program_requests(self) -> InFlightRequests:
        """The requests of programs that are queued or run."""
        return self._mailboxes.program_requests

    @property
    def is_cancelling_turns(self) -> bool:
        """True while a stop cancels the running turns, whose requests run again after the next start."""
        return self._mailboxes.is_cancelling_turns

    async def close(self) -> None:
        """Close the agent, after `drain`: end the background tasks and run `shutdown()`."""
        self._services.reply_timers.stop()
        self._services.assist_timers.abandon_all()
        for sender in self._mailboxes.cancel_workers():
            log.error("%s: a turn of %s ignores its cancellation, and is abandoned", self.jid, sender)
        await self._retention_job.close()
        await self._expiry.close()
        await self._mailboxes.wait_until_idle()
        await self._feedback.wait_until_idle()
        await self.history_windows.close()
        await self._services.lifecycle.close()

    # The way of a request

    def receive(self, incoming: InboundRequest, *, is_archived: bool = False) -> Commit[bool] | None:
        """Receive a request, and return its commit: True if it is new, False for a duplicate, which is not run.

        `is_archived` is True for a request from the archive. Returns None if the request is refused and not stored
        (`admission`). The sender is told.
        """
        language = self.languages.of_request(incoming)
        if language is LANGUAGE.get():
            return self._receive(incoming, is_archived)
        token = LANGUAGE.set(language)
        try:
            return self._receive(incoming, is_archived)
        finally:
            LANGUAGE.reset(token)  # the caller may be the turn of another agent, which asks this one

    def _receive(self, incoming: InboundRequest, is_archived: bool) -> Commit[bool] | None:
        sender, inbox = incoming.owner, self.repository.inbox
        if incoming.thread is None:
            incoming = self._mailboxes.resolve_thread(incoming, sender)
        digest = NO_DIGEST
        if incoming.request_id is None:
            key = derive_inbox_key(self.jid, sender, incoming.stanza_id, incoming.content, incoming.evidence.server_id)
        else:
            key, digest = identify(self.jid, incoming)
        message_key = key.bytes
        is_known = inbox.may_have(message_key)
        # A message that says nothing about its origin is no copy: many clients number their messages from 1 at each start.
        may_be_duplicate = is_known and (bool(digest) or incoming.evidence is not NO_EVIDENCE)
        for_agent, command, is_for_agent = self._parse_command(incoming)
        if may_be_duplicate and not self._duplicate_limiter.allow(sender):
            self._tell_of_flood(incoming, self.flood_limit.begin(incoming))
            return None
        if digest and not is_known and inbox.has_older_keys and inbox.may_have(identify_message(self.jid, incoming).bytes):
            return Commit.completed(False)
        earlier = self._mailboxes.program_requests.get(key) if may_be_duplicate and digest else None
        if earlier is not None and (attached := self._attach_durably(earlier, incoming, key, digest)) is not None:
            return attached
        refusal = self._admission.refuse_early(for_agent)
        if refusal is None and not may_be_duplicate:
            refusal = self._admission.refuse_new(for_agent, is_for_agent=is_for_agent)
        if refusal is not None:
            self._tell_of_refusal(incoming, refusal)
            return None
        if incoming.replaces and not may_be_duplicate:
            withdrawn = self._mailboxes.withdraw(sender, incoming.replaces, incoming.author)
            if withdrawn is not None:
                incoming, for_agent = inherit(incoming, withdrawn), inherit(for_agent, withdrawn)
        request = incoming.to_json if incoming.is_text_only else incoming.to_json()
        if is_known and not digest:
            key = uuid4()  # an earlier message has the key of this id and content
        inbox_row, stored, may_start_early = inbox.receive(
            message_key,
            sender,
            request,
            self._clock(),
            digest=digest,
            evidence=incoming.evidence,
            channel=incoming.channel_name,
            may_be_duplicate=is_known,
            own_key=key.bytes if is_known else None,
        )
        received_at_s = self.metrics.now()
        queued = QueuedRequest(
            for_agent,
            key,
            inbox_row,
            stored,
            received_at_s,
            may_start_early,
            False,
            command,
            may_be_duplicate,
            is_for_agent,
            digest,
            is_archived,
        )
        if command is not None:
            self._command_executor.cancel_if_requested(queued, sender)
        if self._mailboxes.is_paused:
            stored.on_stored(partial(self._notify_of_pause, queued))
        if incoming.replaces and may_be_duplicate:
            stored.on_stored(partial(self._withdraw_replaced, queued))
        if self._is_accepting:
            self._mailboxes.put(queued, sender)
        else:
            self._mailboxes.put_unopened(queued, sender)
        return stored

    def _withdraw_replaced(self, correction: QueuedRequest, is_new: bool) -> None:
        """Withdraw the version that a stored correction replaces.

        A correction that is not new may have come live, before the archive delivered the message that it corrects.
        """
        incoming = correction.incoming
        self._mailboxes.withdraw(
            incoming.owner, incoming.replaces, incoming.author, before_row=correction.inbox_row, is_late=not is_new
        )

    def _parse_command(self, incoming: InboundRequest) -> tuple[InboundRequest, ParsedCommand | str | None, bool]:
        """Parse the command that a request may be.

        Return the request as the agent gets it, the command or None, and True if the agent handles the request.
        """
        text = str(incoming.payload.get("query", ""))
        kind = incoming.kind
        if kind.is_human and not text.lstrip().startswith(self.commands.prefixes):
            return incoming, None, True  # nearly every message
        if incoming.may_be_command or kind.is_room:
            parsed = self.commands.parse(text, is_in_room=kind.is_room)
            if isinstance(parsed, ParsedCommand):
                return incoming, parsed, parsed.command.name in self.commands.agent_commands
            if kind.is_program:
                return incoming, parsed, True
            if parsed is not text:
                return replace(incoming, payload={**incoming.payload, "query": parsed}), None, True
        return incoming, None, True

    async def handle(self, mailbox: Mailbox, queued: QueuedRequest) -> None:
        """Answer one request in the worker of its mailbox. A failure is logged, and the sender is told."""
        language = self.languages.of_request(queued.incoming)
        if language is not LANGUAGE.get():
            LANGUAGE.set(language)
        try:
            if queued.may_start_early or await queued.stored:
                await self._answer(mailbox, queued)
            elif queued.digest:
                await self._answer_repeated(queued)
        except StoreError as error:
            log.error("%s: cannot store a request of %s: %s", self.jid, mailbox.sender, error)
            self.metrics.record_failure(str(error))
            await self._report_storage_failure(mailbox, queued)
        except (Exception, SystemExit, KeyboardInterrupt):
            # `Turn.run` catches what `assist` raises, so this is a fault of the platform, or of a token counter. One request
            # must not hold up the others of its conversation.
            log.exception("%s: a request of %s failed", self.jid, mailbox.sender)
            self.metrics.record_failure("an internal error of the platform; see the log")
            await self._fail_request(mailbox, queued)

    async def _answer(self, mailbox: Mailbox, queued: QueuedRequest) -> None:
        """Answer one stored request: load its conversation, decide, run the agent, then update, prune and save.

        `receive` has stored the request and put it into its mailbox. A command runs instead of the agent. `Turn.finish` sends
        the end of the reply when all is stored.
        """
        incoming = queued.incoming
        if queued.may_be_duplicate and self._refuse_late(queued):
            return
        if self._outbox.late_replies:
            await self._outbox.wait_until_arrived(bare_jid(incoming.reply_address))
        if incoming.context.deadline and incoming.context.deadline <= time.time():
            self._refuse_overdue(queued)
            return
        if queued.received_at_s <= self._access_changed_at_s and self._has_lost_access(incoming):
            self._tell_of_lost_access(queued)
            self.repository.inbox.close(queued.inbox_row)
            return
        # Load
        active = mailbox.active or await self.loader.load(mailbox)
        now = self._clock()
        if queued.command is not None:
            await self._command_executor.reply_to_command(mailbox, active, queued, queued.command)
            return
        # Decide
        rules = self._item_rules if incoming.kind.is_program and is_item(incoming) else self.policy.rules
        decision = decide_for_conversation(active, incoming, now, rules)
        if decision.status is not active.record.status:
            active.record = active.record.with_status(decision.status)
        if decision.ended_state is not None:
            await self._expiry.on_ended(active.record.conversation_id, decision.ended_state)
        if decision.outcome is not RUN:
            await self._refuse(active, queued, self._open_output(active, queued), decision.outcome, now)
            return
        conversation_id, status = active.record.conversation_id, active.record.status
        self._expiry.on_activity(conversation_id, status.last_interaction)
        if status.interaction_count == 1:
            self._services.usage.reset_conversation(conversation_id)
        if incoming.wants_displayed_marker and incoming.stanza_id:
            channel = self._channels[incoming.channel_name]
            if (displayed := channel.encode_displayed(incoming)) is not None:
                channel.send([displayed])
        # Execute
        output = self._open_output(active, queued)
        person = active.person if not incoming.context.hops else await self.loader.load_person(active, incoming)
        turn = Turn(self._services, mailbox, active, queued, output, now, person)
        final_event = await turn.run(turn.assist)
        # Update, prune and save
        if turn.is_deleted:
            output.cancel()
            self.repository.inbox.close(queued.inbox_row)
        elif final_event is None:
            await turn.close_cancelled()
            if self._has_lost_access(incoming):
                self._tell_of_lost_access(queued)
        else:
            await turn.finish(final_event)

    def _attach_durably(
        self, earlier: InFlightRequest, incoming: InboundRequest, key: UUID, digest: bytes
    ) -> Commit[bool] | None:
        """Attach a repeated request, as `_attach`. Return its commit, or None if the answer is stored.

        From another address it is stored: if the turn begins anew after a crash, this address gets the answer too.
        """
        is_other_address = earlier.digest == digest and earlier.accepts_address(incoming.sender)
        if not self._attach(earlier, incoming, digest):
            return None
        if not is_other_address:
            return earlier.stored
        inbox_row, stored, _ = self.repository.inbox.receive(
            key.bytes,
            incoming.owner,
            incoming.to_json(),
            self._clock(),
            digest=digest,
            may_be_duplicate=True,
            channel=incoming.channel_name,
        )
        earlier.repeated_rows.append(inbox_row)
        return stored

    def _attach(self, earlier: InFlightRequest, incoming: InboundRequest, digest: bytes) -> bool:
        """Attach a repeated request to the one that is queued or runs. Return False if it has to wait for the stored reply.

        The sender is told if the id was used for another request, if too many addresses wait for the answer, or if it goes to
        another channel: that gets the stored reply, in its own form, when it asks again. To wait here could take the turn slot
        that the first request needs.
        """
        if earlier.digest != digest:
            self._outbox.send_problem(incoming, refuse_other_content())
            return True
        if earlier.channel_name != incoming.channel_name:
            self._outbox.send_problem(incoming, refuse_unanswered())
            return True
        if not earlier.has_recipient(incoming.sender) and not earlier.accepts_address(incoming.sender):
            self._outbox.send_problem(incoming, refuse_further_address())
            return True
        return earlier.attach(incoming.sender)

    async def _answer_repeated(self, queued: QueuedRequest) -> None:
        """Answer a request that was received before: with the reply of the turn that runs, or with the one that is stored."""
        incoming, program_requests = queued.incoming, self._mailboxes.program_requests
        while (earlier := program_requests.get(queued.key)) is not None and earlier.stored is not queued.stored:
            if self._attach(earlier, incoming, queued.digest):
                earlier.repeated_rows.append(queued.inbox_row)
                return
            await earlier.wait_until_ended()
        stored = await self.repository.inbox.load_earlier(queued.key.bytes, incoming.channel_name)
        channel = self._channels[incoming.channel_name]
        make_encoder = channel.make_encoder
        for address in earlier.listeners if earlier is not None else ():
            channel.send(repeat_reply(stored, queued.digest, make_encoder(replace(incoming, sender=address), queued.key)))
        messages = repeat_reply(stored, queued.digest, make_encoder(incoming, queued.key))
        self._outbox.send_final(incoming.channel_name, queued.inbox_row, messages)

    async def repeat_reply(self, incoming: InboundRequest) -> bool:
        """Send the reply to an earlier request once more, to the sender and by the channel of `incoming`, which has its id.

        Nothing is asked anew: the rest of `incoming` does not count. If the turn still runs, the reply follows as it comes.
        Return False if there was no such request of this sender within seven days.
        """
        if incoming.request_id is None:
            return False
        with use_language(self.languages.of_request(incoming)):
            if not self._duplicate_limiter.allow(incoming.owner):
                self._outbox.send_problem(incoming, FloodLimit.make_notice())
                return True
            return await self._repeat_reply(incoming, derive_request_key(self.jid, incoming.owner, incoming.request_id))

    async def _repeat_reply(self, incoming: InboundRequest, key: UUID) -> bool:
        if not self._is_accepting:  # the request may wait for the start, or run again after the next one
            self._outbox.send_problem(incoming, refuse_unanswered())
            return True
        while (running := self._mailboxes.program_requests.get(key)) is not None:
            if self._attach(running, incoming, running.digest):
                return True
            await running.wait_until_ended()
        inbox = self.repository.inbox
        if not inbox.may_have(key.bytes) or (stored := await inbox.load_earlier(key.bytes, incoming.channel_name)) is None:
            return False
        channel = self._channels[incoming.channel_name]
        channel.send(repeat_reply(stored, stored.digest, channel.make_encoder(incoming, key)))
        return True

    def _refuse_late(self, queued: QueuedRequest) -> bool:
        """Ask the limits and the interceptors about a request that looked like a duplicate and is none. True if one refuses."""
        if queued.is_redelivered:
            return False
        if (refusal := self._admission.refuse_new(queued.incoming, is_for_agent=queued.is_for_agent)) is None:
            return False
        self.repository.inbox.close(queued.inbox_row)
        self._tell_of_refusal(queued.incoming, refusal, queued.key)
        return True

    def _tell_of_refusal(self, incoming: InboundRequest, refusal: Refusal, key: UUID | None = None) -> None:
        refusal.when_recorded(partial(self._outbox.send_problem, incoming, refusal.problem, key))
        self._tell_of_flood(incoming, self.flood_limit.record_refusal(incoming))

    def _tell_of_flood(self, incoming: InboundRequest, has_begun: bool) -> None:
        if has_begun:
            log.warning("%s: ignores %s for a minute: it had to refuse too many of its requests", self.jid, incoming.owner)
            self._outbox.send(incoming, FloodLimit.make_notice())

    def _open_output(self, active: ActiveConversation, queued: QueuedRequest) -> TurnOutput:
        """Open the output for a request, by the preferences of the person and the features of their clients."""
        services, incoming, person = self._services, queued.incoming, active.record.owner
        channel = self._channels[incoming.channel_name]
        if incoming.kind.is_program:
            encoder = channel.make_encoder(incoming, queued.key)
            output = TurnOutput(encoder, channel.send, queued.key, services.reply_timers)
            if queued.digest and (request := self._mailboxes.program_requests.get(queued.key)) is not None:
                request.open_output(output)
            return output
        preferences, client_features = active.person.preferences, channel.client_features
        has_live_messages = preferences.streaming is not False and client_features.has_corrections(person)
        presentation = PresentationOptions(
            has_live_messages,
            partial(client_features.find_chained_device, person) if has_live_messages else NO_CHAINED_DEVICE,
            queued.is_redelivered,
            self.policy.thoughts if preferences.thoughts is None else preferences.thoughts,
            preferences.thoughts is not False,
            client_features.has_replies(incoming.sender),
        )
        encoder = channel.make_encoder(incoming, queued.key, presentation)
        return TurnOutput(encoder, channel.send, queued.key, services.reply_timers, services.long_answers)

    async def _refuse(
        self, active: ActiveConversation, queued: QueuedRequest, output: TurnOutput, outcome: Outcome, now: datetime
    ) -> None:
        """Finish a request without a turn: with a notice, or in silence to people who have had one."""
        final_messages: list[OutboundMessage] = []
        incoming = queued.incoming
        if outcome is Outcome.NOTICE or incoming.kind.is_program:
            notice = refusal_notice(active, incoming, now, self.policy.rules, has_commands=self.policy.commands)
            final_messages = output.finish(notice)
            active.echo_count = 0
        else:
            output.abandon()
        await self.repository.inbox.finish(queued.inbox_row, active.record, None, output.stored_reply)
        await queued.stored
        if final_messages:
            self._outbox.send_final(queued.incoming.channel_name, queued.inbox_row, final_messages)

    def _has_lost_access(self, incoming: InboundRequest) -> bool:
        """Return True if the sender had access when the request was received, and has none any more.

        In a room, the sender is the occupant whose JID it has shown. Items come from the configured broker.
        """
        access = None if self._access_requests is None else self._access_requests.access
        sender = incoming.metadata.get("occupant") if incoming.is_from_room else incoming.sender
        if access is None or sender is None or access.is_allowed(sender):
            return False
        return access.is_known and not is_item(incoming)

    def _tell_of_lost_access(self, queued: QueuedRequest) -> None:
        """Refuse a request whose sender has lost access. As in `Rooms`, an occupant of a room is told nothing."""
        if not queued.incoming.is_from_room:
            self._outbox.send_problem(queued.incoming, Refused(translate(NO_ACCESS), ErrorCode.FORBIDDEN), queued.key)

    def _cancel_refused_turns(self) -> None:
        """Cancel the running turns whose senders have lost access. Those that wait are checked before they start."""
        self._access_changed_at_s = self.metrics.now()
        for mailbox in self._mailboxes:
            current = mailbox.current
            if current is not None and current.is_for_agent and self._has_lost_access(current.incoming):
                log.info("%s: stops a turn of %s, who has no access any more", self.jid, mailbox.sender)
                mailbox.cancel_current()

    def _refuse_overdue(self, queued: QueuedRequest) -> None:
        """Refuse a request whose sender no longer waits for the reply."""
        text = translate("There is no time left for this request. It waited too long.")
        self._outbox.send_problem(queued.incoming, Refused(text, ErrorCode.TIMEOUT), queued.key)
        self.repository.inbox.close(queued.inbox_row)

    async def _report_storage_failure(self, mailbox: Mailbox, queued: QueuedRequest) -> None:
        """Tell the sender that nothing can be stored, and run the request again later if it is in the inbox.

        The request is not finished, so the sender must not believe that it is. A request that is not in the inbox was not
        acknowledged, so the server delivers it again.
        """
        mailbox.active = None
        if mailbox.is_cancelled:  # meanwhile its sender has taken it back
            self.repository.inbox.close(queued.inbox_row)
            return
        text = translate(
            "I cannot store anything at the moment, so your message is not stored yet."
            " I answer as soon as I can. If you get no answer, please ask again."
        )
        if await queued.stored.wait():
            self._mailboxes.put_later(replace(queued, is_redelivered=True), mailbox.sender, self.policy.timings.retry_s)
        self._outbox.send_problem(queued.incoming, Failed(text, ErrorCode.UNAVAILABLE, True), queued.key)

    async def _fail_request(self, mailbox: Mailbox, queued: QueuedRequest) -> None:
        """Finish a request with an error reply. Unfinished, it would run and fail again after every start."""
        active, mailbox.active, inbox = mailbox.active, None, self.repository.inbox
        problem = Failed(translate("Something went wrong on my side. Please try again later."), ErrorCode.INTERNAL, False)
        messages = self._outbox.encode(queued.incoming, queued.key, problem)
        try:
            if active is None:  # its conversation cannot be loaded
                await inbox.store_reply(queued.inbox_row, dump_reply(messages))
            else:
                await inbox.finish(queued.inbox_row, active.record, None, dump_reply(messages))
        except StoreError as error:
            log.error("%s: %s", self.jid, error)
        else:
            self._outbox.send_final(queued.incoming.channel_name, queued.inbox_row, messages)

    def _notify_of_pause(self, queued: QueuedRequest, is_new: bool) -> None:
        """Tell a person that their message is stored until the pause ends. Programs get no notice: they wait for a reply."""
        incoming = queued.incoming
        if not is_new or not self._mailboxes.is_paused or not incoming.kind.is_human:
            return
        if queued.is_for_agent and self.control.allow_notice(incoming.owner):
            with use_language(self.languages.of_request(incoming)):
                notice = TextEmitted(translate(PAUSED_NOTICE), 1)
            self._outbox.send(incoming, notice)

    # Beside the requests

    async def wait_for_capacity(self, incoming: InboundRequest) -> None:
        """Wait until the queues have room for a request, so that `receive` does not refuse it for their length."""
        is_large = len(incoming.content) > LARGE_CHARACTERS
        await self._mailboxes.wait_for_capacity(incoming.owner, incoming.thread, is_large=is_large)

    def cancel_request(self, sender: str, message_id: str, author: str | None = "") -> Commit[bool] | None:
        """Cancel an unanswered request of `sender` (a bare JID). Return its commit, or None if there was no such request.

        `author` is that of a `Retraction`.
        """
        if self._mailboxes.withdraw(sender, (message_id,) if message_id else (), author) is None:
            return None
        return self.repository.inbox.flush()

    def record_reaction(self, sender: str, message_id: str, emojis: tuple[str, ...], nickname: str = "") -> bool:
        """Record a reaction with the turn that it is about, and call the agent's `feedback`.

        `sender`: a bare JID. `nickname`: the occupant of a room who reacted. Ignored unless `message_id` is a message of
        this agent in a conversation of `sender`. Return False if it is dropped because too many wait.
        """
        return self._feedback.receive_reaction(sender, message_id, emojis, nickname)

    @property
    def turns_in_flight(self) -> int:
        """Number of conversations with a turn that runs or waits."""
        return self._mailboxes.busy_count

    def count_queued(self, sender: str) -> int:
        """Count the requests of a sender (a bare JID) that wait for their turn."""
        return self._mailboxes.count_queued(sender)

    async def wait_until_idle(self, *mailbox_key: str | None) -> None:
        """Wait until no turn runs or waits.

        `mailbox_key` limits that to one mailbox: its sender (a bare JID) and its thread.
        """
        await self._mailboxes.wait_until_idle(*mailbox_key)

    async def purge(self) -> Purged:
        """Delete permanently what `Policy.retention` does not keep. The runner does so at the start and once a day."""
        return await self._retention_job.run()

    async def expire_idle(self) -> None:
        """End the conversations that have been idle for the idle timeout. The runner does so when one is due."""
        await self._expiry.expire_idle()

    # What commands need

    async def run_command(
        self, owner: str, command: Command, values: Mapping[str, Any], conversation_id: str | None = None
    ) -> CommandResult:
        """Run a command of `owner` (a bare JID) outside of a turn, and return its result.

        The command applies to `conversation_id`, which must belong to `owner`; by default to the newest conversation of
        `owner`. A command that changes a conversation waits for its turn there. Raises `StoreError`; `FieldError` for a
        value that the command does not accept; `CancelledError` if the conversation is deleted while the command waits.
        """
        if not self._is_accepting:
            return CommandResult(translate("I am about to stop. Please try again later."), is_error=True)
        return await self._command_executor.run_command(owner, command, values, conversation_id)

    def send_command_result(self, owner: str, result: CommandResult) -> None:
        """Send the result of a command to `owner` (a bare JID), outside of a turn."""
        self._command_executor.send_command_result(owner, result)
