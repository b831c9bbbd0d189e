"""A turn: one request and its reply, from the start of `assist` until both are stored."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, partial
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, JsonValue, TypeAdapter, ValidationError
from pydantic_core import to_json

from ...concurrency import CURRENT_HOLDER, Deadline
from ...contracts import AgentRequest, ErrorCode, UserErrorBlock
from ...domain.callers import HIDDEN_PERSON
from ...domain.messages import (
    CHAIN,
    DEADLINE,
    HIDES_PERSON,
    NO_CONTEXT,
    ROOT_METADATA,
    ROOT_SENDER,
    Completed,
    Failed,
    InboundRequest,
    Parked,
    TurnEvent,
)
from ...domain.observability import spans
from ...domain.observability.tracing import TURN_TRACE, TurnTrace
from ...domain.texts.text import replace_lone_surrogates
from ...domain.texts.translation import N_, translate
from ...exceptions import ContentRefusedError, LeaseLostError, StoreError, describe_for_log
from ...memory import (
    CURRENT_DEFERRED_SYNCS,
    ActiveConversation,
    ActivePerson,
    DeferredSyncs,
    SessionChanges,
    SessionSchedules,
    TurnSession,
    sum_usage,
)
from ...storage import SPARE_SLOT, Commit, Rows, TurnRecord, Variable
from ..channels import OutboundMessage
from ..intake.mailbox import Mailbox, QueuedRequest
from ..peers.peers import CURRENT_REQUEST
from .current_journal import CURRENT_JOURNAL
from .output import TurnOutput
from .response import TurnResponse
from .step_journal import StepJournal
from .steps import TurnParkedError
from .turn_services import TurnServices

log = logging.getLogger(__name__)

M = TypeVar("M", bound=BaseModel)


class _TurnTools:
    """Parts of a turn that few turns use (`SessionTools`, `ResponseTools`).

    It does not know the turn: that would make a circle, which only the garbage collector frees.
    """

    __slots__ = ("_incoming", "_output", "_person", "_services", "_steps", "_task")

    def __init__(
        self,
        services: TurnServices,
        incoming: InboundRequest,
        steps: StepJournal,
        output: TurnOutput,
        person: ActivePerson,
        task: asyncio.Task[Any] | None,
    ) -> None:
        self._services = services
        self._incoming = incoming
        self._steps = steps
        self._output = output
        self._person = person
        self._task = task

    def open_schedules(self) -> SessionSchedules:
        """Return the schedules of the turn."""
        return self._services.initiative.open_schedules(self._incoming, self._steps, self._person)

    def open_questions(self) -> Any:
        """Return the questions of the turn to people."""
        return self._services.questions.open(self._incoming, self._steps, self._output, self._task)


@dataclass(slots=True, eq=False)
class Turn:
    """One admitted request in its conversation, with the agent's request, session and response for it."""

    services: TurnServices
    mailbox: Mailbox
    conversation: ActiveConversation
    queued: QueuedRequest
    output: TurnOutput
    started_at: datetime
    person: ActivePerson | None
    """The person whose variables the turn may use."""
    request: AgentRequest = field(init=False)
    session: TurnSession = field(init=False)
    response: TurnResponse = field(init=False)
    changes: SessionChanges = field(init=False)
    """The changes that the agent makes to its session."""
    steps: StepJournal = field(init=False)
    """The durable steps of the turn."""
    started_at_s: float = field(init=False)
    """Time of the start, in seconds of the clock `Metrics.now`."""
    work: Awaitable[object] | None = None
    """The call of the agent, once it has begun."""
    has_failed: bool = False
    """True if the turn counts as failed in the status of the conversation."""
    counted_tokens: int = 0
    """The tokens of this run and the earlier ones that are counted."""
    root: str = ""
    """The person behind the request, as in a `TurnRecord`, once the turn is encoded."""

    def __post_init__(self) -> None:
        services, active, queued = self.services, self.conversation, self.queued
        self.started_at_s = time.monotonic()
        zone = services.policy.notifications.zone
        self.request = _make_request(active, queued, self.started_at, services.policy.operators, zone)
        identity = active.identity_for(queued.incoming.kind, queued.incoming.nickname)
        earlier = queued.incoming.earlier_runs
        self.steps = StepJournal(services.repository.inbox, queued.inbox_row, queued.key, earlier)
        person = queued.incoming.person
        self.changes = SessionChanges(
            active.variables, self.person.variables if self.person is not None else None, active.shared
        )
        self.session = TurnSession(
            active.record,
            active.turns,
            identity,
            services.repository,
            self.changes,
            self.steps,
            services.history_windows,
            person,
        )
        self.response = TurnResponse(self.output, self.request, queued.incoming, services.repository)
        task = self.mailbox.worker if queued.command is None else None
        tools = _TurnTools(services, queued.incoming, self.steps, self.output, active.person, task)
        self.session.tools = self.response.tools = tools
        if earlier is not None:
            self.changes.repeat(earlier.values, self.steps.fail)
            self.output.repeat(earlier.parts)
            self.session.later_turns = max(0, active.record.turns - earlier.turns)
            self.counted_tokens = earlier.tokens

    def assist(self) -> Awaitable[object]:
        """Call the agent, through its interceptors."""
        services = self.services
        if services.chain is not None:
            return services.chain(self.request, self.session, self.response)
        return services.agent.assist(self.request, self.session, self.response)

    @property
    def is_deleted(self) -> bool:
        """True if the conversation was deleted during the turn, because the agent did not stop when it was cancelled."""
        return self.mailbox.active is not self.conversation

    @property
    def last_step(self) -> str:
        """The name of its last durable step; empty before the first."""
        return self.steps.last_name

    async def run(self, work: Callable[[], Awaitable[object]]) -> TurnEvent | None:
        """Run `assist`, or a command of the agent, and return the last event of the reply.

        Any exception of `work` becomes a failure of this turn only. Returns None if the sender has cancelled the request.
        StoreError if the request runs again, and its durable steps cannot be read.
        """
        services, mailbox, output, steps = self.services, self.mailbox, self.output, self.steps
        if self.queued.is_redelivered:
            await steps.load()
        request = self.request if self.queued.incoming.earlier_runs is None else _without_deadline(self.request)
        token = CURRENT_REQUEST.set(request)
        CURRENT_JOURNAL.set(steps)
        task = mailbox.worker
        deadline, syncs = None, DeferredSyncs()
        running = services.crash_guard.running
        try:
            if mailbox.is_cancelled:
                output.cancel()
                return None
            mailbox.turn = self
            # The worker gives it back once the turn is stored.
            mailbox.running_slot = slot = running.free_slots.pop() if running.free_slots else SPARE_SLOT
            running.slots[slot] = self.queued.inbox_row
            if not self.conversation.has_run:
                self.conversation.has_run = True
                await self._keep_request(slot)
            try:
                if not services.lifecycle.is_ready:
                    deadline = Deadline(services.assist_timers, task)
                    await deadline.run(services.lifecycle.ensure_started())
                CURRENT_DEFERRED_SYNCS.set(syncs)
                CURRENT_HOLDER.set((running.holder, self.queued.inbox_row))
                awaitable = self.work = work()
                deadline = Deadline(services.job_timers if self.queued.incoming.kind.is_job else services.assist_timers, task)
                returned = await deadline.run(awaitable)
            finally:
                syncs.close()
                mailbox.turn = mailbox.current = None
            if steps.mismatch is not None or steps.earlier_runs is not None or steps.asked:
                self._raise_caught()
            if returned is not None:
                services.warn_of_return("assist", returned)
            if task is not None and task.cancelling():
                await self._clear_cancellation()
            if mailbox.is_cancelled:  # the agent has caught the cancellation, and went on
                output.cancel()
                return None
            output.is_held = True
            if syncs.memories:
                await syncs.run()
            if output.streams:
                await output.close_streams()
            if task is not None and task.cancelling():
                await self._clear_cancellation()
        except BaseException as error:
            # Also `TurnParkedError`; sys.exit() and KeyboardInterrupt, which would end the whole process; and an agent that
            # cancels its own task. A Ctrl-C is a signal to the event loop, and raises nothing here.
            if isinstance(error, asyncio.CancelledError) and services.mailboxes.is_cancelling_turns:
                output.abandon()
                raise
            await self._clear_cancellation()
            await self._sync_after_failure(syncs)
            if mailbox.is_cancelled:
                output.cancel()
                return None
            if steps.asked:
                return Parked()  # also if the agent has caught the end of the run, or has raised something else then
            is_late = isinstance(error, TimeoutError) and deadline is not None and deadline.has_expired
            if steps.mismatch is not None:
                self.changes.discard()
            return await self._report_failure(steps.mismatch or error, is_late=is_late)
        finally:
            steps.is_closed = True
            CURRENT_REQUEST.reset(token)
        if (reported_error := output.reported_error) is not None:
            code = reported_error.code or ErrorCode.INTERNAL
            if code == ErrorCode.TOO_MANY_REQUESTS:
                services.metrics.refusals["budget"] += 1
            else:
                services.metrics.record_failure("it reported an error")
            if (trace := TURN_TRACE.get()) is not None:
                trace.turn_span.fail(str(int(code)), "the agent reported an error")
            return Failed(reported_error.user_message, int(code), reported_error.recoverable, is_reported=True)
        return Completed(mailbox.conversation_id or "", "completed" if self.changes.is_ended else "active")

    async def _keep_request(self, slot: int) -> None:
        """Keep the request until it is durable: if it ends the process, the next start counts that."""
        stored, running = self.queued.stored, self.services.crash_guard.running
        if stored.is_done:
            return
        if running.keep(slot, stored.rows):
            stored.on_stored(lambda _: running.drop(slot))
            stored.on_failed(lambda _: running.drop(slot))
        else:
            await stored.wait()

    def _raise_caught(self) -> NoReturn:
        """Raise the reason why the turn ends or fails, which the agent has caught."""
        if self.steps.asked:
            raise TurnParkedError
        raise self.steps.mismatch or self.steps.make_missing()

    async def _report_failure(self, error: BaseException, *, is_late: bool) -> TurnEvent:
        """Log a failure with its traceback and store it. Tell the sender the number of the incident only.

        Raise LeaseLostError instead: another worker runs the request.
        """
        if isinstance(error, LeaseLostError):
            raise error
        agent, incident = self.services.jid, self.services.incidents.make_number()
        code: int = ErrorCode.TIMEOUT if is_late else ErrorCode.INTERNAL
        problem = describe_for_log(error)
        if is_late:
            rules = self.services.policy.rules
            limit_s = rules.job_timeout_s if self.queued.incoming.kind.is_job else rules.assist_timeout_s
            problem = f"assist took longer than {limit_s:g} s"
            log.error("%s: incident %s: %s", agent, incident, problem, extra={"incident": incident})
            text = translate(
                "I could not finish this within {limit} s (incident {incident}).", limit=f"{limit_s:g}", incident=incident
            )
        elif isinstance(error, StoreError) and not isinstance(error, ContentRefusedError):
            code = ErrorCode.UNAVAILABLE
            log.error("%s: incident %s: %s", agent, incident, error, extra={"incident": incident})
            text = translate(
                "I cannot read or write my memory, so this is not stored. Please try again later (incident {incident}).",
                incident=incident,
            )
        else:
            log.error("%s: incident %s", agent, incident, exc_info=error, extra={"incident": incident})
            text = translate("Something went wrong on my side (incident {incident}).", incident=incident)
        self.services.metrics.record_failure(f"{problem} (incident {incident})")
        if (trace := TURN_TRACE.get()) is not None:
            trace.turn_span.set({spans.INCIDENT: incident})
            trace.turn_span.fail(type(error).__name__, f"incident {incident}")
        if not self.is_deleted:
            record = self.conversation.record
            person = self.queued.incoming.stored_root or record.owner
            await self.services.incidents.record(incident, error, person, record.conversation_id).wait()
        self.output.abort_streams(N_("the turn failed"))
        self.output.resume()
        self.output.emit_error(UserErrorBlock(user_message=text, recoverable=True, code=code))
        self.has_failed = True
        return Failed(text, code, True, incident, is_reported=True)

    async def _sync_after_failure(self, syncs: DeferredSyncs) -> None:
        """Sync the interaction memory that the agent wrote before it failed or was stopped."""
        try:
            await syncs.run()
        except StoreError as error:
            log.error("%s: memories of a failed turn may be lost in a power cut: %s", self.services.jid, error)

    async def _clear_cancellation(self) -> None:
        """Clear a cancellation by the agent itself: it ends the turn, and not the work after the turn."""
        task = self.mailbox.worker
        if task is None or not task.cancelling() or self.services.mailboxes.is_cancelling_turns:
            return
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # a cancellation that is not delivered yet
        while task.uncancel():
            pass

    async def close_cancelled(self) -> None:
        """Close the request of a turn that its sender has cancelled. What it cost is counted."""
        usage = await self.count_usage(sum_usage(self.output.events))
        await self.services.repository.inbox.finish(self.queued.inbox_row, self.conversation.record, None, None, usage)

    async def count_usage(self, usage: dict[str, Any]) -> list[Variable]:
        """Add the tokens of the turn to the counters, and return the counters as variables to store.

        A run that begins anew after a question reports what the earlier ones have used, too; that is counted already.
        """
        tokens = usage.get("total_tokens")
        if not isinstance(tokens, int) or tokens <= self.counted_tokens:
            return []
        record, new_tokens = self.conversation.record, tokens - self.counted_tokens
        self.counted_tokens = tokens
        person = self.queued.incoming.person or record.owner
        return await self.services.usage.add({"total_tokens": new_tokens}, person, record.conversation_id)

    def store(
        self, final_messages: list[OutboundMessage], turn: TurnRecord | None, usage: Sequence[Variable] = ()
    ) -> Commit[bool]:
        """Store the conversation, the turn, the reply and the variables in one transaction. A command has no turn.

        `final_messages`, the rest of the reply from `TurnOutput.finish`, leave in the moment in which that is durable.
        The request itself may have failed to be stored: `queued.stored` tells.
        """
        variables, incoming = [*self.changes.close(), *usage], self.queued.incoming
        also: Rows = ()
        if incoming.kind.is_job and turn is not None:
            also = self.services.initiative.notify_of_job(incoming, self.queued.key, self.output.as_blocks())
        commit = self.services.repository.inbox.finish(
            self.queued.inbox_row,
            self.conversation.record,
            turn,
            self.output.stored_reply,
            variables,
            is_command=turn is None,
            also=also,
        )
        send_final: Callable[[bool], None] = partial(self._send_final, final_messages)
        if self.services.outbox.is_traced and (trace := TURN_TRACE.get()) is not None:
            _follow_commit(trace, commit)
            send_final = trace.bind(send_final)  # it is called in the context of the writer
        commit.on_stored(send_final)
        if also:
            commit.on_stored(lambda _: self.services.initiative.wake())
        return commit

    def _send_final(self, final_messages: list[OutboundMessage], _: bool) -> None:
        """Send the rest of the reply. The request is closed when the server has all of it."""
        outbox = self.services.outbox
        if not self.queued.stored.is_stored:
            return
        try:
            if final_messages:
                outbox.send_final(self.queued.incoming.channel_name, self.queued.inbox_row, final_messages)
            elif self.output.messages:
                outbox.close_when_acknowledged(self.queued.inbox_row, self.output.last_sent)
        except Exception:
            # A fault of the platform. The reply is stored, and is sent after the next start.
            log.exception("%s: cannot send the answer to %s", self.services.jid, self.queued.incoming.sender)
            self.services.metrics.record_failure("an answer cannot be sent; see the log")

    def encode(self, usage: dict[str, Any], final_event: TurnEvent) -> str:
        """Encode the turn as the JSON text of an `Interaction`. `usage` is its use of language models."""
        request, reply, incoming = self.request, self.output, self.queued.incoming
        key = reply.encoder.key
        request_id = incoming.request_id or key
        output: dict[str, Any] = {"text": "\n\n".join(reply.texts)}
        if reply.data_blocks:
            output["data"] = reply.data_blocks
        if reply.reported_error is not None:
            output["error"] = reply.reported_error.dump()
        meta: dict[str, Any] = {
            "request_id": request_id,
            "channel": incoming.kind.word,
            "duration_ms": int((time.monotonic() - self.started_at_s) * 1_000_000) / 1000,
        }
        if isinstance(nickname := request.metadata.get("nickname"), str):
            meta["nickname"] = nickname
        if incoming.kind.is_door and (message_id := incoming.metadata.get("message_id")) is not None:
            meta["message_id"] = message_id
        may_differ = incoming.context is not NO_CONTEXT or not ROOT_METADATA.isdisjoint(incoming.metadata)
        if may_differ and (root := incoming.stored_root) is not None:
            meta[ROOT_SENDER] = root  # so that the data of a person are found who has not written to this agent
            self.root = root or HIDDEN_PERSON
        if usage:
            meta["usage"] = usage
        if isinstance(final_event, Failed):
            if final_event.has_asked:
                meta["has_asked"] = True
            if final_event.incident is not None:
                meta["incident"] = final_event.incident
        if self.changes.is_ended and "incident" not in meta:
            meta["state"] = "completed"
        fields = {
            "interaction_id": key,
            "timestamp": self.started_at,
            "input": request.payload,
            "output": output,
            "meta": meta,
            "lineage": {"root_request_id": incoming.root_request_id or request_id},
        }
        if reply.events:
            fields["events"] = reply.events
        try:
            return to_json(fields, inf_nan_mode="null").decode()
        except ValueError:  # lone surrogates, or values in the payload that are no JSON
            fields["input"] = {name: value for name, value in request.payload.items() if _is_json({name: value})}
            return to_json(replace_lone_surrogates(fields), fallback=repr).decode()


