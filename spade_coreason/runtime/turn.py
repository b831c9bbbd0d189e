"""A turn: one request and its answer."""

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

from ..codec import encode_displayed
from ..concurrency import Deadline
from ..contracts import AgentRequest, ErrorCode, UserErrorBlock
from ..contracts.base import construct_valid
from ..domain import conversation
from ..domain.history import StoredTurn
from ..domain.messages import Completed, Failed, TurnEvent
from ..domain.text import replace_lone_surrogates
from ..exceptions import StoreError, describe_for_log
from ..memory import ActiveConversation, DeferredSyncs, Session, sum_usage
from ..storage import TurnRecord as TurnRow, Variable
from .mailbox import Mailbox, QueuedRequest
from .peers import CURRENT_REQUEST
from .response import Response
from .turn_services import TurnServices

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Turn:
    """A request that is admitted, in its conversation."""

    services: TurnServices
    mailbox: Mailbox
    conversation: ActiveConversation
    queued: QueuedRequest
    response: Response
    started_at: datetime
    request: AgentRequest = field(init=False)
    session: Session = field(init=False)
    has_failed: bool = False
    """Whether it counts as a failed turn."""

    def __post_init__(self) -> None:
        self.request = self.response.request = _make_request(self.conversation, self.queued, self.started_at)
        self.session = _make_session(self.services, self.conversation, self.queued)

    async def answer(self) -> None:
        """Runs the agent, and stores the turn with its answer before the last of it leaves. `StoreError` if it cannot."""
        engine, incoming = self.services, self.queued.incoming
        engine.expiry.on_activity(self.conversation.record.conversation_id, self.conversation.record.status.last_interaction)
        if self.conversation.record.status.interaction_count == 1:
            engine.usage.reset_conversation(self.conversation.record.conversation_id)
        if incoming.wants_displayed_marker and incoming.stanza_id:
            engine.outbox.send([encode_displayed(incoming)])
        last = await self.run(self._assist)
        if self.is_deleted:
            self.response.cancel()
            engine.store.inbox.close(self.queued.inbox_row)
        elif last is None:
            used = await self._count_usage(sum_usage(self.response.events))
            await engine.store.inbox.finish(self.queued.inbox_row, self.conversation.record, None, None, used)
        else:
            await self._finish(last)

    def _assist(self) -> Awaitable[object]:
        return self.services.agent.assist(self.request, self.session, self.response)

    @property
    def is_deleted(self) -> bool:
        """Whether all of it was forgotten meanwhile: the agent did not let itself be stopped."""
        return self.mailbox.conversation is not self.conversation

    async def run(self, work: Callable[[], Awaitable[object]]) -> TurnEvent | None:
        """Runs `assist`, or a command of the agent's; gives its last event. It alone fails, whatever it raises.

        None where whoever asked took the request back meanwhile.
        """
        engine, lane, response = self.services, self.mailbox, self.response
        token = CURRENT_REQUEST.set(self.request)
        task = lane.worker
        limit, syncs = Deadline(engine.assist_timers, task), DeferredSyncs()
        try:
            if lane.is_withdrawn:
                response.cancel()
                return None
            lane.is_assisting = True
            try:
                if not engine.lifecycle.prevent_shutdown():
                    await limit.run(engine.lifecycle.ensure_started())
                    limit = Deadline(engine.assist_timers, task)
                syncs.activate()
                returned = await limit.run(work())
            finally:
                syncs.close()
                lane.is_assisting, lane.current = False, None
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
            # Also sys.exit(), with which a task ends the whole process, and the agent's own cancelling of its task.
            is_given_up = isinstance(error, asyncio.CancelledError) and engine.is_cancelling_turns
            if isinstance(error, KeyboardInterrupt) or is_given_up:
                response.abandon()
                raise
            await self._clear_cancellation()
            await self._sync_after_failure(syncs)
            if lane.is_withdrawn:
                response.cancel()
                return None
            return self._report_failure(error, is_late=isinstance(error, TimeoutError) and limit.has_expired)
        finally:
            CURRENT_REQUEST.reset(token)
        if (reported := response.reported_error) is not None:
            engine.metrics.record_failure("it reported an error")
            code = reported.code or ErrorCode.INTERNAL
            return Failed(reported.user_message, int(code), reported.recoverable, is_reported=True)
        return Completed(lane.conversation_id or "", "completed" if self.session.is_ended else "active")

    def _warn_of_return_value(self, returned: object) -> None:
        """In the log, once: to return an answer is the most natural mistake."""
        if not self.services.has_warned_of_return:
            self.services.has_warned_of_return = True
            kind = type(returned).__name__
            log.warning(
                "%s: assist returned a %s, which nobody hears; say it: await response.markdown(…)", self.services.jid, kind
            )

    def _report_failure(self, error: BaseException, *, is_late: bool) -> TurnEvent:
        """Says that the agent failed, here with its traceback, to whoever asked with the number of the incident only."""
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
        """What the agent remembered before it failed, or was stopped, stays remembered."""
        try:
            await syncs.run()
        except StoreError as error:
            log.error("%s: what a turn that failed has remembered may be gone after a power cut: %s", self.services.jid, error)

    async def _clear_cancellation(self) -> None:
        """An agent that cancelled its own task cancelled its turn, and not what comes after it."""
        task = self.mailbox.worker
        if task is None or not task.cancelling() or self.services.is_cancelling_turns:
            return
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # a cancel that is still to come
        while task.uncancel():
            pass

    async def _finish(self, last: TurnEvent) -> None:
        engine, memory, response, session = self.services, self.conversation, self.response, self.session
        rules = engine.policy.rules
        life = memory.record.status
        is_active = life.is_active  # whoever runs the agent may have ended it meanwhile
        if is_active:
            life = conversation.record_failure(life, rules) if self.has_failed else conversation.record_success(life)
        if session.is_ended:
            life = conversation.complete(life)
        final = response.finish(last)
        used = sum_usage(response.events)
        turn = engine.history_window.mark_over_limit(StoredTurn(_encode_turn(self._interaction_fields(used))))
        row = memory.record
        turns = memory.turns.with_appended(turn)
        window_start = engine.history_window.prune(turns, row.turns + 1, memory.variables)
        row = row.with_turns(life, rules.max_interactions, max(window_start, row.window_start), row.turns + 1)
        memory.record = row  # what is changed while this is stored is stored after it
        counted = await self._count_usage(used) if used else ()
        await self.store_reply(final, TurnRow(response.encoder.key, self.started_at, turn.text), counted)
        await self.queued.stored  # if that failed, the sender hears so, and the server keeps the request
        session.publish_variables()
        memory.turns = turns
        engine.history_window.compact_later(memory)
        memory.last_reply = response.text.strip()
        engine.metrics.record_reply(self.queued.received_at_s)
        if log.isEnabledFor(logging.INFO):
            waited_ms = (engine.metrics.now() - self.queued.received_at_s) * 1000
            log.info("%s: has answered %s in %.0f ms", engine.jid, self.queued.incoming.sender, waited_ms)
        if is_active and not life.is_active:
            await engine.expiry.on_ended(row.conversation_id, life.state)

    async def _count_usage(self, usage: dict[str, Any]) -> list[Variable]:
        """Counts what the turn used of language models."""
        return (
            await self.services.usage.add(usage, self.conversation.record.owner, self.conversation.record.conversation_id)
            if usage
            else []
        )

    def store_reply(
        self, final_stanzas: list[str], turn: TurnRow | None, usage: Sequence[Variable] = ()
    ) -> asyncio.Future[bool]:
        """Stores the conversation, the answer and the variables; of a command without a turn, as no turn is counted.

        `final_stanzas`, what `finish` left of the answer, leaves in the moment in which that is durable, and the future is done. The
        request may still be the one that was not stored: `queued.is_new` says so.
        """
        stanzas = self.response.stanzas
        answer = to_json(stanzas).decode() if stanzas else None
        written = [*self.session.close(), *usage]
        then = partial(self._send_final, final_stanzas)
        return self.services.store.inbox.finish(self.queued.inbox_row, self.conversation.record, turn, answer, written, then)

    def _send_final(self, final_stanzas: list[str], _: bool) -> None:
        """Sends what is left of the answer; the request is closed when all of it has arrived."""
        is_new, outbox = self.queued.stored, self.services.outbox
        if is_new.cancelled() or is_new.exception() is not None:
            return
        try:
            if final_stanzas:
                outbox.send_final(self.queued.inbox_row, final_stanzas)
            elif self.response.stanzas:
                outbox.close_when_acknowledged(self.queued.inbox_row, self.response.last_sent)
        except Exception:
            # A fault of ours. The answer is kept, and leaves after the next start.
            log.exception("%s: the answer to %s cannot be sent", self.services.jid, self.queued.incoming.sender)
            self.services.metrics.record_failure("an answer cannot be sent; the log has it")

    def _interaction_fields(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The fields of its Interaction; `usage` is what it used of language models."""
        request, response, incoming = self.request, self.response, self.queued.incoming
        key = response.encoder.key
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
    if (preferred := active.person.preferences.language) is not None:
        metadata["preferred_language"] = preferred
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


def _make_session(services: TurnServices, active: ActiveConversation, queued: QueuedRequest) -> Session:
    return Session(
        active.record,
        active.turns,
        active.identity_for(queued.incoming.channel, queued.incoming.nickname),
        services.store,
        active.variables,
        active.person.variables,
        compaction=services.history_window.compacted(active.variables),
        knowledge=services.knowledge,
        on_window_read=services.history_window.warn_unbounded,
    )


_JSON: TypeAdapter[Any] = TypeAdapter(JsonValue)


def _milliseconds(duration: timedelta) -> float:
    # Its parts, for to divide timedeltas costs as much as to make a dict of all fields of a turn.
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
    except ValueError:  # lone surrogates, or what an agent put into the payload and is no JSON
        asked = {name: value for name, value in turn["input"].items() if _is_json({name: value})}
        return to_json(replace_lone_surrogates({**turn, "input": asked}), fallback=repr).decode()
