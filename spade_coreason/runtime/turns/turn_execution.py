"""The turn of a request in its conversation: execute, update, prune, save, send (seed: Runtime Behavior)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from ...domain import conversation
from ...domain.messages import Completed, Failed, Parked
from ...domain.observability import spans
from ...domain.observability.tracing import TURN_TRACE, TurnTrace
from ...domain.policy import Policy
from ...memory import ActiveConversation, ActivePerson, HistoryWindows, Usage, find_token_counts, sum_usage
from ...storage import AgentRepository, Commit, Rows, TurnRecord, Variable
from ..channels import OutboundMessage
from ..conversations.expiry import ConversationExpiry
from ..initiative.notifications import AgentNotifications
from ..mailboxes.mailbox import Mailbox, QueuedRequest
from ..observability.metrics import Metrics, Outcome
from ..questions.desk import QuestionDesk
from ..replies.outbox import Outbox
from ..replies.output import TurnOutputs
from .turn import Turn, TurnFactory, TurnRunner

log = logging.getLogger(__name__)


class TurnExecution:
    """Executes the turns of one agent."""

    def __init__(
        self,
        outputs: TurnOutputs,
        factory: TurnFactory,
        runner: TurnRunner,
        store: TurnStore,
        history_windows: HistoryWindows,
        expiry: ConversationExpiry,
        policy: Policy,
        metrics: Metrics,
    ) -> None:
        self._outputs = outputs
        self._factory = factory
        self._runner = runner
        self._store = store
        self._history_windows = history_windows
        self._expiry = expiry
        self._rules = policy.rules
        self._metrics = metrics

    async def execute(
        self,
        mailbox: Mailbox,
        active: ActiveConversation,
        queued: QueuedRequest,
        person: ActivePerson | None,
        now: datetime,
    ) -> bool:
        """Run the agent, store the turn with its reply, and send it. Return False if its sender has cancelled it.

        `StoreError` if something cannot be read or stored.
        """
        # Execute
        incoming, store = queued.incoming, self._store
        output = self._outputs.open(incoming, queued.key, active.person.preferences, is_redelivered=queued.is_redelivered)
        turn = self._factory.make(mailbox, active, queued, output, person, now)
        final_event = await self._runner.run(turn)
        if turn.steps.asked:
            if isinstance(final_event, Parked) and mailbox.active is active:
                await store.park(turn)
                return True
            store.desk.release(turn.steps.asked)
        if mailbox.active is not active:  # it was deleted, and the agent went on when it was cancelled
            output.cancel()
            store.inbox.close(queued.inbox_row)
            self._metrics.outcomes["cancelled"] += 1
            return True
        if final_event is None:
            self._metrics.outcomes["cancelled"] += 1
            await store.close_cancelled(turn)
            return False

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
        if incoming.earlier_runs is not None and isinstance(final_event, Failed):
            final_event = replace(final_event, has_asked=True)
        final_messages = output.finish(final_event)
        text = turn.encode(usage, final_event)

        # Prune
        windows = self._history_windows
        stored_turn, turns, window_start = windows.append(active.turns, text, record.turns + 1, active.variables)
        window_start = max(window_start, record.window_start)
        record = record.with_turns(status, rules.max_interactions, window_start, record.turns + 1)
        active.record = record  # a change during the write is stored after it

        # Save
        turn_record = TurnRecord(output.sender.encoder.key, now, stored_turn.text, turn.root)
        if queued.stored.error is not None:  # the server delivers the request again; its turn would be stored twice
            raise queued.stored.error
        await store.store(turn, final_messages, turn_record, await store.count_usage(turn, usage) if usage else ())
        if not queued.stored.is_stored:
            await queued.stored  # if this raises, the sender is told, and the server keeps the request
        turn.changes.publish()
        active.turns = turns
        if windows.compacts:
            windows.compact_later(active)
        active.last_reply = "\n\n".join(output.texts).strip()
        outcome: Outcome = "failed" if isinstance(final_event, Failed) else "answered"
        self._metrics.record_reply(queued.received_at_s, outcome, turn.started_at_s)
        if log.isEnabledFor(logging.INFO):
            waited_ms = (time.monotonic() - queued.received_at_s) * 1000
            log.info("%s: answered %s in %.0f ms", store.jid, incoming.sender, waited_ms)
        if is_active and not status.is_active:
            await self._expiry.on_ended(record.conversation_id, status.state)
        return True


class TurnStore:
    """Stores the turns of one agent."""

    def __init__(
        self,
        repository: AgentRepository,
        outbox: Outbox,
        desk: QuestionDesk,
        notifications: AgentNotifications,
        usage: Usage,
        metrics: Metrics,
    ) -> None:
        self.jid = repository.agent
        self._repository = repository
        self.inbox = repository.inbox
        self._outbox = outbox
        self.desk = desk
        self._notifications = notifications
        self._usage = usage
        self._metrics = metrics

    async def park(self, turn: Turn) -> None:
        """Move a request whose turn has asked a person out of the inbox, and send what it has said so far."""
        queued, output, repository = turn.queued, turn.output, self._repository
        final_messages = output.finish(Parked())
        repository.save_conversation(turn.conversation.record)
        for counter in await self.count_usage(turn, sum_usage(output.events)):
            repository.save_variable(*counter)
        if not await self.desk.park(queued, turn.steps, turn.describe_runs(), output.stored_reply):
            log.info("%s: a request of %s was deleted before it could wait for an answer", self.jid, turn.mailbox.sender)
            return
        await queued.stored
        self._metrics.record_reply(queued.received_at_s, "parked", turn.started_at_s)
        if final_messages:
            final_messages[-1].on_written = partial(repository.questions.mark_shown, queued.inbox_row)
            self._outbox.send_final(queued.incoming.channel_name, queued.inbox_row, final_messages)
        elif output.sender.messages:
            self._outbox.close_when_acknowledged(queued.inbox_row, output.sender.last_sent)

    async def close_cancelled(self, turn: Turn) -> None:
        """Close the request of a turn that its sender has cancelled. What it cost is counted."""
        usage = await self.count_usage(turn, sum_usage(turn.output.events))
        await self.inbox.finish(turn.queued.inbox_row, turn.conversation.record, None, None, usage)

    async def count_usage(self, turn: Turn, usage: dict[str, Any]) -> list[Variable]:
        """Add the tokens of the turn to the counters, and return the counters as variables to store.

        A run that begins anew after a question reports what the earlier ones have used, too; that is counted already.
        """
        tokens = usage.get("total_tokens")
        if not isinstance(tokens, int) or tokens <= turn.counted_tokens:
            return []
        record, new_tokens = turn.conversation.record, tokens - turn.counted_tokens
        turn.counted_tokens = tokens
        person = turn.queued.incoming.person or record.owner
        return await self._usage.add({"total_tokens": new_tokens}, person, record.conversation_id)

    def store(
        self, turn: Turn, final_messages: list[OutboundMessage], record: TurnRecord | None, usage: Sequence[Variable] = ()
    ) -> Commit[bool]:
        """Store the conversation, the turn, the reply and the variables in one transaction. A command has no turn.

        `final_messages`, the rest of the reply from `TurnOutput.finish`, leave in the moment in which that is durable.
        The request itself may have failed to be stored: `queued.stored` tells.
        """
        variables, queued, output = [*turn.changes.close(), *usage], turn.queued, turn.output
        also: Rows = ()
        if queued.incoming.kind.is_job and record is not None:
            also = self._notifications.make_of_job(queued.incoming, queued.key, output.as_blocks())
        commit = self.inbox.finish(
            queued.inbox_row,
            turn.conversation.record,
            record,
            output.stored_reply,
            variables,
            is_command=record is None,
            also=also,
        )
        send_final: Callable[[bool], None] = partial(self._send_final, turn, final_messages)
        if self._outbox.is_traced and (trace := TURN_TRACE.get()) is not None:
            _follow_commit(trace, commit)
            send_final = trace.bind(send_final)  # it is called in the context of the writer
        commit.on_stored(send_final)
        if also:
            commit.on_stored(lambda _: self._notifications.tasks.wake())
        return commit

    def _send_final(self, turn: Turn, final_messages: list[OutboundMessage], _: bool) -> None:
        """Send the rest of the reply. The request is closed when the server has all of it."""
        outbox, queued = self._outbox, turn.queued
        if not queued.stored.is_stored:
            return
        try:
            if final_messages:
                outbox.send_final(queued.incoming.channel_name, queued.inbox_row, final_messages)
            elif turn.output.sender.messages:
                outbox.close_when_acknowledged(queued.inbox_row, turn.output.sender.last_sent)
        except Exception:
            # A fault of the platform. The reply is stored, and is sent after the next start.
            log.exception("%s: cannot send the answer to %s", self.jid, queued.incoming.sender)
            self._metrics.record_failure("an answer cannot be sent; see the log")


def _follow_commit(trace: TurnTrace, commit: Commit[bool]) -> None:
    """Add a span to the trace of a turn, until its end is durable."""
    span = trace.begin(spans.COMMIT, "internal", {})

    def end(outcome: object) -> None:
        if isinstance(outcome, BaseException):
            span.fail(type(outcome).__name__)
        span.end()

    commit.on_stored(end)
    commit.on_failed(end)