def construct_valid(model: type[M], fields: dict[str, Any]) -> M:
    """Build a frozen value from fields that are known to be valid, without checking them. All fields must be given.

    It serves the request, which is built for every turn. `model_construct`, which fills in missing fields, costs more than
    validation.
    """
    value = object.__new__(model)
    object.__setattr__(value, "__dict__", fields)
    object.__setattr__(value, "__pydantic_fields_set__", _field_names(model))
    object.__setattr__(value, "__pydantic_extra__", None)
    object.__setattr__(value, "__pydantic_private__", None)
    return value


@cache
def _field_names(model: type[BaseModel]) -> set[str]:
    """Return the set of field names that all complete values of a model share. Frozen values never change it."""
    return set(model.model_fields)


def _make_request(
    active: ActiveConversation, queued: QueuedRequest, now: datetime, operators: Collection[str], default_zone: str
) -> AgentRequest:
    incoming = queued.incoming
    metadata: dict[str, Any] = {
        **incoming.metadata,
        "conversation_id": active.record.conversation_id,
        "sender": incoming.sender,
        "channel": incoming.kind.word,
    }
    if incoming.thread:
        metadata["thread"] = incoming.thread
    if (context := incoming.context) is not NO_CONTEXT:
        if context.hops:
            metadata["hops"] = context.hops
        if context.root_sender:
            metadata[ROOT_SENDER] = context.root_sender
        if context.hides_person:
            metadata[HIDES_PERSON] = True
        if context.chain:
            metadata[CHAIN] = list(context.chain)
        if context.deadline:
            metadata[DEADLINE] = context.deadline
    if incoming.owner in operators:  # the owner of what is said in a room is the room, which vouches for nobody
        metadata["operator"] = True
    if (earlier := incoming.earlier_runs) is not None:
        metadata |= earlier.metadata
    else:
        if queued.is_redelivered:
            metadata["redelivered"] = True
        if (language := active.person.preferences.language) is not None:
            metadata["preferred_language"] = language
        if (zone := active.person.preferences.zone or default_zone) != "UTC":
            metadata["zone"] = zone
    request_id = incoming.request_id or queued.key
    return construct_valid(
        AgentRequest,
        {
            "request_id": request_id,
            "session_id": active.session_uuid,
            "root_request_id": incoming.root_request_id or request_id,
            "parent_request_id": incoming.parent_request_id,
            "created_at": now if earlier is None else datetime.fromisoformat(earlier.started_at),
            "payload": dict(incoming.payload),
            "capabilities": incoming.capabilities,
            "metadata": metadata,
        },
    )


def _follow_commit(trace: TurnTrace, commit: Commit[bool]) -> None:
    """Add a span to the trace of a turn, until its end is durable."""
    span = trace.begin(spans.COMMIT, "internal", {})

    def end(outcome: object) -> None:
        if isinstance(outcome, BaseException):
            span.fail(type(outcome).__name__)
        span.end()

    commit.on_stored(end)
    commit.on_failed(end)


def _without_deadline(request: AgentRequest) -> AgentRequest:
    """Return a request whose sender no longer waits for the reply, since it was told that a person is asked."""
    metadata = {name: value for name, value in request.metadata.items() if name != DEADLINE}
    return request.model_copy(update={"metadata": metadata})


_JSON: TypeAdapter[Any] = TypeAdapter(JsonValue)


def _is_json(value: object) -> bool:
    try:
        _JSON.validate_python(value)
    except ValidationError:
        return False
    return True
