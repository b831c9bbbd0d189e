"""A turn: one admitted request and its reply, made for the agent, run under its time limit, and written down."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple, NoReturn, TypeVar

from pydantic import BaseModel, JsonValue, TypeAdapter, ValidationError
from pydantic_core import to_json

from ...concurrency import CURRENT_HOLDER, Deadline, DeadlineTimers
from ...contracts import Agent, AgentRequest, ErrorCode, Interceptor, UserErrorBlock
from ...domain.callers import HIDDEN_PERSON
from ...domain.messages import (
    CHAIN,
    DEADLINE,
    HIDES_PERSON,
    MAY_CHANGE,
    NO_CONTEXT,
    ROOT_METADATA,
    ROOT_SENDER,
    Completed,
    EarlierRuns,
    Failed,
    InboundRequest,
    Parked,
    TurnEvent,
)
from ...domain.observability import spans
from ...domain.observability.tracing import TURN_TRACE
from ...domain.policy import Policy
from ...domain.texts.text import replace_lone_surrogates
from ...domain.texts.translation import N_, translate
from ...exceptions import ContentRefusedError, LeaseLostError, StoreError, describe_for_log
from ...memory import (
    CURRENT_DEFERRED_SYNCS,
    ActiveConversation,
    ActivePerson,
    DeferredSyncs,
    HistoryWindows,
    SessionChanges,
    TurnSession,
)
from ...storage import SPARE_SLOT, AgentRepository, Commit
from ..conversations.agent_lifecycle import AgentLifecycle
from ..crash_guard import CrashGuard
from ..initiative.schedules import AgentSchedules
from ..initiative.turn_schedules import TurnSchedules
from ..interceptors import chain_around
from ..mailboxes.mailbox import Mailbox, QueuedRequest
from ..observability.incidents import IncidentRecorder
from ..observability.metrics import Metrics
from ..questions.desk import QuestionDesk
from ..questions.turn_questions import TurnQuestions
from ..replies.output import TurnOutput
from ..steps.current import CURRENT_JOURNAL, CURRENT_REQUEST
from ..steps.step_journal import StepJournal
from ..steps.steps import TurnParkedError
from .response import TurnResponse

log = logging.getLogger(__name__)

M = TypeVar("M", bound=BaseModel)


@dataclass(slots=True, eq=False)
class Turn:
    """One admitted request in its conversation, with the agent's request, session and response for it."""

    mailbox: Mailbox
    conversation: ActiveConversation
    queued: QueuedRequest
    output: TurnOutput
    started_at: datetime
    request: AgentRequest
    session: TurnSession
    response: TurnResponse
    changes: SessionChanges
    """The changes that the agent makes to its session."""
    steps: StepJournal
    """The durable steps of the turn."""
    started_at_s: float = field(default_factory=time.monotonic)
    """Time of the start, in seconds of the clock `Metrics.now`."""
    work: Awaitable[object] | None = None
    """The call of the agent, once it has begun."""
    has_failed: bool = False
    """True if the turn counts as failed in the status of the conversation."""
    counted_tokens: int = 0
    """The tokens of this run and the earlier ones that are counted."""
    root: str = ""
    """The person behind the request, as in a `TurnRecord`, once the turn is encoded."""

    @property
    def is_deleted(self) -> bool:
        """True if the conversation was deleted during the turn, because the agent did not stop when it was cancelled."""
        return self.mailbox.active is not self.conversation

    @property
    def last_step(self) -> str:
        """The name of its last durable step; empty before the first."""
        return self.steps.last_name

    def describe_runs(self) -> EarlierRuns:
        """Return what the next run is told, which begins when the question of this one is answered."""
        earlier, journal = self.queued.incoming.earlier_runs, self.steps
        return EarlierRuns(
            1 if earlier is None else earlier.runs + 1,
            self.started_at.isoformat() if earlier is None else earlier.started_at,
            self.conversation.record.turns if earlier is None else earlier.turns,
            self.output.part_count,
            journal.uses,
            tuple((each.step.name, each.step.number) for each in journal.asked),
            self.changes.seen,
            {name: value for name, value in self.request.metadata.items() if name in MAY_CHANGE},
            self.counted_tokens,
        )

    def encode(self, usage: dict[str, Any], final_event: TurnEvent) -> str:
        """Encode the turn as the JSON text of an `Interaction`. `usage` is its use of language models."""
        request, reply, incoming = self.request, self.output, self.queued.incoming
        key = reply.sender.encoder.key
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
            "lineage": {"root_request_id": incoming.context.root_request_id or request_id},
        }
        if reply.events:
            fields["events"] = reply.events
        try:
            return to_json(fields, inf_nan_mode="null").decode()
        except ValueError:  # lone surrogates, or values in the payload that are no JSON
            fields["input"] = {name: value for name, value in request.payload.items() if _is_json({name: value})}
            return to_json(replace_lone_surrogates(fields), fallback=repr).decode()


