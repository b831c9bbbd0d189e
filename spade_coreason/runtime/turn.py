"""A turn: one request and its reply, from the start of `assist` until both are stored."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic_core import to_json

from ..concurrency import Deadline
from ..contracts import AgentRequest, ErrorCode, UserErrorBlock
from ..contracts.base import construct_valid
from ..domain import conversation
from ..domain.history import StoredTurn
from ..domain.messages import Completed, Failed, TurnEvent
from ..domain.text import replace_lone_surrogates
from ..exceptions import StoreError, describe_for_log
from ..memory import ActiveConversation, DeferredSyncs, TurnSession, sum_usage
from ..storage import Commit, TurnRecord, Variable
from .mailboxes import Mailbox, QueuedRequest
from .outbox import dump_reply
from .peers import CURRENT_REQUEST
from .response import TurnResponse
from .transport import OutboundMessage
from .turn_services import TurnServices

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Turn:
    """One admitted request in its conversation, with the agent's request, session and response for it."""

    services: TurnServices
    mailbox: Mailbox
    conversation: ActiveConversation
    queued: QueuedRequest
    response: TurnResponse
    started_at: datetime
    request: AgentRequest = field(init=False)
    session: TurnSession = field(init=False)
    has_failed: bool = False
    """True if the turn counts as failed in the status of the conversation."""

    def __post_init__(self) -> None:
        self.request = self.response.request = _make_request(self.conversation, self.queued, self.started_at)
        self.session = _make_session(self.services, self.conversation, self.queued)

    async def answer(self) -> None:
        """Run the agent, and store the turn with its reply before the last stanza leaves.

        `StoreError` if the turn cannot be stored.
        """
        services, incoming = self.services, self.queued.incoming
        services.expiry.on_activity(self.conversation.record.conversation_id, self.conversation.record.status.last_interaction)
        if self.conversation.record.status.interaction_count == 1:
            services.usage.reset_conversation(self.conversation.record.conversation_id)
        if incoming.wants_displayed_marker and incoming.stanza_id:
            services.outbox.send([services.transport.encode_displayed(incoming)])
        final_event = await self.run(self._assist)
        if self.is_deleted:
            self.response.cancel()
            services.repository.inbox.close(self.queued.inbox_row)
        elif final_event is None:
            usage_variables = await self._count_usage(sum_usage(self.response.events))
            await services.repository.inbox.finish(self.queued.inbox_row, self.conversation.record, None, None, usage_variables)
        else:
            await self._finish(final_event)

    def _assist(self) -> Awaitable[object]:
        return self.services.assist(self.request, self.session, self.response)

    @property
    def is_deleted(self) -> bool:
        """True if the conversation was deleted during the turn, because the agent did not stop when it was cancelled."""
        return self.mailbox.active is not self.conversation

    async def run(self, work: Callable[[], Awaitable[object]]) -> TurnEvent | None:
        """Run `assist`, or a command of the agent, and return the last event of the reply.

        Any exception of `work` becomes a failure of this turn only. Returns None if the sender has cancelled the request.
        """
        services, mailbox, response = self.services, self.mailbox, self.response
        token = CURRENT_REQUEST.set(self.request)
        task = mailbox.worker
        deadline, syncs = Deadline(services.assist_timers, task), DeferredSyncs()
        try:
            if mailbox.is_cancelled:
                response.cancel()
                return None
            mailbox.is_assisting = True
            try:
                if not services.lifecycle.prevent_shutdown():
                    await deadline.run(services.lifecycle.ensure_started())
                    deadline = Deadline(services.assist_timers, task)
                syncs.activate()
                returned = await deadline.run(work())
            finally:
                syncs.close()
                mailbox.is_assisting, mailbox.current = False, None
            if returned is not None:
                self._warn_of_return_value(returned)
            if task is not None and task.cancelling():
                await self._clear_cancellation()
            response.defer_until_stored()
            if syncs.memories:
                await syncs.run()
            if response.streams:
                await response.close_streams()
            if task is not None and task.cancelling():
                await self._clear_cancellation()
        except BaseException as error:
            # Also sys.exit(), which would end the whole process, and an agent that cancels its own task.
            is_stopping = isinstance(error, asyncio.CancelledError) and services.mailboxes.is_cancelling_turns
            if isinstance(error, KeyboardInterrupt) or is_stopping:
                response.abandon()
                raise
            await self._clear_cancellation()
            await self._sync_after_failure(syncs)
            if mailbox.is_cancelled:
                response.cancel()
                return None
            return self._report_failure(error, is_late=isinstance(error, TimeoutError) and deadline.has_expired)
        finally:
            CURRENT_REQUEST.reset(token)
        if (reported_error := response.reported_error) is not None:
            services.metrics.record_failure("it reported an error")
            code = reported_error.code or ErrorCode.INTERNAL
            return Failed(reported_error.user_message, int(code), reported_error.recoverable, is_reported=True)
        return Completed(mailbox.conversation_id or "", "completed" if self.session.is_ended else "active")

    def _warn_of_return_value(self, returned: object) -> None:
        """Log once that a return value is not sent: to return the reply is the most natural mistake."""
        if not self.services.has_warned_of_return:
            self.services.has_warned_of_return = True
            kind = type(returned).__name__
            log.warning(
                "%s: assist returned a %s, which nobody hears; say it: await response.markdown(…)", self.services.jid, kind
            )

    def _report_failure(self, error: BaseException, *, is_late: bool) -> TurnEvent:
        """Log a failure with its traceback. Tell the sender the number of the incident only."""
        agent, incident = self.services.jid, secrets.token_hex(4)
        code: int = ErrorCode.TIMEOUT if is_late else ErrorCode.INTERNAL
        problem = describe_for_log(error)
        if is_late:
            limit_s = self.services.policy.assist_timeout_s
            problem = f"assist took longer than {limit_s:g} s"
            log.error("%s: incident %s: %s", agent, incident, problem)
            text = f"I could not finish this within {limit_s:g} s (incident {incident})."
        elif isinstance(error, StoreError):
            code = ErrorCode.UNAVAILABLE
            log.error("%s: incident %s: %s", agent, incident, error)
            text = f"My memory cannot be read or written, so this is not remembered (incident {incident})."
        else:
            log.error("%s: incident %s", agent, incident, exc_info=error)
            text = f"Something went wrong on my side (incident {incident})."
        self.services.metrics.record_failure(f"{problem} (incident {incident})")
        self.response.abort_streams("the turn failed")
        self.response.report_error(UserErrorBlock(user_message=text, recoverable=True, code=code))
        self.has_failed = True
        return Failed(text, code, True, incident, is_reported=True)

    async def _sync_after_failure(self, syncs: DeferredSyncs) -> None:
        """Sync the interaction memory that the agent wrote before it failed or was stopped."""
        try:
            await syncs.run()
        except StoreError as error:
            log.error("%s: what a turn that failed has remembered may be gone after a power cut: %s", self.services.jid, error)

    async def _clear_cancellation(self) -> None:
        """Clear a cancellation by the agent itself: it ends the turn, and not the work after the turn."""
        task = self.mailbox.worker
        if task is None or not task.cancelling() or self.services.mailboxes.is_cancelling_turns:
            return
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # a cancellation that is not delivered yet
        while task.uncancel():
            pass

    async def _finish(self, final_event: TurnEvent) -> None:
        services, active, response, session = self.services, self.conversation, self.response, self.session
        rules = services.policy.rules
        status = active.record.status
        is_active = status.is_active  # an operator may have ended it during the turn
        if is_active:
            status = conversation.record_failure(status, rules) if self.has_failed else conversation.record_success(status)
        if session.is_ended:
            status = conversation.complete(status)
        final_messages = response.finish(final_event)
        usage = sum_usage(response.events)
        stored_turn = services.history_windows.mark_over_limit(StoredTurn(_encode_turn(self._interaction_fields(usage))))
        record = active.record
        turns = active.turns.with_appended(stored_turn)
        window_start = services.history_windows.prune(turns, record.turns + 1, active.variables)
        record = record.with_turns(status, rules.max_interactions, max(window_start, record.window_start), record.turns + 1)
        active.record = record  # a change during this write is stored after it
        usage_variables = await self._count_usage(usage) if usage else ()
        await self.store_reply(
            final_messages, TurnRecord(response.channel.key, self.started_at, stored_turn.text), usage_variables
        )
        await self.queued.stored  # if this raises, the sender is told, and the server keeps the request
        session.publish_variables()
        active.turns = turns
        services.history_windows.compact_later(active)
        active.last_reply = response.text.strip()
        services.metrics.record_reply(self.queued.received_at_s)
        if log.isEnabledFor(logging.INFO):
            waited_ms = (services.metrics.now() - self.queued.received_at_s) * 1000
            log.info("%s: has answered %s in %.0f ms", services.jid, self.queued.incoming.sender, waited_ms)
        if is_active and not status.is_active:
            await services.expiry.on_ended(record.conversation_id, status.state)

    async def _count_usage(self, usage: dict[str, Any]) -> list[Variable]:
        """Add the tokens of the turn to the counters, and return the counters as variables to store."""
        return (
            await self.services.usage.add(usage, self.conversation.record.owner, self.conversation.record.conversation_id)
            if usage
            else []
        )

    def store_reply(
        self, final_messages: list[OutboundMessage], turn: TurnRecord | None, usage: Sequence[Variable] = ()
    ) -> Commit[bool]:
        """Store the conversation, the turn, the reply and the variables in one transaction. A command has no turn.

        `final_messages`, the rest of the reply from `TurnResponse.finish`, leave in the moment in which that is durable.
        The request itself may have failed to be stored: `queued.stored` tells.
        """
        reply = dump_reply(self.response.messages) if self.response.messages else None
        variables = [*self.session.close(), *usage]
        commit = self.services.repository.inbox.finish(self.queued.inbox_row, self.conversation.record, turn, reply, variables)
        commit.on_stored(partial(self._send_final, final_messages))
        return commit

    def _send_final(self, final_messages: list[OutboundMessage], _: bool) -> None:
        """Send the rest of the reply. The request is closed when the server has all of it."""
        outbox = self.services.outbox
        if not self.queued.stored.is_stored:
            return
        try:
            if final_messages:
                outbox.send_final(self.queued.inbox_row, final_messages)
            elif self.response.messages:
                outbox.close_when_acknowledged(self.queued.inbox_row, self.response.last_sent)
        except Exception:
            # A fault of the platform. The reply is stored, and is sent after the next start.
            log.exception("%s: the answer to %s cannot be sent", self.services.jid, self.queued.incoming.sender)
            self.services.metrics.record_failure("an answer cannot be sent; the log has it")

    def _interaction_fields(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Build the fields of the `Interaction`. `usage` is the turn's use of language models."""
        request, response, incoming = self.request, self.response, self.queued.incoming
        key = response.channel.key
        request_id = incoming.request_id or key
        output: dict[str, Any] = {"text": response.text}
        if response.data_blocks:
            output["data"] = response.data_blocks
        if response.reported_error is not None:
            output["error"] = response.reported_error.dump()
        meta: dict[str, Any] = {
            "request_id": request_id,
            "channel": incoming.channel,
            "duration_ms": _milliseconds(self.services.clock() - self.started_at),
        }
        if isinstance(nickname := request.metadata.get("nickname"), str):
            meta["nickname"] = nickname
        if usage:
            meta["usage"] = usage
        return {
            "interaction_id": key,
            "timestamp": self.started_at,
            "input": request.payload,
            "output": output,
            "events": response.events,
            "meta": meta,
            "lineage": {"root_request_id": incoming.root_request_id or request_id},
        }


def _make_request(active: ActiveConversation, queued: QueuedRequest, now: datetime) -> AgentRequest:
    incoming = queued.incoming
    metadata: dict[str, Any] = {
        **incoming.metadata,
        "conversation_id": active.record.conversation_id,
        "sender": incoming.sender,
        "channel": incoming.channel,
    }
    if incoming.thread:
        metadata["thread"] = incoming.thread
    if incoming.hops:
        metadata["hops"] = incoming.hops
    if queued.is_redelivered:
        metadata["redelivered"] = True
    if (language := active.person.preferences.language) is not None:
        metadata["preferred_language"] = language
    request_id = incoming.request_id or queued.key
    return construct_valid(
        AgentRequest,
        {
            "request_id": request_id,
            "session_id": active.session_uuid,
            "root_request_id": incoming.root_request_id or request_id,
            "parent_request_id": incoming.parent_request_id,
            "created_at": now,
            "payload": dict(incoming.payload),
            "capabilities": incoming.capabilities,
            "metadata": metadata,
        },
    )


def _make_session(services: TurnServices, active: ActiveConversation, queued: QueuedRequest) -> TurnSession:
    return TurnSession(
        active.record,
        active.turns,
        active.identity_for(queued.incoming.channel, queued.incoming.nickname),
        services.repository,
        active.variables,
        active.person.variables,
        compaction=services.history_windows.compaction_state(active.variables),
        knowledge=services.knowledge,
        on_window_read=services.history_windows.warn_unbounded,
    )


_JSON: TypeAdapter[Any] = TypeAdapter(JsonValue)


def _milliseconds(duration: timedelta) -> float:
    # From its parts: a division of timedeltas costs as much as a dict of all fields of a turn.
    return (duration.days * 86_400_000_000 + duration.seconds * 1_000_000 + duration.microseconds) / 1000


def _is_json(value: object) -> bool:
    try:
        _JSON.validate_python(value)
    except ValidationError:
        return False
    return True


def _encode_turn(turn: dict[str, Any]) -> str:
    try:
        return to_json(turn, inf_nan_mode="null").decode()
    except ValueError:  # lone surrogates, or values in the payload that are no JSON
        payload = {name: value for name, value in turn["input"].items() if _is_json({name: value})}
        return to_json(replace_lone_surrogates({**turn, "input": payload}), fallback=repr).decode()
