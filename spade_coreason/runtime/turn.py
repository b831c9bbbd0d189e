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

from ..codec import displayed
from ..concurrency import Limit
from ..contracts import AgentRequest, ErrorCode, UserErrorBlock
from ..contracts.base import of_valid
from ..domain import conversation
from ..domain.history import HeldTurn
from ..domain.messages import Completed, Failed, TurnEvent
from ..domain.text import printable
from ..exceptions import StoreError, unquoted
from ..memory import Memory, Session, Syncs, usage_in
from ..storage import Turn as TurnRow, Variable
from .context import Engine
from .mailbox import Lane, Waiting
from .peers import CURRENT_REQUEST
from .response import Response

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Turn:
    """A request that is admitted, in its conversation."""

    engine: Engine
    lane: Lane
    memory: Memory
    waiting: Waiting
    response: Response
    began: datetime
    request: AgentRequest = field(init=False)
    session: Session = field(init=False)
    has_failed: bool = False
    """Whether it counts as a failed turn."""

    def __post_init__(self) -> None:
        self.request = self.response.request = _request(self.memory, self.waiting, self.began)
        self.session = _session(self.engine, self.memory, self.waiting)

    async def answer(self) -> None:
        """Runs the agent, and stores the turn with its answer before the last of it leaves. `StoreError` if it cannot."""
        engine, incoming = self.engine, self.waiting.incoming
        engine.ends.begun(self.memory.row.conversation_id, self.memory.row.life.last_interaction)
        if self.memory.row.life.interaction_count == 1:
            engine.usage.begins(self.memory.row.conversation_id)
        if incoming.wants_marker and incoming.stanza_id:
            engine.outbox.send([displayed(incoming)])
        last = await self.run(self._assist)
        if self.is_forgotten:
            self.response.withdraw()
            engine.store.inbox.close(self.waiting.row)
        elif last is None:
            used = await self._counted(usage_in(self.response.events))
            await engine.store.inbox.finish(self.waiting.row, self.memory.row, None, None, used)
        else:
            await self._finish(last)

    def _assist(self) -> Awaitable[object]:
        return self.engine.agent.assist(self.request, self.session, self.response)

    @property
    def is_forgotten(self) -> bool:
        """Whether all of it was forgotten meanwhile: the agent did not let itself be stopped."""
        return self.lane.memory is not self.memory

    async def run(self, work: Callable[[], Awaitable[object]]) -> TurnEvent | None:
        """Runs `assist`, or a command of the agent's; gives its last event. It alone fails, whatever it raises.

        None where whoever asked took the request back meanwhile.
        """
        engine, lane, response = self.engine, self.lane, self.response
        token = CURRENT_REQUEST.set(self.request)
        task = lane.worker
        limit, syncs = Limit(engine.assist_alarms, task), Syncs()
        try:
            if lane.is_withdrawn:
                response.withdraw()
                return None
            lane.is_assisting = True
            try:
                if not engine.lifecycle.stays_up():
                    await limit.hold(engine.lifecycle.ensure_started())
                    limit = Limit(engine.assist_alarms, task)
                syncs.begin()
                returned = await limit.hold(work())
            finally:
                syncs.end()
                lane.is_assisting, lane.current = False, None
            if returned is not None:
                self._say_what_nobody_hears(returned)
            if task is not None and task.cancelling():
                await self._take_back_cancels()
            response.hold()
            if syncs.memories:
                await syncs.carry_out()
            if response.streams:
                await response.close_streams()
            if task is not None and task.cancelling():
                await self._take_back_cancels()
        except BaseException as error:
            # Also sys.exit(), with which a task ends the whole process, and the agent's own cancelling of its task.
            is_given_up = isinstance(error, asyncio.CancelledError) and engine.is_giving_up
            if isinstance(error, KeyboardInterrupt) or is_given_up:
                response.abandon()
                raise
            await self._take_back_cancels()
            await self._sync_all_the_same(syncs)
            if lane.is_withdrawn:
                response.withdraw()
                return None
            return self._failed(error, is_late=isinstance(error, TimeoutError) and limit.has_expired)
        finally:
            CURRENT_REQUEST.reset(token)
        if (reported := response.reported_error) is not None:
            engine.activity.failed("it reported an error")
            code = reported.code or ErrorCode.INTERNAL
            return Failed(reported.user_message, int(code), reported.recoverable, reported=True)
        return Completed(lane.conversation_id or "", "completed" if self.session.is_ended else "active")

    def _say_what_nobody_hears(self, returned: object) -> None:
        """In the log, once: to return an answer is the most natural mistake."""
        if not self.engine.has_returned:
            self.engine.has_returned = True
            kind = type(returned).__name__
            log.warning(
                "%s: assist returned a %s, which nobody hears; say it: await response.markdown(…)", self.engine.jid, kind
            )

    def _failed(self, error: BaseException, *, is_late: bool) -> TurnEvent:
        """Says that the agent failed, here with its traceback, to whoever asked with the number of the incident only."""
        agent, incident = self.engine.jid, secrets.token_hex(4)
        code: int = ErrorCode.TIMEOUT if is_late else ErrorCode.INTERNAL
        problem = unquoted(error)
        if is_late:
            limit_s = self.engine.policy.assist_timeout_s
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
        self.engine.activity.failed(f"{problem} (incident {incident})")
        self.response.abort_streams("the turn failed")
        self.response.report(UserErrorBlock(user_message=text, recoverable=True, code=code))
        self.has_failed = True
        return Failed(text, code, True, incident, reported=True)

    async def _sync_all_the_same(self, syncs: Syncs) -> None:
        """What the agent remembered before it failed, or was stopped, stays remembered."""
        try:
            await syncs.carry_out()
        except StoreError as error:
            log.error("%s: what a turn that failed has remembered may be gone after a power cut: %s", self.engine.jid, error)

    async def _take_back_cancels(self) -> None:
        """An agent that cancelled its own task cancelled its turn, and not what comes after it."""
        task = self.lane.worker
        if task is None or not task.cancelling() or self.engine.is_giving_up:
            return
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # a cancel that is still to come
        while task.uncancel():
            pass

    async def _finish(self, last: TurnEvent) -> None:
        engine, memory, response, session = self.engine, self.memory, self.response, self.session
        rules = engine.policy.rules
        life = memory.row.life
        is_active = life.is_active  # whoever runs the agent may have ended it meanwhile
        if is_active:
            life = conversation.fail(life, rules) if self.has_failed else conversation.succeed(life)
        if session.is_ended:
            life = conversation.end(life)
        final = response.conclude(last)
        used = usage_in(response.events)
        turn = engine.governance.mark(HeldTurn(_turn_json(self._turn(used))))
        row = memory.row
        turns = memory.turns.followed_by(turn)
        window_start = engine.governance.prune(turns, row.turns + 1, memory.variables)
        row = row.with_turns(life, rules.max_interactions, max(window_start, row.window_start), row.turns + 1)
        memory.row = row  # what is changed while this is stored is stored after it
        counted = await self._counted(used) if used else ()
        await self.store_answer(final, TurnRow(response.voice.key, self.began, turn.text), counted)
        await self.waiting.is_new  # if that failed, the sender hears so, and the server keeps the request
        session.settle()
        memory.turns = turns
        engine.governance.absorb(memory)
        memory.last_answer = response.text.strip()
        engine.activity.answered(self.waiting.arrived)
        if log.isEnabledFor(logging.INFO):
            waited_ms = (engine.activity.now() - self.waiting.arrived) * 1000
            log.info("%s: has answered %s in %.0f ms", engine.jid, self.waiting.incoming.sender, waited_ms)
        if is_active and not life.is_active:
            await engine.ends.ended(row.conversation_id, life.state)

    async def _counted(self, used: dict[str, Any]) -> list[Variable]:
        """Counts what the turn used of language models."""
        return await self.engine.usage.add(used, self.memory.row.owner, self.memory.row.conversation_id) if used else []

    def store_answer(self, final: list[str], turn: TurnRow | None, used: Sequence[Variable] = ()) -> asyncio.Future[bool]:
        """Stores the conversation, the answer and the variables; of a command without a turn, as no turn is counted.

        `final`, what `conclude` left of the answer, leaves in the moment in which that is durable, and the future is done. The
        request may still be the one that was not stored: `waiting.is_new` says so.
        """
        stanzas = self.response.stanzas
        answer = to_json(stanzas).decode() if stanzas else None
        written = [*self.session.close(), *used]
        then = partial(self._send, final)
        return self.engine.store.inbox.finish(self.waiting.row, self.memory.row, turn, answer, written, then)

    def _send(self, final: list[str], _: bool) -> None:
        """Sends what is left of the answer; the request is closed when all of it has arrived."""
        is_new, outbox = self.waiting.is_new, self.engine.outbox
        if is_new.cancelled() or is_new.exception() is not None:
            return
        try:
            if final:
                outbox.send_final(self.waiting.row, final)
            elif self.response.stanzas:
                outbox.close_when_acknowledged(self.waiting.row, self.response.last_sent)
        except Exception:
            # A fault of ours. The answer is kept, and leaves after the next start.
            log.exception("%s: the answer to %s cannot be sent", self.engine.jid, self.waiting.incoming.sender)
            self.engine.activity.failed("an answer cannot be sent; the log has it")

    def _turn(self, used: dict[str, Any]) -> dict[str, Any]:
        """The fields of its Interaction; `used` is what it used of language models."""
        request, response, incoming = self.request, self.response, self.waiting.incoming
        key = response.voice.key
        request_id = incoming.request_id or key
        output: dict[str, Any] = {"text": response.text}
        if response.data_blocks:
            output["data"] = response.data_blocks
        if response.reported_error is not None:
            output["error"] = response.reported_error.dump()
        meta: dict[str, Any] = {
            "request_id": request_id,
            "language": incoming.language,
            "duration_ms": _milliseconds(self.engine.clock() - self.began),
        }
        if isinstance(nickname := request.metadata.get("nickname"), str):
            meta["nickname"] = nickname
        if used:
            meta["usage"] = used
        return {
            "interaction_id": key,
            "timestamp": self.began,
            "input": request.payload,
            "output": output,
            "events": response.events,
            "meta": meta,
            "lineage": {"root_request_id": incoming.root_request_id or request_id},
        }