class _TurnTools(NamedTuple):
    """The parts of a turn that its session and its response use (`SessionTools`)."""

    steps: StepJournal
    schedules: AgentSchedules
    desk: QuestionDesk
    incoming: InboundRequest
    person: ActivePerson
    output: TurnOutput
    task: asyncio.Task[None] | None

    def open_schedules(self) -> TurnSchedules:
        return TurnSchedules(self.schedules, self.steps, self.incoming, self.person)

    def open_questions(self) -> TurnQuestions:
        return TurnQuestions(self.desk, self.incoming, self.steps, self.output, self.task)


class TurnFactory:
    """Makes the turns of one agent."""

    def __init__(
        self,
        repository: AgentRepository,
        history_windows: HistoryWindows,
        schedules: AgentSchedules,
        desk: QuestionDesk,
        policy: Policy,
        clock: Callable[[], datetime],
    ) -> None:
        self._repository = repository
        self._history_windows = history_windows
        self._schedules = schedules
        self._desk = desk
        self._operators = policy.operators
        self._clock = clock

    def make(
        self,
        mailbox: Mailbox,
        active: ActiveConversation,
        queued: QueuedRequest,
        output: TurnOutput,
        person: ActivePerson | None,
        now: datetime | None = None,
    ) -> Turn:
        """Make the turn of a request. `person` is the one whose variables it may use."""
        incoming, repository, now = queued.incoming, self._repository, now or self._clock()
        request = _make_request(active, queued, now, self._operators, self._schedules.zone)
        earlier = incoming.earlier_runs
        owner = incoming.owner if incoming.context is NO_CONTEXT else incoming.person  # nearly always the first
        identity = active.identity_for(incoming.kind, incoming.room.nickname)
        steps = StepJournal(repository.inbox, queued.inbox_row, queued.key, earlier)
        changes = SessionChanges(active.variables, person.variables if person is not None else None, active.shared)
        task = mailbox.worker if queued.command is None else None
        tools = _TurnTools(steps, self._schedules, self._desk, incoming, active.person, output, task)
        session = TurnSession(
            active.record,
            active.turns,
            identity,
            repository,
            changes,
            self._history_windows,
            tools,
            owner,
        )
        response = TurnResponse(output, request, incoming, repository, tools.open_questions)
        turn = Turn(mailbox, active, queued, output, now, request, session, response, changes, steps)
        if earlier is not None:
            changes.repeat(earlier.values, steps.fail)
            output.repeat(earlier.parts)
            session.later_turns = max(0, active.record.turns - earlier.turns)
            turn.counted_tokens = earlier.tokens
        return turn


