"""The work on requests: each mailbox has a worker that takes its requests in order, and each request is answered here.

`RequestHandler.answer` tells the whole way of a request from its mailbox to its reply. The seed describes these steps under
Session Management and Runtime Behavior.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from functools import partial

from ...concurrency import Semaphore
from ...contracts import ErrorCode
from ...domain import conversation
from ...domain.channel_kinds import PERSON
from ...domain.conversation import RUN, Outcome
from ...domain.jid import bare_jid
from ...domain.messages import Completed, Failed, Parked, Refused
from ...domain.texts.translation import LANGUAGE, translate
from ...exceptions import ContentRefusedError, LeaseLostError, StoreError
from ...memory import ActiveConversation, find_token_counts, sum_usage
from ...storage import SPARE_SLOT, TurnRecord
from ..channels import NO_CHAINED_DEVICE, OutboundMessage, PresentationOptions
from ..commands.answers import answer_command
from ..commands.executor import CommandExecutor
from ..crash_guard import CrashGuard
from ..intake.admission import decide_for_conversation, refusal_notice
from ..intake.conversation_loader import ConversationLoader
from ..intake.mailbox import Mailbox, MailboxTask, QueuedRequest
from ..intake.mailboxes import LARGE_CHARACTERS, Mailboxes
from ..intake.quota_limit import QuotaLimit
from ..intake.repeated_requests import RepeatedRequests
from ..intake.request_intake import RequestIntake
from ..intake.revocation import AccessRevocation
from ..languages import PersonLanguages
from ..topics.requests import is_item
from ..upkeep.metrics import Outcome as MetricsOutcome
from .output import RepeatedParts, TurnOutput, dump_reply
from .turn import Turn
from .turn_services import TurnServices

log = logging.getLogger(__name__)

_LARGE_PAUSE_S = 0.1
"""The time from the beginning of a large request to that of the next of its sender. Each costs as much as a hundred others."""


class MailboxWorkers:
    """The workers of one agent's mailboxes: they give each item to `handle`, or run it if it is a task.

    `quota_limit` has the slots for turns: one sender gets a share only, so that many threads of theirs leave room for others.
    `handle` answers a request, and raises nothing but cancellation.
    """

    def __init__(
        self,
        mailboxes: Mailboxes,
        quota_limit: QuotaLimit,
        crash_guard: CrashGuard,
        handle: Callable[[Mailbox, QueuedRequest], Awaitable[None]],
    ) -> None:
        self._mailboxes = mailboxes
        self._slots_of = quota_limit.slots_of
        self._slots_for_large: weakref.WeakValueDictionary[str, Semaphore] = weakref.WeakValueDictionary()
        """A slot for each person or room whose large requests begin one after the other."""
        self._crash_guard = crash_guard
        self._handle = handle

    async def run(self, mailbox: Mailbox) -> None:
        """Work on the items of a mailbox, until there is none that may begin."""
        mailboxes, suspects = self._mailboxes, self._crash_guard.suspects
        held_rows = mailboxes.archive_hold.rows
        try:
            while mailbox.queue:
                may_begin = not (mailboxes.starts_none or held_rows or mailbox.retry)
                # It still counts as queued, until it has a slot.
                item = mailbox.queue.popleft() if may_begin else mailbox.dequeue(mailboxes.may_start, held_rows)
                if item is None:
                    break
                mailbox.is_cancelled = False
                mailbox.handled = mailbox.current = item if isinstance(item, QueuedRequest) else None
                if suspects and isinstance(item, QueuedRequest):
                    async with self._crash_guard.permit(item.inbox_row):
                        await self._run_item(mailbox, item)
                else:
                    await self._run_item(mailbox, item)
        finally:
            mailbox.worker = mailbox.handled = mailbox.current = None
            mailboxes.evict_if_idle(mailbox)

    async def _run_item(self, mailbox: Mailbox, item: QueuedRequest | MailboxTask) -> None:
        mailboxes, slots = self._mailboxes, mailbox.sender_state.slots
        if isinstance(item, QueuedRequest):
            incoming = item.incoming
            if incoming.context.root_sender or incoming.kind.is_room:
                slots = self._slots_of(incoming.root_owner, is_room=incoming.kind.is_room)
        try:
            if isinstance(item, QueuedRequest) and len(item.incoming.content) > LARGE_CHARACTERS:
                await self._pace_large(item.incoming.root_owner)
            if not slots.acquire_nowait():
                await slots.acquire()
        finally:
            mailbox.sender_state.queued_count -= 1
        try:
            if not mailboxes.is_accepting:  # since it began to wait for its slot; the inbox has the request
                if isinstance(item, MailboxTask):
                    item.future.cancel()
                elif not mailbox.is_cancelled:
                    mailboxes.put_unopened(item, mailbox.sender)
            elif mailboxes.starts_none and not mailboxes.may_start(item) and not mailbox.is_cancelled:
                mailbox.requeue(item)  # it was paused while this one waited for its slot
            elif mailbox.is_cancelled and isinstance(item, QueuedRequest) and not item.incoming.kind.is_program:
                mailboxes.close_request(item)  # it was cancelled while it waited for its slot
            elif isinstance(item, QueuedRequest):
                await self._handle(mailbox, item)
                if item.digest and not (mailbox.retry and item.stored.is_stored):
                    mailboxes.end_program_request(item)
            else:
                await item.run()
        finally:
            slots.release()
            if slot := mailbox.running_slot:
                mailbox.running_slot = SPARE_SLOT
                running = self._crash_guard.running
                if mailboxes.is_cancelling_turns:
                    mailboxes.cut_off_rows.add(running.slots[slot])
                if not (mailboxes.is_cancelling_turns and running.is_stopping):  # else the next start counts the stop
                    running.slots[slot] = 0
                running.free_slots.append(slot)

    async def _pace_large(self, owner: str) -> None:
        """Wait until the next large request of a sender may begin, which is some time after the one before it."""
        slot = self._slots_for_large.get(owner)
        if slot is None:
            slot = self._slots_for_large[owner] = Semaphore(1)
        await slot.acquire()
        asyncio.get_running_loop().call_later(_LARGE_PAUSE_S, slot.release)


class RequestHandler:
    """Answers the requests of one agent, each in the worker of its mailbox."""

    def __init__(
        self,
        services: TurnServices,
        languages: PersonLanguages,
        loader: ConversationLoader,
        executor: CommandExecutor,
        intake: RequestIntake,
        repeated: RepeatedRequests,
        revocation: AccessRevocation,
    ) -> None:
        self._services = services
        self._rules = services.policy.rules
        self._max_interactions, self._shows_thoughts = self._rules.max_interactions, self._rules.thoughts
        self._endless_rules = self._rules.model_copy(update={"max_interactions": 0})
        self._languages = languages
        self._loader = loader
        self._executor = executor
        self._intake = intake
        self._repeated = repeated
        self._revocation = revocation
        self._outbox = services.outbox
        self._inbox = services.repository.inbox
        self._waits_for_storage = services.crash_guard.waits_for_storage

    async def handle(self, mailbox: Mailbox, queued: QueuedRequest) -> None:
        """Answer a request. A failure is logged, and the sender is told."""
        language = self._languages.of_request(queued.incoming)
        if language is not LANGUAGE.get():
            LANGUAGE.set(language)
        jid, metrics = self._services.jid, self._services.metrics
        try:
            may_start_early = queued.may_start_early and not (self._waits_for_storage or mailbox.retry)
            if may_start_early or await queued.stored:
                await self.answer(mailbox, queued)
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
            # `Turn.run` catches what `assist` raises, so this is a fault of the platform, or of a token counter. One request
            # must not hold up the others of its conversation.
            log.exception("%s: a request of %s failed", jid, mailbox.sender)
            metrics.record_failure("an internal error of the platform; see the log")
            await self._fail_request(mailbox, queued)

    async def answer(self, mailbox: Mailbox, queued: QueuedRequest) -> None:
        """Answer a new request: load its conversation, decide, execute it, then update, prune and save.

        `RequestIntake.receive` has stored it and put it into its mailbox. A command runs instead of the agent. The end of the
        reply leaves in the moment in which all is stored. `StoreError` if something cannot be read or stored.
        """
        services, incoming = self._services, queued.incoming
        if queued.may_be_duplicate and self._intake.refuse_late(queued):
            return
        if self._outbox.late_replies:
            await self._outbox.wait_until_arrived(bare_jid(incoming.reply_address))
        was_parked = incoming.earlier_runs is not None
        may_have_lost = was_parked or incoming.kind.is_door or queued.received_at_s <= self._revocation.changed_at_s
        if may_have_lost and self._revocation.has_lost_access(incoming):
            services.metrics.refusals["access"] += 1
            self._revocation.refuse(queued)
            self._inbox.close(queued.inbox_row)
            return
        if incoming.context.deadline and incoming.context.deadline <= time.time() and not was_parked:
            self._refuse_overdue(queued)
            return

        if queued.missed_at is not None and services.clock() > queued.missed_at and not queued.is_redelivered:
            log.info("%s: skipped a due time of %s: it waited too long for its turn", services.jid, incoming.owner)
            self._inbox.close(queued.inbox_row)
            return

        # Load
        active = mailbox.active or await self._loader.load(mailbox)
        person = active.person if not incoming.context.hops else await self._loader.load_person(active, incoming)
        now = services.clock()
        if queued.command is not None:
            await self._executor.reply_to_command(mailbox, active, queued, queued.command)
            return

        if services.questions.has_open and not was_parked:
            if (answer := await services.questions.find_answer(queued, mailbox)) is not None:
                await self._executor.reply_to_command(mailbox, active, queued, answer_command(*answer))
                return
            # The request that it corrects may wait for an answer.
            ended = services.questions.end_of_messages(incoming.owner, incoming.replaces, incoming.author)
            if ended is not None:
                await ended

        # Decide, unless it was decided before the turn asked a person
        if not was_parked:
            kind = incoming.kind
            # A topic has no end, and all requests of a program that names no thread are in one conversation.
            is_endless = kind.is_due or (
                kind.is_program and not kind.is_page and (is_item(incoming) or incoming.thread is None)
            )
            rules = self._endless_rules if is_endless else self._rules
            decision = decide_for_conversation(active, incoming, now, rules)
            if decision.status is not active.record.status:
                active.record = active.record.with_status(decision.status)
            if decision.ended_state is not None:
                await services.expiry.on_ended(active.record.conversation_id, decision.ended_state)
            if decision.outcome is not RUN:
                await self._refuse(active, queued, self._open_output(active, queued), decision.outcome, now)
                return
            conversation_id, status = active.record.conversation_id, active.record.status
            services.expiry.on_activity(conversation_id, status.last_interaction)
            if status.interaction_count == 1:
                services.usage.reset_conversation(conversation_id)
            if incoming.wants_displayed_marker and incoming.stanza_id:
                channel = self._outbox.channel_of(incoming)
                if (displayed := channel.encode_displayed(incoming)) is not None:
                    channel.send([displayed])

        # Execute
        output = self._open_output(active, queued)
        turn = Turn(services, mailbox, active, queued, output, now, person)
        final_event = await turn.run(turn.assist)
        if turn.steps.asked:
            if isinstance(final_event, Parked) and mailbox.active is active:
                await self._park(turn, now)
                return
            services.questions.release(turn.steps.asked)
        if mailbox.active is not active:  # it was deleted, and the agent went on when it was cancelled
            output.cancel()
            self._inbox.close(queued.inbox_row)
            services.metrics.outcomes["cancelled"] += 1
            return
        if final_event is None:
            services.metrics.outcomes["cancelled"] += 1
            await turn.close_cancelled()
            if self._revocation.has_lost_access(incoming):
                self._revocation.refuse(queued)
            return

        # Update
        record, rules = active.record, self._rules
        status = record.status
        is_active = status.is_active  # an operator may have ended it during the turn
        if is_active:
            status = conversation.record_failure(status, rules) if turn.has_failed else conversation.record_success(status)
        if turn.changes.is_ended:
            status = conversation.complete(status)
        usage = sum_usage(output.events) if output.events else {}
        if usage and isinstance(final_event, Completed):
            final_event = replace(final_event, usage=find_token_counts(usage))
        if was_parked and isinstance(final_event, Failed):
            final_event = replace(final_event, has_asked=True)
        final_messages = output.finish(final_event)
        text = turn.encode(usage, final_event)

        # Prune
        windows = services.history_windows
        stored_turn, turns, window_start = windows.append(active.turns, text, record.turns + 1, active.variables)
        window_start = max(window_start, record.window_start)
        record = record.with_turns(status, self._max_interactions, window_start, record.turns + 1)
        active.record = record  # a change during the write is stored after it

        # Save
        turn_record = TurnRecord(output.encoder.key, now, stored_turn.text, turn.root)
        if queued.stored.error is not None:  # the server delivers the request again; its turn would be stored twice
            raise queued.stored.error
        await turn.store(final_messages, turn_record, await turn.count_usage(usage) if usage else ())
        if not queued.stored.is_stored:
            await queued.stored  # if this raises, the sender is told, and the server keeps the request
        turn.changes.publish()
        active.turns = turns
        if windows.compacts:
            windows.compact_later(active)
        active.last_reply = "\n\n".join(output.texts).strip()
        outcome: MetricsOutcome = "failed" if isinstance(final_event, Failed) else "answered"
        services.metrics.record_reply(queued.received_at_s, outcome, turn.started_at_s)
        if log.isEnabledFor(logging.INFO):
            waited_ms = (time.monotonic() - queued.received_at_s) * 1000
            log.info("%s: answered %s in %.0f ms", services.jid, incoming.sender, waited_ms)
        if is_active and not status.is_active:
            await services.expiry.on_ended(record.conversation_id, status.state)

    async def _park(self, turn: Turn, now: datetime) -> None:
        """Move a request whose turn has asked a person out of the inbox, and send what it has said so far."""
        services, queued, active = self._services, turn.queued, turn.conversation
        final_messages = turn.output.finish(Parked())
        services.repository.save_conversation(active.record)
        for counter in await turn.count_usage(sum_usage(turn.output.events)):
            services.repository.save_variable(*counter)
        if not await services.questions.park(turn, now, turn.output.stored_reply):
            log.info("%s: a request of %s was deleted before it could wait for an answer", services.jid, turn.mailbox.sender)
            return
        await queued.stored
        services.metrics.record_reply(queued.received_at_s, "parked", turn.started_at_s)
        if final_messages:
            final_messages[-1].on_written = partial(services.repository.questions.mark_shown, queued.inbox_row)
            services.outbox.send_final(queued.incoming.channel_name, queued.inbox_row, final_messages)
        elif turn.output.messages:
            services.outbox.close_when_acknowledged(queued.inbox_row, turn.output.last_sent)

    def _open_output(self, active: ActiveConversation, queued: QueuedRequest) -> TurnOutput:
        """Open the output for a request, by the preferences of the person and the features of their clients."""
        services, incoming, person = self._services, queued.incoming, active.record.owner
        channel = self._outbox.channels[incoming.channel_name]
        if incoming.earlier_runs is not None and incoming.is_said_directly and not incoming.kind.has_buttons:
            # The program may be gone, such as a chat: the person gets the rest as texts. It is asked for again under its id.
            incoming = replace(incoming, kind=PERSON)
        if incoming.kind.is_program:
            encoder = channel.make_encoder(incoming, queued.key)
            if incoming.earlier_runs is not None and not incoming.is_said_directly:
                encoder = RepeatedParts(encoder)  # the agent that asked listens no more: it gets the whole when it asks again
            output = TurnOutput(encoder, channel.send, queued.key, services.reply_timers)
            if queued.digest and (request := services.mailboxes.program_requests.get(queued.key)) is not None:
                request.open_output(output)
            return output
        preferences, client_features = active.person.preferences, channel.client_features
        has_live_messages = preferences.streaming is not False and client_features.has_corrections(person)
        presentation = PresentationOptions(
            has_live_messages,
            partial(client_features.find_chained_device, person) if has_live_messages else NO_CHAINED_DEVICE,
            queued.is_redelivered,
            self._shows_thoughts if preferences.thoughts is None else preferences.thoughts,
            preferences.thoughts is not False,
            client_features.has_replies(incoming.sender),
        )
        encoder = channel.make_encoder(incoming, queued.key, presentation)
        return TurnOutput(encoder, channel.send, queued.key, services.reply_timers, services.long_answers)

    # Requests without a turn, and failures

    async def _refuse(
        self, active: ActiveConversation, queued: QueuedRequest, output: TurnOutput, outcome: Outcome, now: datetime
    ) -> None:
        """Finish a request without a turn: with a notice, or in silence to people who have had one."""
        final_messages: list[OutboundMessage] = []
        incoming = queued.incoming
        self._services.metrics.refusals["conversation"] += 1
        if outcome is Outcome.NOTICE or incoming.kind.is_program:
            notice = refusal_notice(active, incoming, now, self._rules, has_commands=self._rules.commands)
            final_messages = output.finish(notice)
            active.echo_count = 0
        else:
            output.abandon()
        await self._inbox.finish(queued.inbox_row, active.record, None, output.stored_reply)
        await queued.stored
        if final_messages:
            self._outbox.send_final(incoming.channel_name, queued.inbox_row, final_messages)

    def _refuse_overdue(self, queued: QueuedRequest) -> None:
        """Refuse a request whose sender no longer waits for the reply."""
        self._services.metrics.refusals["deadline"] += 1
        text = translate("There is no time left for this request. It waited too long.")
        self._outbox.send_problem(queued.incoming, Refused(text, ErrorCode.TIMEOUT), queued.key)
        self._inbox.close(queued.inbox_row)

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
            self._services.mailboxes.put_back(mailbox, again, self._services.policy.timings.retry_s)
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
            self._services.metrics.outcomes["failed"] += 1
        except StoreError as error:
            log.error("%s: %s", self._services.jid, error)
        else:
            self._outbox.send_final(queued.incoming.channel_name, queued.inbox_row, messages)