def _request(memory: Memory, waiting: Waiting, now: datetime) -> AgentRequest:
    incoming = waiting.incoming
    metadata: dict[str, Any] = {
        **incoming.metadata,
        "conversation_id": memory.row.conversation_id,
        "sender": incoming.sender,
        "language": incoming.language,
    }
    if incoming.thread:
        metadata["thread"] = incoming.thread
    if incoming.hops:
        metadata["hops"] = incoming.hops
    if waiting.redelivered:
        metadata["redelivered"] = True
    if (preferred := memory.person.preferences.language) is not None:
        metadata["preferred_language"] = preferred
    request_id = incoming.request_id or waiting.key
    return of_valid(
        AgentRequest,
        {
            "request_id": request_id,
            "session_id": memory.session_uuid,
            "root_request_id": incoming.root_request_id or request_id,
            "parent_request_id": incoming.parent_request_id,
            "created_at": now,
            "payload": dict(incoming.payload),
            "capabilities": incoming.capabilities,
            "metadata": metadata,
        },
    )


def _session(engine: Engine, memory: Memory, waiting: Waiting) -> Session:
    return Session(
        memory.row,
        memory.turns,
        memory.identity(waiting.incoming.language, waiting.incoming.nickname),
        engine.store,
        memory.variables,
        memory.person.variables,
        taken_in=engine.governance.taken_in(memory.variables),
        knowledge=engine.knowledge,
        before_window=engine.governance.warn_of_everything,
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


def _turn_json(turn: dict[str, Any]) -> str:
    try:
        return to_json(turn, inf_nan_mode="null").decode()
    except ValueError:  # lone surrogates, or what an agent put into the payload and is no JSON
        asked = {name: value for name, value in turn["input"].items() if _is_json({name: value})}
        return to_json(printable({**turn, "input": asked}), fallback=repr).decode()