class TurnRunner:
    """Runs the turns of one agent. `cancelling` is set while a stop cancels them: their requests run again then."""

    def __init__(
        self,
        agent: Agent,
        interceptors: Sequence[Interceptor],
        lifecycle: AgentLifecycle,
        crash_guard: CrashGuard,
        metrics: Metrics,
        incidents: IncidentRecorder,
        policy: Policy,
        cancelling: asyncio.Event,
    ) -> None:
        self._agent = agent
        self._chain = chain_around(agent, interceptors, self._warn_of_return)
        """The agent's `assist` with the interceptors around it; None if none is around it."""
        self._lifecycle = lifecycle
        self._running = crash_guard.running
        self._metrics = metrics
        self._incidents = incidents
        self._policy = policy
        self._cancelling = cancelling
        self._jid = incidents.agent
        self._assist_timers = DeadlineTimers(policy.rules.assist_timeout_s, self._jid, policy.timings.blocked_s)
        self._job_timers = DeadlineTimers(policy.rules.job_timeout_s, self._jid, policy.timings.blocked_s)
        """The timers of the work that `session.later` begins."""
        self._warned_of_return: set[str] = set()

    def abandon_all(self) -> None:
        """Wait no more for turns and jobs that ignore their cancellation."""
        self._assist_timers.abandon_all()
        self._job_timers.abandon_all()

    async def run(self, turn: Turn, work: Callable[[], Awaitable[object]] | None = None) -> TurnEvent | None:
        """Run `assist`, or the work of a command of the agent, and return the last event of the reply.

        Any exception becomes a failure of this turn only. Returns None if the sender has cancelled the request.
        StoreError if the request runs again, and its durable steps cannot be read.
        """
        queued, mailbox = turn.queued, turn.mailbox
        output, steps = turn.output, turn.steps
        if queued.is_redelivered:
            await steps.load()
        request = turn.request if queued.incoming.earlier_runs is None else _without_deadline(turn.request)
        token = CURRENT_REQUEST.set(request)
        CURRENT_JOURNAL.set(steps)
        task = mailbox.worker
        deadline, syncs = None, DeferredSyncs()
        running = self._running
        try:
            if mailbox.is_cancelled:
                output.cancel()
                return None
            mailbox.turn = turn
            # The worker gives it back once the turn is stored.
            mailbox.running_slot = slot = running.free_slots.pop() if running.free_slots else SPARE_SLOT
            running.slots[slot] = queued.inbox_row
            if not turn.conversation.has_run:
                turn.conversation.has_run = True
                await self._keep_request(queued.stored, slot)
            try:
                if not self._lifecycle.is_ready:
                    deadline = Deadline(self._assist_timers, task)
                    await deadline.run(self._lifecycle.ensure_started())
                CURRENT_DEFERRED_SYNCS.set(syncs)
                CURRENT_HOLDER.set((running.holder, queued.inbox_row))
                call = self._agent.assist if self._chain is None else self._chain
                awaitable = turn.work = call(turn.request, turn.session, turn.response) if work is None else work()
                deadline = Deadline(self._job_timers if queued.incoming.kind.is_job else self._assist_timers, task)
                returned = await deadline.run(awaitable)
            finally:
                syncs.is_closed = True
                mailbox.turn = mailbox.current = None
            if steps.mismatch is not None or steps.earlier_runs is not None or steps.asked:
                _raise_caught(steps)
            if returned is not None:
                self._warn_of_return("assist", returned)
            if task is not None and task.cancelling():
                await self._clear_cancellation(task)
            if mailbox.is_cancelled:  # the agent has caught the cancellation, and went on
                output.cancel()
                return None
            output.sender.is_held = True
            if syncs.memories:
                await syncs.run()
            if output.streams:
                await output.close_streams()
            if task is not None and task.cancelling():
                await self._clear_cancellation(task)
        except BaseException as error:
            # Also `TurnParkedError`; sys.exit() and KeyboardInterrupt, which would end the whole process; and an agent that
            # cancels its own task. A Ctrl-C is a signal to the event loop, and raises nothing here.
            if isinstance(error, asyncio.CancelledError) and self._cancelling.is_set():
                output.abandon()
                raise
            await self._clear_cancellation(task)
            await self._sync_after_failure(syncs)
            if mailbox.is_cancelled:
                output.cancel()
                return None
            if steps.asked:
                return Parked()  # also if the agent has caught the end of the run, or has raised something else then
            is_late = isinstance(error, TimeoutError) and deadline is not None and deadline.has_expired
            if steps.mismatch is not None:
                turn.changes.discard()
            return await self._report_failure(turn, steps.mismatch or error, is_late=is_late)
        finally:
            steps.is_closed = True
            CURRENT_REQUEST.reset(token)
        if (reported_error := output.reported_error) is not None:
            code = reported_error.code or ErrorCode.INTERNAL
            if code == ErrorCode.TOO_MANY_REQUESTS:
                self._metrics.refusals["budget"] += 1
            else:
                self._metrics.record_failure("it reported an error")
            if (trace := TURN_TRACE.get()) is not None:
                trace.turn_span.fail(str(int(code)), "the agent reported an error")
            return Failed(reported_error.user_message, int(code), reported_error.recoverable, is_reported=True)
        return Completed(mailbox.conversation_id or "", "completed" if turn.changes.is_ended else "active")

    async def _keep_request(self, stored: Commit[bool], slot: int) -> None:
        """Keep the request until it is durable: if it ends the process, the next start counts that."""
        running = self._running
        if stored.is_done:
            return
        if running.keep(slot, stored.rows):
            stored.on_stored(lambda _: running.drop(slot))
            stored.on_failed(lambda _: running.drop(slot))
        else:
            await stored.wait()

    def _warn_of_return(self, name: str, returned: object) -> None:
        """Log once for each `assist` that its return value is not sent: to return the reply is the most natural mistake."""
        if name not in self._warned_of_return:
            self._warned_of_return.add(name)
            log.warning(
                "%s: %s returned a %s; return values are ignored. Send it with `await response.markdown(…)`",
                self._jid,
                name,
                type(returned).__name__,
            )

    async def _report_failure(self, turn: Turn, error: BaseException, *, is_late: bool) -> TurnEvent:
        """Log a failure with its traceback and store it. Tell the sender the number of the incident only.

        Raise LeaseLostError instead: another worker runs the request.
        """
        if isinstance(error, LeaseLostError):
            raise error
        agent, incident = self._jid, self._incidents.make_number()
        code: int = ErrorCode.TIMEOUT if is_late else ErrorCode.INTERNAL
        problem = describe_for_log(error)
        if is_late:
            policy = self._policy
            limit_s = policy.rules.job_timeout_s if turn.queued.incoming.kind.is_job else policy.rules.assist_timeout_s
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
        self._metrics.record_failure(f"{problem} (incident {incident})")
        if (trace := TURN_TRACE.get()) is not None:
            trace.turn_span.set({spans.INCIDENT: incident})
            trace.turn_span.fail(type(error).__name__, f"incident {incident}")
        if not turn.is_deleted:
            record = turn.conversation.record
            person = turn.queued.incoming.stored_root or record.owner
            await self._incidents.record(incident, error, person, record.conversation_id).wait()
        turn.output.abort_streams(N_("the turn failed"))
        turn.output.resume()
        turn.output.emit_error(UserErrorBlock(user_message=text, recoverable=True, code=code))
        turn.has_failed = True
        return Failed(text, code, True, incident, is_reported=True)

    async def _sync_after_failure(self, syncs: DeferredSyncs) -> None:
        """Sync the interaction memory that the agent wrote before it failed or was stopped."""
        try:
            await syncs.run()
        except StoreError as error:
            log.error("%s: memories of a failed turn may be lost in a power cut: %s", self._jid, error)

    async def _clear_cancellation(self, task: asyncio.Task[None] | None) -> None:
        """Clear a cancellation by the agent itself: it ends the turn, and not the work after the turn."""
        if task is None or not task.cancelling() or self._cancelling.is_set():
            return
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # a cancellation that is not delivered yet
        while task.uncancel():
            pass


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
            "root_request_id": context.root_request_id or request_id,
            "parent_request_id": context.parent_request_id,
            "created_at": now if earlier is None else datetime.fromisoformat(earlier.started_at),
            "payload": dict(incoming.payload),
            "capabilities": context.capabilities,
            "metadata": metadata,
        },
    )


_JSON: TypeAdapter[Any] = TypeAdapter(JsonValue)


def _is_json(value: object) -> bool:
    try:
        _JSON.validate_python(value)
    except ValidationError:
        return False
    return True


def _raise_caught(steps: StepJournal) -> NoReturn:
    """Raise the reason why a turn ends or fails, which the agent has caught."""
    if steps.asked:
        raise TurnParkedError
    raise steps.mismatch or steps.make_missing()


def _without_deadline(request: AgentRequest) -> AgentRequest:
    """Return a request whose sender no longer waits for the reply, since it was told that a person is asked."""
    metadata = {name: value for name, value in request.metadata.items() if name != DEADLINE}
    return request.model_copy(update={"metadata": metadata})
