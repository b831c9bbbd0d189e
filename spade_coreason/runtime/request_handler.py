"""The answer to a request: its way from its mailbox to its stored reply.

`RequestHandler.answer` tells it, and `TurnExecution.execute` the part in which the agent runs. The seed describes these steps
under Session Management and Runtime Behavior.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from ..contracts import ErrorCode
from ..domain import conversation
from ..domain.conversation import RUN, Decision, Outcome
from ..domain.jid import bare_jid
from ..domain.messages import Failed, InboundRequest, Refused
from ..domain.policy import Policy, Rules
from ..domain.texts.durations import format_duration
from ..domain.texts.translation import LANGUAGE, translate, translate_plural
from ..exceptions import ContentRefusedError, LeaseLostError, StoreError
from ..memory import ActiveConversation, Usage
from ..storage import AgentRepository, Inbox
from .access.revocation import AccessRevocation
from .channels import OutboundMessage
from .commands.answers import answer_command
from .commands.executor import CommandExecutor
from .conversations.parts import ConversationParts
from .intake.repeated_requests import RepeatedRequests
from .intake.request_intake import RequestIntake
from .languages import PersonLanguages
from .mailboxes.mailbox import Mailbox, QueuedRequest
from .observability.metrics import Metrics
from .questions.desk import QuestionDesk
from .replies.outbox import Outbox
from .replies.output import TurnOutputs, dump_reply
from .turns.turn_execution import TurnExecution

log = logging.getLogger(__name__)


class RequestHandler:
    """Answers the requests of one agent, each in the worker of its mailbox."""

    def __init__(
        self,
        late_checks: LateChecks,
        conversations: ConversationParts,
        executor: CommandExecutor,
        desk: QuestionDesk,
        admission: ConversationAdmission,
        usage: Usage,
        turns: TurnExecution,
        clock: Callable[[], datetime],
    ) -> None:
        self._late_checks = late_checks
        self._loader = conversations.loader
        self._expiry = conversations.expiry
        self._outbox = conversations.outbox
        self._executor = executor
        self._desk = desk
        self._admission = admission
        self._usage = usage
        self._turns = turns
        self._clock = clock

    async def answer(self, mailbox: Mailbox, queued: QueuedRequest) -> None:
        """Answer a new request: load its conversation, decide, execute it, then update, prune and save.

        `RequestIntake.receive` has stored it and put it into its mailbox. A command runs instead of the agent. The end of the
        reply leaves in the moment in which all is stored. `StoreError` if something cannot be read or stored.
        """
        incoming = queued.incoming
        if self._outbox.late_replies:
            await self._outbox.wait_until_arrived(bare_jid(incoming.reply_address))
        if self._late_checks.refuse(queued):
            return

        # Load
        active = mailbox.active or await self._loader.load(mailbox)
        person = active.person if not incoming.context.hops else await self._loader.load_person(active, incoming)
        now, was_parked = self._clock(), incoming.earlier_runs is not None
        if queued.command is not None:
            await self._executor.reply_to_command(mailbox, active, queued, queued.command)
            return
        if self._desk.has_open and not was_parked:
            if (answer := await self._desk.find_answer(queued, mailbox)) is not None:
                await self._executor.reply_to_command(mailbox, active, queued, answer_command(*answer))
                return
            # The request that it corrects may wait for an answer.
            ended = self._desk.end_of_messages(incoming.owner, incoming.headers.replaces, incoming.room.author)
            if ended is not None:
                await ended

        # Decide, unless it was decided before the turn asked a person
        if not was_parked:
            decision = self._admission.decide(active, incoming, now)
            if decision.ended_state is not None:
                await self._expiry.on_ended(active.record.conversation_id, decision.ended_state)
            if decision.outcome is not RUN:
                await self._admission.refuse(active, queued, decision.outcome, now)
                return
            conversation_id, status = active.record.conversation_id, active.record.status
            self._expiry.on_activity(conversation_id, status.last_interaction)
            if status.interaction_count == 1:
                self._usage.reset_conversation(conversation_id)
            if incoming.headers.wants_displayed_marker and incoming.stanza_id:
                self._outbox.send_displayed(incoming)
        if not await self._turns.execute(mailbox, active, queued, person, now):
            self._late_checks.tell_if_access_was_lost(queued)


class LateChecks:
    """The last checks of one agent: limits of what looked like a duplicate, access, time."""

    def __init__(
        self,
        intake: RequestIntake,
        revocation: AccessRevocation,
        inbox: Inbox,
        outbox: Outbox,
        metrics: Metrics,
        clock: Callable[[], datetime],
    ) -> None:
        self._intake = intake
        self._revocation = revocation
        self._inbox = inbox
        self._outbox = outbox
        self._metrics = metrics
        self._clock = clock

    def refuse(self, queued: QueuedRequest) -> bool:
        """Return True for a request that gets no turn: it is closed, and its sender is told."""
        incoming = queued.incoming
        if queued.may_be_duplicate and self._intake.refuse_late(queued):
            return True
        was_parked = incoming.earlier_runs is not None
        may_have_lost = was_parked or incoming.kind.is_door or queued.received_at_s <= self._revocation.changed_at_s
        if may_have_lost and self._revocation.has_lost_access(incoming):
            self._metrics.refusals["access"] += 1
            self._revocation.refuse(queued)
        elif incoming.context.deadline and incoming.context.deadline <= time.time() and not was_parked:
            self._metrics.refusals["deadline"] += 1
            text = translate("There is no time left for this request. It waited too long.")
            self._outbox.send_problem(incoming, Refused(text, ErrorCode.TIMEOUT), queued.key)
        elif queued.missed_at is not None and self._clock() > queued.missed_at and not queued.is_redelivered:
            log.info("%s: skipped a due time of %s: it waited too long for its turn", self._intake.jid, incoming.owner)
        else:
            return False
        self._inbox.close(queued.inbox_row)
        return True

    def tell_if_access_was_lost(self, queued: QueuedRequest) -> None:
        """Tell the sender of a request whose turn was cancelled, if they have lost access."""
        if self._revocation.has_lost_access(queued.incoming):
            self._revocation.refuse(queued)


class ConversationAdmission:
    """Decides on the requests of one agent once their conversations are loaded."""

    def __init__(
        self,
        inbox: Inbox,
        policy: Policy,
        outbox: Outbox,
        outputs: TurnOutputs,
        metrics: Metrics,
    ) -> None:
        self._inbox = inbox
        self._rules = policy.rules
        self._endless_rules = policy.rules.model_copy(update={"max_interactions": 0})
        self._has_commands = policy.rules.commands
        self._outbox = outbox
        self._outputs = outputs
        self._metrics = metrics

    def decide(self, active: ActiveConversation, incoming: InboundRequest, now: datetime) -> Decision:
        """Count a request in its conversation, and decide if it is run, refused, or refused with a notice.

        Counts in `active` how often the sender has echoed the last reply of the agent. Requests of programs are not counted.
        """
        kind, record = incoming.kind, active.record
        # A topic has no end, and all requests of a program that names no thread are in one conversation.
        is_endless = kind.is_due or (
            kind.is_program and not kind.is_page and (incoming.is_topic_item or incoming.thread is None)
        )
        rules = self._endless_rules if is_endless else self._rules
        decision = conversation.decide_on_message(record.status, now, rules)
        if not kind.is_program:
            text = str(incoming.payload.get("query", ""))
            is_echo = bool(active.last_reply) and active.last_reply in text and decision.ended_state is None
            active.echo_count = active.echo_count + 1 if is_echo else 0
            if active.echo_count >= conversation.ECHOES_UNTIL_PAUSE and decision.outcome is RUN:
                interaction_count = decision.status.interaction_count - 1  # an echo gets no turn
                decision = conversation.refuse_echo(replace(decision.status, interaction_count=interaction_count), now, rules)
        if decision.status is not record.status:
            active.record = record.with_status(decision.status)
        return decision

    async def refuse(self, active: ActiveConversation, queued: QueuedRequest, outcome: Outcome, now: datetime) -> None:
        """Finish a request without a turn: with a notice, or in silence to people who have had one."""
        incoming, final_messages = queued.incoming, list[OutboundMessage]()
        output = self._outputs.open(incoming, queued.key, active.person.preferences, is_redelivered=queued.is_redelivered)
        self._metrics.refusals["conversation"] += 1
        if outcome is Outcome.NOTICE or incoming.kind.is_program:
            final_messages = output.finish(refusal_notice(active, incoming, now, self._rules, has_commands=self._has_commands))
            active.echo_count = 0
        else:
            output.abandon()
        await self._inbox.finish(queued.inbox_row, active.record, None, output.stored_reply)
        await queued.stored
        if final_messages:
            self._outbox.send_final(incoming.channel_name, queued.inbox_row, final_messages)


def refusal_notice(
    active: ActiveConversation, incoming: InboundRequest, now: datetime, rules: Rules, *, has_commands: bool
) -> Refused:
    """Build the notice that a conversation pauses: the reason, and how to go on.

    The runner sends it once to a person, and each time to a program, because a program waits for a reply.
    """
    status, limit = active.record.status, rules.max_interactions
    quiet_until = status.quiet_until
    retry_after_s = rules.cooldown_s if quiet_until is None else (quiet_until - now).total_seconds()
    reason = (
        translate_plural(
            "That is all for now: a conversation is limited to {number} message.",
            "That is all for now: a conversation is limited to {number} messages.",
            limit,
        )
        if limit and status.interaction_count >= limit
        else translate("I pause here: this conversation goes round in circles.")
    )
    duration = format_duration(retry_after_s)
    way_on = (
        translate("Write again in {duration}, or start a new conversation with /new.", duration=duration)
        if has_commands and incoming.may_be_command
        else translate("Write again in {duration}, or start another thread.", duration=duration)
    )
    return Refused(f"{reason} {way_on}", ErrorCode.TOO_MANY_REQUESTS, retry_after_s)


class GuardedHandler:
    """Hands requests to a handler, and ends those that fail: one request must not hold up the others of its conversation."""

    def __init__(
        self,
        handler: RequestHandler,
        repeated: RepeatedRequests,
        languages: PersonLanguages,
        conversations: ConversationParts,
        repository: AgentRepository,
        metrics: Metrics,
        retry_s: float,
        waits_for_storage: bool,
    ) -> None:
        self._answer = handler.answer
        self._repeated = repeated
        self._languages = languages
        self._mailboxes = conversations.mailboxes
        self._outbox = conversations.outbox
        self._inbox, self._jid = repository.inbox, repository.agent
        self._metrics = metrics
        self._retry_s = retry_s
        self._waits_for_storage = waits_for_storage

    async def handle(self, mailbox: Mailbox, queued: QueuedRequest) -> None:
        """Answer a request. A failure is logged, and the sender is told."""
        language = self._languages.of_request(queued.incoming)
        if language is not LANGUAGE.get():
            LANGUAGE.set(language)
        jid, metrics = self._jid, self._metrics
        try:
            may_start_early = queued.may_start_early and not (self._waits_for_storage or mailbox.retry)
            if may_start_early or await queued.stored:
                await self._answer(mailbox, queued)
            else:
                metrics.redeliveries["duplicate"] += 1
                if queued.digest:
                    await self._repeated.answer(queued)
        except LeaseLostError as error:  # the other worker answers
            log.error("%s: the turn of a request of %s is not stored: %s", jid, mailbox.sender, error)
        except ContentRefusedError as error:
            log.error("%s: a request of %s failed: %s", jid, mailbox.sender, error)
            metrics.record_failure(str(error))
            await self._fail_request(mailbox, queued)
        except StoreError as error:
            log.error("%s: cannot store a request of %s: %s", jid, mailbox.sender, error)
            metrics.record_failure(str(error))
            await self._report_storage_failure(mailbox, queued)
        except (Exception, SystemExit, KeyboardInterrupt):
            # `TurnRunner.run` catches what `assist` raises, so this is a fault of the platform, or of a token counter.
            log.exception("%s: a request of %s failed", jid, mailbox.sender)
            metrics.record_failure("an internal error of the platform; see the log")
            await self._fail_request(mailbox, queued)

    async def _report_storage_failure(self, mailbox: Mailbox, queued: QueuedRequest) -> None:
        """Run the request again once the database takes writes, before later ones of its conversation.

        If it is not in the inbox, tell the sender instead. It was not acknowledged, so the server delivers it again.
        """
        mailbox.active = None
        if queued.incoming.kind.is_due and not queued.stored.is_stored:
            return  # the clock hands it over again
        is_stored = await queued.stored.wait()
        if mailbox.is_cancelled:  # meanwhile its sender has taken it back
            self._inbox.close(queued.inbox_row)
            return
        if is_stored:
            again = replace(queued, is_redelivered=True)
            self._mailboxes.put_back(mailbox, again, self._retry_s)
            return
        text = translate(
            "I cannot store anything at the moment, so your message is not stored yet."
            " I answer as soon as I can. If you get no answer, please ask again."
        )
        self._outbox.send_problem(queued.incoming, Failed(text, ErrorCode.UNAVAILABLE, True), queued.key)

    async def _fail_request(self, mailbox: Mailbox, queued: QueuedRequest) -> None:
        """Finish a request with an error reply. Unfinished, it would run and fail again after every start."""
        active, mailbox.active = mailbox.active, None
        problem = Failed(translate("Something went wrong on my side. Please try again later."), ErrorCode.INTERNAL, False)
        messages = self._outbox.encode(queued.incoming, queued.key, problem)
        try:
            if active is None:  # its conversation cannot be loaded
                await self._inbox.store_reply(queued.inbox_row, dump_reply(messages))
            else:
                await self._inbox.finish(queued.inbox_row, active.record, None, dump_reply(messages))
            self._metrics.outcomes["failed"] += 1
        except StoreError as error:
            log.error("%s: %s", self._jid, error)
        else:
            self._outbox.send_final(queued.incoming.channel_name, queued.inbox_row, messages)
