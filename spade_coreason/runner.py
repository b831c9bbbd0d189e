"""One request through one agent: load, execute, update, prune, save (seed: Session Management, Runtime Behavior).

Needs no network: requests come in by `receive`, stanzas go out by the `send` given to `open`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import secrets
import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, NamedTuple
from uuid import UUID, uuid4

from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic_core import to_json

from . import conversation
from .admissions import Admissions
from .alarms import Alarms, Limit
from .codec import Completed, Failed, Incoming, Refused, Said, TurnEvent, displayed, owner_of, printable, voice_for
from .commands import Command, Commands, Outcome, Read, deleted
from .contracts import (
    AgentInterface,
    AgentRequest,
    ConversationState,
    ErrorCode,
    Interaction,
    LineageMetadata,
    MarkdownBlock,
    MemoryConfig,
    SessionState,
    UserErrorBlock,
)
from .contracts.base import utc_now
from .conversation import Life, Received, Rules, Verdict
from .ends import Ends, OnConversationEnd
from .exceptions import CoReasonError, StoreError
from .files import Files
from .filing import Filing
from .forget import Forgotten, forget_conversation, forget_person
from .governance import Governance
from .knowledge import Knowledge
from .lane import Errand, Lane, Lanes, Memory, Person, Waiting
from .lifecycle import Lifecycle, Mode
from .names import bare, choose, inbox_key, possible_ids, session_id, thread_of
from .notices import AGAIN_S, Notices
from .operators import PAUSED, Operators
from .own_commands import OwnCommand
from .placing import Places
from .preferences import PREFERENCES, USUAL, Preferences
from .pruning import most_held
from .response import Pace, Response, Send
from .retention import Purge, Purged, Retention
from .session import Session, Variables, interactions
from .stores import AgentStore, ConversationRow, Turn
from .stores.memory import AgentInteractionMemory
from .summaries import Summariser
from .tokens import TokenCounter
from .tracked import Tracked

log = logging.getLogger(__name__)

CURRENT_REQUEST: ContextVar[AgentRequest | None] = ContextVar("current_request", default=None)
"""The request whose turn runs in this task."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How one agent is run; the configuration's keys of the same names say more."""

    rules: Rules = field(default_factory=Rules)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    retention: Retention = field(default_factory=Retention)
    assist_timeout_s: float = 120.0
    lifecycle: Mode = "eager"
    idle_shutdown_s: float = 300.0
    on_restart: Literal["rerun", "report"] = "rerun"
    concurrency: int = 256
    queue: int = 1000
    commands: bool = True
    operators: frozenset[str] = frozenset()
    thoughts: bool = False
    stanza_bytes: int = 65536
    file_over_bytes: int = 262144


class _Outcome(NamedTuple):
    """How a turn ended: its last event, and whether it counts as a failed turn."""

    event: TurnEvent
    failed: bool = False


class Runner:
    """Runs one agent: one turn at a time within a conversation, many conversations at once."""

    def __init__(
        self,
        agent: AgentInterface,
        jid: str,
        store: AgentStore,
        policy: Policy | None = None,
        *,
        clock: Callable[[], datetime] = utc_now,
        on_conversation_end: tuple[OnConversationEnd, ...] = (),
        memory: Callable[[], AgentInteractionMemory] | None = None,
        files: Files | None = None,
        knowledge: Knowledge | None = None,
        summariser: Summariser | None = None,
        count: TokenCounter | None = None,
    ) -> None:
        self.agent = agent
        self.jid = bare(jid)
        self.store = store
        self.policy = policy or Policy()
        self.knowledge = knowledge
        self.governance = Governance(store, self.policy.memory, count=count, summariser=summariser, knowledge=knowledge)
        self._clock = clock
        own = getattr(agent, "on_conversation_end", None)
        on_end = (*on_conversation_end, own) if callable(own) else on_conversation_end
        self.admissions: Admissions | None = None
        """Where operators say who may talk to the agent, where there is somebody to ask them."""
        self._send: Send = _nowhere
        self._corrects: Callable[[str], bool] = lambda person: False
        self._refers: Callable[[str], bool] = lambda device: False
        self._chained_to: Callable[[str], str | None] = lambda person: None
        # However many threads one person begins, there is room for others.
        self._lanes = Lanes(max(1, self.policy.concurrency // _SHARES))
        self._persons: weakref.WeakValueDictionary[str, Person] = weakref.WeakValueDictionary()
        self._slots = asyncio.Semaphore(self.policy.concurrency)
        self._pace = Pace()
        self._assist_alarms = Alarms(self.policy.assist_timeout_s)
        self._lifecycle = Lifecycle(agent, self.policy.lifecycle, self.policy.idle_shutdown_s)
        self._memory = memory
        self.files = files
        self.commands = Commands(agent, are_on=self.policy.commands, operators=self.policy.operators)
        self._ends = Ends(store, self._lanes, self._lifecycle, self.policy.rules, clock, on_end)
        self._operators = Operators(store, self._lanes, self._ends, clock)
        self._purge = Purge(store, lambda: self.memory, self._lanes, self._ends, self.policy.retention, clock)
        self._notices = Notices()
        self._filing = Filing(self.jid, files, self.policy.file_over_bytes)
        self._places = Places(store, self._enqueue)
        self._early: list[Waiting] = []
        self._retries: list[asyncio.TimerHandle] = []
        self._asides: set[asyncio.Task[None]] = set()
        self._is_accepting = False
        self._is_giving_up = False
        self._unsent: list[tuple[int, list[str]]] = []

    # Opening and closing

    async def open(
        self,
        send: Send,
        corrects: Callable[[str], bool] = lambda person: False,
        refers: Callable[[str], bool] = lambda device: False,
        chained_to: Callable[[str], str | None] = lambda person: None,
    ) -> None:
        """Takes up what the last run left, and begins to accept.

        `send` gets stanzas in order and never fails. `corrects` says whether every device of a person (a bare JID) shows
        corrections, so that a stream may grow before their eyes; `refers` whether a device (a full JID) shows replies;
        `chained_to` names their only device, where it is one that takes a correction of the version before only.
        """
        self._send = send
        self._corrects, self._refers, self._chained_to = corrects, refers, chained_to
        await self._operators.open()
        await self._ends.open()
        self._purge.open()
        await self._lifecycle.open()
        pending = await self.store.pending()
        # What came in meanwhile may be among them.
        early, self._early = self._early, []
        rows = {waiting.row for waiting in early}
        self._is_accepting, self._is_giving_up = True, False
        for request in pending:
            if request.row in rows:
                continue
            if request.answer is not None:
                self._unsent.append((request.row, json.loads(request.answer)))
            elif request.request is not None:
                self._take_up(Incoming.from_json(request.request), UUID(bytes=request.key), request.row)
        for waiting in early:
            self._places.put(waiting)

    def send_unsent(self) -> None:
        """Sends the answers that the last run had stored and the server had not acknowledged; with the same ids."""
        unsent, self._unsent = self._unsent, []
        for row, stanzas in unsent:
            self._send_final(row, stanzas)

    async def drain(self, grace_s: float) -> bool:
        """Takes no new work, and waits for the turns that run. False if some took longer and were given up.

        What was not begun, or given up, is still in the inbox and runs after the next start.
        """
        self._is_accepting = False
        self._places.stop()
        for timer in self._retries:
            timer.cancel()
        for lane in self._lanes:
            lane.clear()
        workers = [lane.worker for lane in self._lanes if lane.worker is not None]
        if not workers:
            return True
        _, late = await asyncio.wait(workers, timeout=grace_s)
        self._is_giving_up = True
        for worker in late:
            worker.cancel()
        if late:
            await asyncio.wait(late, timeout=2.0)
        return not late

    async def close(self) -> None:
        """After `drain`: closes the agent."""
        self._pace.stop()
        self._assist_alarms.stop()
        await self._purge.close()
        await self._ends.close()
        await self._places.settled()
        await asyncio.gather(*self._asides)
        await self.governance.close()
        await self._lifecycle.close()

    # The way of a request

    def receive(self, incoming: Incoming) -> asyncio.Future[bool] | None:
        """Takes a request in. The future is done when it is durable; False for a duplicate, which goes no further.

        None where too many of its conversation wait already, or it comes through too many agents: it is not kept, and the
        sender hears so.
        """
        sender = owner_of(incoming)
        incoming = self._places.placed(incoming)
        lane = self._lanes.get(sender, incoming.thread)
        most = self.policy.queue
        if self._is_full(sender, incoming.thread):
            text = f"{most} messages of this conversation wait already; until some are answered no more are kept."
            if lane is None or len(lane.queue) < most:
                text = f"{most * _QUEUES} messages of yours wait already; until some are answered no more are kept."
            self._tell(incoming, uuid4(), Refused(text, ErrorCode.TOO_MANY_REQUESTS, AGAIN_S))
            return None
        if incoming.hops > MOST_HOPS:
            text = f"This was asked through {incoming.hops} agents one after the other: they seem to ask in a circle."
            self._tell(incoming, uuid4(), Refused(text, ErrorCode.TOO_MANY_REQUESTS))
            return None
        if incoming.replaces is not None:
            self.withdraw(sender, incoming.replaces)
        key = inbox_key(self.jid, sender, incoming.stanza_id, incoming.content, incoming.archive_id)
        is_surely_new = self.store.is_surely_new(key.bytes)
        row, is_new = self.store.receive(key.bytes, sender, incoming.to_json().decode(), self._clock())
        if lane is not None and (command := self._command_in(incoming)) is not None and command.name == "cancel":
            # At once; its answer waits for its turn. One that comes again does not mean what runs by then.
            if is_surely_new:
                lane.has_cancelled = self._stop(lane)
            else:
                is_new.add_done_callback(partial(self._cancel_if_new, lane))
        waiting = Waiting(incoming, key, row, is_new, is_surely_new)
        if self.is_paused:
            is_new.add_done_callback(lambda kept: self._tell_of_pause(incoming, kept))
        if self._is_accepting:
            self._places.put(waiting)
        else:
            self._early.append(waiting)
        return is_new

    def _cancel_if_new(self, lane: Lane, is_new: asyncio.Future[bool]) -> None:
        if not is_new.cancelled() and is_new.exception() is None and is_new.result():
            lane.has_cancelled = self._stop(lane)

    async def has_room(self, incoming: Incoming) -> None:
        """Waits until a request is not refused because too many wait."""
        sender = owner_of(incoming)
        while self._is_full(sender, incoming.thread):
            workers = [lane.worker for lane in self._lanes.of(sender) if lane.worker is not None]
            if workers:
                await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(_LOOK_AGAIN_S)  # a pause keeps them back, and tells nobody here when it ends

    def _is_full(self, sender: str, thread: str | None) -> bool:
        lane, most = self._lanes.get(sender, thread), self.policy.queue
        return (lane is not None and len(lane.queue) >= most) or self._lanes.waiting(sender) >= most * _QUEUES

    def withdraw(self, sender: str, message_id: str) -> bool:
        """Takes a request back that is not answered yet; whether there was one. Only its own sender can."""
        for lane in self._lanes.of(sender):
            if lane.current is not None and lane.current.is_named(message_id):
                return self._stop(lane)
            for waiting in lane.queue:
                if isinstance(waiting, Waiting) and waiting.is_named(message_id):
                    lane.queue.remove(waiting)
                    lane.share.waiting -= 1
                    self.store.close(waiting.row)
                    return True
        if (unplaced := self._places.take_back(sender, message_id)) is not None:
            self.store.close(unplaced.row)
            return True
        return False

    def _stop(self, lane: Lane) -> bool:
        """Stops the agent at work on a request, if it is; nothing of the turn remains."""
        if lane.current is None or lane.worker is None:
            return False
        lane.is_withdrawn = True
        if lane.is_assisting:
            lane.worker.cancel()
        return True

    async def drop_where(self, is_gone: Callable[[str], bool]) -> None:
        """Before `open`: forgets those whom nobody will know again."""
        for owner in await self.store.people():
            if is_gone(owner):
                await self.store.forget(owner)

    async def drop(self, owner: str) -> None:
        """Forgets whoever will never be known again, once their turns are over: an occupant of a room who has left."""
        while workers := [lane.worker for lane in self._lanes.of(owner) if lane.worker is not None]:
            await asyncio.wait(workers)
        await self.governance.let_go(owner)
        for lane in self._lanes.of(owner):
            lane.share.waiting -= len(lane.queue)  # what a pause keeps back
            lane.queue.clear()
            lane.memory = None
            self._lanes.let_go(lane)
        await self.store.forget(owner)

    def react(self, sender: str, message_id: str, emojis: tuple[str, ...], nickname: str = "") -> None:
        """Takes what somebody feels about an answer: recorded with its turn, and given to the agent's `feedback`.

        `nickname` is who of those in a room. Of a message that is not ours, or not of a conversation of theirs, nothing is
        known here.
        """
        try:
            turn = UUID(message_id[:36])
        except ValueError:
            return
        task = asyncio.create_task(self._take_feedback(sender, turn, emojis, nickname))
        self._asides.add(task)
        task.add_done_callback(self._asides.discard)

    async def _take_feedback(self, sender: str, turn: UUID, emojis: tuple[str, ...], nickname: str) -> None:
        try:
            found = await self.store.give_feedback(str(turn), sender, emojis, nickname)
        except StoreError as error:
            log.error("%s: a reaction of %s is not stored: %s", self.jid, sender, error)
            return
        if found is None:
            return
        name, body = found
        lane = self._lanes.named(name)
        if lane is not None and lane.worker is None:
            lane.memory = None  # it is loaded again, with what was recorded
        feedback = getattr(self.agent, "feedback", None)
        if callable(feedback):
            try:
                result = feedback(Interaction.model_validate_json(body), emojis)
                if inspect.isawaitable(result):
                    await result
            except (Exception, SystemExit, asyncio.CancelledError):  # sys.exit() would end the whole process
                log.exception("%s: feedback failed", self.jid)

    def _tell(self, incoming: Incoming, key: UUID, problem: Refused | Failed) -> None:
        """Says that a request cannot be taken: to a program each time, to everybody else once a minute.

        What sends everything back, and so asks again with our own words, is not answered for ever.
        """
        if incoming.language != "program" and not self._notices.may_tell(owner_of(incoming)):
            return
        self._send(voice_for(incoming, key, self.jid, self.policy.stanza_bytes).say(problem))

    def _command_in(self, incoming: Incoming) -> Command | None:
        """The command that a request is, if it is one."""
        return self.commands.find(str(incoming.payload.get("query", ""))) if incoming.may_command else None

    def _may_begin(self, waiting: Waiting | Errand) -> bool:
        """In a pause only what the platform does itself, so that one of its commands can end it."""
        if not self.is_paused:
            return True
        if isinstance(waiting, Errand):
            return not waiting.is_work
        command = self._command_in(waiting.incoming)
        return command is not None and command.name not in self.commands.own

    def _tell_of_pause(self, incoming: Incoming, kept: asyncio.Future[bool]) -> None:
        """Says to a person that their message waits. A program waits, as it does for any slow answer."""
        is_kept = not kept.cancelled() and kept.exception() is None and kept.result()
        if not is_kept or not self.is_paused or incoming.language not in ("person", "room"):
            return
        command = self._command_in(incoming)
        if (command is None or command.name in self.commands.own) and self._operators.may_tell(owner_of(incoming)):
            voice = voice_for(incoming, uuid4(), self.jid, self.policy.stanza_bytes)
            self._send(voice.say(Said(MarkdownBlock(content=PAUSED))))

    @property
    def turns_in_flight(self) -> int:
        """How many conversations have a turn running or waiting."""
        return sum(lane.worker is not None for lane in self._lanes) + len(self._places)

    async def settled(self, *of: str | None) -> None:
        """Waits until no turn runs or waits: of anybody, or `of` a sender (a bare JID) and a thread."""
        await self._places.settled()
        while workers := [lane.worker for lane in self._lanes if lane.worker is not None and of in ((), lane.key)]:
            await asyncio.wait(workers)

    async def purge(self) -> Purged:
        """Deletes for good what `Policy.retention` does not keep; done by itself at the start and once a day."""
        return await self._purge.run()

    async def expire_idle(self) -> None:
        """Ends the conversations in which nothing was said for the idle timeout; done by itself when it is time."""
        await self._ends.expire_idle()

    def _enqueue(self, waiting: Waiting) -> None:
        incoming = waiting.incoming
        lane = self._lanes.take(owner_of(incoming), incoming.thread)
        lane.queue.append(waiting)
        lane.share.waiting += 1
        self._set_to_work(lane)

    def _set_to_work(self, lane: Lane) -> None:
        if lane.worker is None:
            lane.worker = asyncio.create_task(self._work(lane))

    def _next(self, lane: Lane) -> Waiting | Errand | None:
        """Takes what a conversation does next."""
        for number, waiting in enumerate(lane.queue):
            if self._may_begin(waiting):
                del lane.queue[number]
                lane.share.waiting -= 1
                return waiting
        return None

    async def _work(self, lane: Lane) -> None:
        try:
            while (waiting := self._next(lane)) is not None:
                lane.is_withdrawn = False
                if isinstance(waiting, Errand):
                    async with lane.share.slots, self._slots:
                        await waiting.run()
                    continue
                lane.current = waiting
                try:
                    if waiting.is_surely_new or await waiting.is_new:
                        async with lane.share.slots, self._slots:
                            if not self._may_begin(waiting):
                                lane.queue.appendleft(waiting)  # it was paused while this one waited for its slot
                                lane.share.waiting += 1
                                continue
                            await self._turn(lane, waiting)
                except StoreError as error:
                    log.error("%s: a request of %s is not stored: %s", self.jid, owner_of(waiting.incoming), error)
                    await self._apologise(lane, waiting)
                except Exception:
                    # What `assist` raises is caught in `_execute`; this is a fault of ours, and one request must not hold
                    # up the others of its conversation.
                    log.exception("%s: a request of %s failed", self.jid, owner_of(waiting.incoming))
                    await self._give_up(lane, waiting)
        finally:
            lane.worker = lane.current = None
            self._lanes.let_go(lane)

    async def _apologise(self, lane: Lane, waiting: Waiting) -> None:
        """The request is not finished, so nobody may believe that it is. From the inbox it runs again after a while.

        One that is not even there was not acknowledged, and the server delivers it again.
        """
        lane.memory = None
        text = "I cannot store anything at the moment. I answer as soon as I can; if you hear nothing, please ask again."
        try:
            is_kept = await waiting.is_new
        except StoreError:
            is_kept = False
        if is_kept and self._is_accepting:
            self._retries = [timer for timer in self._retries if timer.when() > asyncio.get_running_loop().time()]
            again = waiting._replace(redelivered=True)
            self._retries.append(asyncio.get_running_loop().call_later(_RETRY_S, self._enqueue, again))
        self._tell(waiting.incoming, waiting.key, Failed(text, ErrorCode.UNAVAILABLE, True))

    async def _give_up(self, lane: Lane, waiting: Waiting) -> None:
        """Ends a request that cannot be finished, or it would run again, in vain, after every start."""
        text = "Something went wrong on my side. Please try again later."
        memory = lane.memory
        if memory is None:
            await self._apologise(lane, waiting)
            return
        lane.memory = None
        voice = voice_for(waiting.incoming, waiting.key, self.jid, self.policy.stanza_bytes)
        stanzas = voice.say(Failed(text, ErrorCode.INTERNAL, False))
        try:
            await self.store.finish(waiting.row, memory.row, None, to_json(stanzas).decode())
        except StoreError as error:
            log.error("%s: %s", self.jid, error)
        else:
            self._send_final(waiting.row, stanzas)

    async def _turn(self, lane: Lane, waiting: Waiting) -> None:
        incoming = waiting.incoming
        memory = lane.memory or await self._load(lane)
        now = self._clock()
        if incoming.may_command:
            text = str(incoming.payload.get("query", ""))
            said = self.commands.read(text)
            if said is not None or incoming.language == "program":
                await self._obey(lane, memory, waiting, said)
                return
            if (plain := self.commands.without_escape(text)) is not text:
                incoming = incoming._replace(payload={**incoming.payload, "query": plain})
                waiting = waiting._replace(incoming=incoming)
        received = self._decide(memory, incoming, now)
        if received.ended is not None:
            await self._ends.ended(memory.row.conversation_id, received.ended)
        memory.row = _with_life(memory.row, received.life)
        prefers = memory.person.preferences
        voice = voice_for(
            incoming,
            waiting.key,
            self.jid,
            self.policy.stanza_bytes,
            grows=prefers.streaming is not False and self._corrects(lane.sender),
            chained_to=partial(self._chained_to, lane.sender),
            is_rerun=waiting.redelivered,
            thoughts=self.policy.thoughts if prefers.thoughts is None else prefers.thoughts,
            refers=self._refers(incoming.sender),
        )
        response = Response(voice, self._send, self.jid, waiting.key, self._pace, self._filing)
        if received.verdict is not Verdict.RUN:
            await self._refuse(memory, waiting, response, received)
            return
        self._ends.begun(memory.row.conversation_id)
        if incoming.wants_marker and incoming.stanza_id:
            self._send([displayed(incoming)])
        request = response.request = self._request(memory, waiting, now)
        session = self._session(memory, incoming)
        outcome = await self._execute(lane, request, session, response, lambda: self.agent.assist(request, session, response))
        if outcome is None:
            await self.store.finish(waiting.row, memory.row, None, None)
            return
        await self._finish(lane, memory, waiting, request, session, response, outcome, now)

    def _session(self, memory: Memory, incoming: Incoming) -> Session:
        return Session(
            memory.state,
            memory.identity(incoming.language, incoming.nickname),
            self.store,
            memory.row.id,
            memory.row.turns,
            memory.variables,
            memory.person.variables,
            window_start=self.governance.first(memory),
            taken_in=self.governance.taken_in(memory.variables),
            knowledge=self.knowledge,
            before_window=self.governance.warn_of_everything,
        )

    # Commands: no turns. Nothing of them is counted, and nothing is in the history

    async def obey(
        self, owner: str, command: Command, values: Mapping[str, Any], conversation_id: str | None = None
    ) -> Outcome:
        """What comes of a command of somebody (a bare JID) who says it in no conversation.

        It is about the one named, which is theirs, or else the newest of theirs. One that changes a conversation waits for its
        turn there. StoreError; FieldError for a value that it cannot take; CancelledError if what it is about is forgotten.
        """
        if not self._is_accepting:
            return Outcome("I am about to stop; please try again later.", is_error=True)
        theirs = await self.store.conversations(owner=owner, limit=1)
        if conversation_id is not None:
            found = await self.store.find_conversations([conversation_id])
            theirs = [row for row in found.values() if row.owner == owner] or theirs
        row = self._row_now(theirs[0]) if theirs else None
        if command.at_once or not self.commands.may(owner, command):
            return await self.commands.do(command, values, self, owner, row)
        lane = self._lanes.take(owner, thread_of(row.conversation_id, owner, self.jid) if row is not None else None)
        before = max((waiting.row for waiting in lane.queue if isinstance(waiting, Waiting)), default=0)
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        work = partial(self._run_errand, lane, command, values, before)
        lane.queue.append(Errand(work, command.name in self.commands.own, done))
        lane.share.waiting += 1
        self._set_to_work(lane)
        return await done

    def say(self, owner: str, outcome: Outcome) -> None:
        """Says to a person, outside of any turn, what came of a command."""
        self._send(self._in_words(Incoming("person", owner, "", None, {}, ""), uuid4(), outcome))

    def _row_now(self, row: ConversationRow) -> ConversationRow:
        """A conversation as it is, which may not be stored yet."""
        lane = self._lanes.named(row.conversation_id)
        return lane.memory.row if lane is not None and lane.memory is not None else row

    async def _obey(self, lane: Lane, memory: Memory, waiting: Waiting, said: Read | None) -> None:
        """Answers a command that somebody wrote; None is one that there is not."""
        own = self.commands.own.get(said.command.name) if said is not None else None
        if said is not None and own is not None and said.values is not None:
            await self._run_own(lane, memory, waiting, own, said.values, self._send)
            return
        if said is None:
            outcome = Outcome("There is no such command. /help shows what there is.", is_error=True)
        elif said.command.who == "operators" and waiting.incoming.owner:  # who it is, only a room says
            outcome = Outcome(f"{said.command.text} is for those who write to me directly.", is_error=True)
        elif said.command.name == "cancel":
            outcome = Outcome("Stopped." if lane.has_cancelled else "There is nothing to stop.")
            lane.has_cancelled = False
        else:
            outcome = await self.commands.do_read(said, self, lane.sender, memory.row)
            outcome = await self._carry_out(lane, memory, outcome, waiting.row)
        stanzas = self._in_words(waiting.incoming, waiting.key, outcome, memory.row.conversation_id)
        answer = to_json(stanzas).decode()
        if lane.memory is None:  # it was forgotten, and must not be there again
            await self.store.answer(waiting.row, answer)
        else:
            await self.store.finish(waiting.row, memory.row, None, answer)
        await waiting.is_new
        self._send_final(waiting.row, stanzas)

    async def _run_errand(self, lane: Lane, command: Command, values: Mapping[str, Any], before: int) -> Outcome:
        """Does what was asked outside of the conversation. What was said there until then, and waits, is older."""
        memory = lane.memory or await self._load(lane)
        own = self.commands.own.get(command.name)
        if own is not None:
            asked = Incoming("person", lane.sender, "", lane.key[1], {"query": command.text}, "")
            is_new: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            is_new.set_result(True)
            return await self._run_own(lane, memory, Waiting(asked, uuid4(), 0, is_new), own, values, None)
        outcome = await self.commands.do(command, values, self, lane.sender, memory.row)
        outcome = await self._carry_out(lane, memory, outcome, before + 1)
        if lane.memory is not None:
            await self.store.save_conversation(memory.row)
        return outcome

    async def _run_own(
        self, lane: Lane, memory: Memory, waiting: Waiting, own: OwnCommand, values: Mapping[str, Any], send: Send | None
    ) -> Outcome:
        """Runs a command of the agent's as a turn is run. Without `send` nothing is said, and what would be is the outcome."""
        voice = voice_for(waiting.incoming, waiting.key, self.jid, self.policy.stanza_bytes)
        response = Response(voice, send or (lambda stanzas: None), self.jid, waiting.key, self._pace)
        request = response.request = self._request(memory, waiting, self._clock())
        session = self._session(memory, waiting.incoming)

        async def work() -> None:
            said = await own.run(session, **{field.name: values[field.name] for field in own.fields})
            await response.markdown("Done." if said is None else str(said))

        lane.current = waiting
        ended = await self._execute(lane, request, session, response, work)
        if ended is None:
            if send is not None:
                await self.store.finish(waiting.row, memory.row, None, None)
            return Outcome("Stopped.")
        final = response.conclude(ended.event)
        if session.is_ended:
            await self._carry_out(lane, memory, Outcome("", "new"), 0)
        written = session.close()
        if send is None:
            await self.store.save_conversation(memory.row)
            await asyncio.gather(*(self.store.save_variable(*variable) for variable in written))
        else:
            answer = to_json(response.stanzas).decode() if response.stanzas else None
            await self.store.finish(waiting.row, memory.row, None, answer, written)
            await waiting.is_new
            if final:
                self._send_final(waiting.row, final)
            elif answer is not None:
                self._close_when_acknowledged(waiting.row, response.last_sent)
        session.settle()
        failed = response.reported_error
        return Outcome("\n\n".join(response.texts) if failed is None else failed.user_message, is_error=failed is not None)

    async def _carry_out(self, lane: Lane, memory: Memory, outcome: Outcome, before: int) -> Outcome:
        """Does to a conversation what a command comes to; requests before that row are older than it."""
        if outcome.kind == "new":
            memory.row = _with_life(memory.row, conversation.end(memory.row.life))
            if memory.row.life.state is not ConversationState.ACTIVE:
                await self._ends.ended(memory.row.conversation_id, memory.row.life.state)
        elif outcome.kind != "answer":
            report = await self._forget(lane, memory, before, everything=outcome.kind == "forget me")
            return replace(outcome, text=deleted(report))
        return outcome

    def _in_words(self, incoming: Incoming, key: UUID, outcome: Outcome, conversation_id: str = "") -> list[str]:
        voice = voice_for(incoming, key, self.jid, self.policy.stanza_bytes)
        text = "\n".join(part for part in (outcome.text, outcome.link) if part)
        said = voice.say(Said(MarkdownBlock(content=text), choices=outcome.choices))
        said += [stanza for part in outcome.further for stanza in voice.say(Said(MarkdownBlock(content=part)))]
        return said + voice.say(Completed(conversation_id, "active"))  # which a program waits for

    def stop_answers(self, owner: str) -> int:
        """Stops the agent at work for a person (a bare JID), in all conversations; how many answers."""
        at_work = [lane for lane in self._lanes.of(owner) if lane.current is not None and self._is_work(lane.current)]
        return sum(map(self._stop, at_work))

    def _is_work(self, waiting: Waiting) -> bool:
        command = self._command_in(waiting.incoming)
        return command is None or command.name in self.commands.own

    @property
    def rules(self) -> Rules:
        """The rules of the conversations."""
        return self.policy.rules

    @property
    def memory(self) -> AgentInteractionMemory | None:
        """The agent's interaction memory, where there is one."""
        return self._memory() if self._memory is not None else None

    def now(self) -> datetime:
        """The time of conversations."""
        return self._clock()

    async def _forget(self, lane: Lane, memory: Memory, before: int, *, everything: bool) -> Forgotten:
        """Deletes a conversation, or all that is known of its owner; what runs or waits for them is dropped before."""
        owner, store = lane.sender, self.store
        gone = [lane]
        for waiting in list(lane.queue):  # said before, and kept back by a pause
            if isinstance(waiting, Errand):
                waiting.done.cancel()
            elif waiting.row < before:
                store.close(waiting.row)
            else:
                continue
            lane.queue.remove(waiting)
            lane.share.waiting -= 1
        if everything:
            gone = self._lanes.of(owner)
            for other in gone:
                if other is not lane:
                    other.clear()
                    self._stop(other)
            others = [other.worker for other in gone if other is not lane and other.worker is not None]
            if others:
                await asyncio.wait(others, timeout=_STOP_S)
        await self.governance.let_go(owner)
        if everything:
            report = await forget_person(store, self.memory, owner)
            memory.person.variables.values.clear()
            memory.person.preferences = USUAL
        else:
            report = await forget_conversation(store, self.memory, memory.row)
        if self.knowledge is not None:
            self.knowledge.let_go()
        for one in gone:
            if one.conversation_id is not None:
                self._ends.gone(one.conversation_id)
            one.memory = None
            self._lanes.let_go(one)
        return report

    async def _execute(
        self,
        lane: Lane,
        request: AgentRequest,
        session: Session,
        response: Response,
        work: Callable[[], Awaitable[None]],
    ) -> _Outcome | None:
        """Runs `assist`, or a command of the agent's. The one place that catches whatever it raises: it fails alone.

        None where whoever asked took the request back meanwhile.
        """
        token = CURRENT_REQUEST.set(request)
        limit_s = self.policy.assist_timeout_s
        limit = Limit(self._assist_alarms)
        try:
            if lane.is_withdrawn:
                response.withdraw()
                return None
            lane.is_assisting = True
            try:
                with limit:
                    await self._lifecycle.ensure_started()
                    await work()
            finally:
                lane.is_assisting, lane.current = False, None
            await response.close_streams()
            await self._take_back_cancels()
        except BaseException as error:
            # Also sys.exit(), with which a task ends the whole process, and the agent's own cancelling of its task.
            if isinstance(error, KeyboardInterrupt) or (isinstance(error, asyncio.CancelledError) and self._is_giving_up):
                response.abandon()
                raise
            await self._take_back_cancels()
            if lane.is_withdrawn:
                response.withdraw()
                return None
            incident = secrets.token_hex(4)
            late = isinstance(error, TimeoutError) and limit.has_expired
            code: int = ErrorCode.TIMEOUT if late else ErrorCode.INTERNAL
            if late:
                log.error("%s: incident %s: assist took longer than %g s", self.jid, incident, limit_s)
                text = f"I could not finish this within {limit_s:g} s (incident {incident})."
            else:
                log.error("%s: incident %s", self.jid, incident, exc_info=error)
                text = f"Something went wrong on my side (incident {incident})."
            response.abort_streams("the turn failed")
            response.report(UserErrorBlock(user_message=text, recoverable=True, code=code))
            return _Outcome(Failed(text, code, True, incident, reported=True), failed=True)
        finally:
            CURRENT_REQUEST.reset(token)
        if (reported := response.reported_error) is not None:
            code = reported.code or ErrorCode.INTERNAL
            return _Outcome(Failed(reported.user_message, int(code), reported.recoverable, reported=True))
        return _Outcome(Completed(lane.conversation_id or "", "completed" if session.is_ended else "active"))

    async def _take_back_cancels(self) -> None:
        """An agent that cancelled its own task cancelled its turn, and not what comes after it."""
        task = asyncio.current_task()
        if task is None or not task.cancelling() or self._is_giving_up:
            return
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # a cancel that is still to come
        while task.uncancel():
            pass

    async def _finish(
        self,
        lane: Lane,
        memory: Memory,
        waiting: Waiting,
        request: AgentRequest,
        session: Session,
        response: Response,
        outcome: _Outcome,
        began: datetime,
    ) -> None:
        life = memory.life
        is_active = life.state is ConversationState.ACTIVE  # whoever runs the agent may have ended it meanwhile
        if is_active:
            life = conversation.fail(life, self.policy.rules) if outcome.failed else conversation.succeed(life)
        if session.is_ended:
            life = conversation.end(life)
        final = response.conclude(outcome.event)
        interaction = self._interaction(waiting.key, request, response, began, waiting.incoming.language)
        self.governance.mark(interaction)
        row = memory.row
        with_it = memory.state.add_interaction(interaction)
        state, window_start = self.governance.window(with_it, row.turns + 1, memory.variables)
        row = row._replace(
            life=life,
            max_interactions=self.policy.rules.max_interactions,
            window_start=max(window_start, row.window_start),
            turns=row.turns + 1,
        )
        turn = Turn(str(interaction.interaction_id), interaction.timestamp, _interaction_json(interaction))
        answer = to_json(response.stanzas).decode() if response.stanzas else None
        memory.row = row  # what is changed while this is stored is stored after it
        await self.store.finish(waiting.row, row, turn, answer, session.close())
        await waiting.is_new  # if that failed, the sender hears so, and the server keeps the request
        session.settle()
        memory.state = state
        self.governance.absorb(memory)
        memory.last_answer = interaction.output.get("text", "").strip()
        if final:
            self._send_final(waiting.row, final)
        elif answer is not None:
            self._close_when_acknowledged(waiting.row, response.last_sent)
        if is_active and life.state is not ConversationState.ACTIVE:
            await self._ends.ended(row.conversation_id, life.state)

    async def _refuse(self, memory: Memory, waiting: Waiting, response: Response, received: Received) -> None:
        final: list[str] = []
        if received.verdict is Verdict.NOTICE:
            cooldown_s = self.policy.rules.cooldown.total_seconds()
            text = (
                "I pause here: this conversation goes round in circles."
                if memory.echoes >= conversation.ECHOES_UNTIL_PAUSE
                else f"That is all for now: {self.policy.rules.max_interactions} messages are the limit of a conversation."
            )
            text += f" Write again in {_duration(cooldown_s)}, or begin another thread."
            memory.echoes = 0
            final = response.conclude(Refused(text, ErrorCode.TOO_MANY_REQUESTS, cooldown_s))
        else:
            response.abandon()
        answer = to_json(final).decode() if final else None
        await self.store.finish(waiting.row, memory.row, None, answer)
        await waiting.is_new
        if final:
            self._send_final(waiting.row, final)

    # Decisions

    def _decide(self, memory: Memory, incoming: Incoming, now: datetime) -> Received:
        rules = self.policy.rules
        received = conversation.receive(memory.life, now, rules)
        if incoming.language == "program":
            return received
        text = str(incoming.payload.get("query", ""))
        is_echo = bool(memory.last_answer) and memory.last_answer in text and received.ended is None
        memory.echoes = memory.echoes + 1 if is_echo else 0
        if received.verdict is Verdict.RUN and memory.echoes >= conversation.ECHOES_UNTIL_PAUSE:
            uncounted = received.life._replace(interaction_count=received.life.interaction_count - 1)  # it gets no turn
            return conversation.pause(uncounted, now, rules)
        return received

    def _request(self, memory: Memory, waiting: Waiting, now: datetime) -> AgentRequest:
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
        return AgentRequest(
            request_id=incoming.request_id or waiting.key,
            session_id=memory.session_uuid,
            root_request_id=incoming.root_request_id,
            parent_request_id=incoming.parent_request_id,
            created_at=now,
            payload=incoming.payload,
            capabilities=incoming.capabilities,
            metadata=metadata,
        )

    def _interaction(self, key: UUID, request: AgentRequest, response: Response, began: datetime, language: str) -> Interaction:
        output: dict[str, Any] = {"text": "\n\n".join(response.texts)}
        if response.data_blocks:
            output["data"] = response.data_blocks
        if response.reported_error is not None:
            output["error"] = response.reported_error.dump()
        meta = {
            "request_id": str(request.request_id),
            "language": language,
            "duration_ms": round((self._clock() - began) / timedelta(milliseconds=1), 3),
        }
        lineage = LineageMetadata.model_construct(root_request_id=str(request.root_request_id))

        def turn(asked: dict[str, Any]) -> Interaction:
            return Interaction(
                interaction_id=key,
                timestamp=began,
                input=asked,
                output=output,
                events=response.events,
                meta=meta,
                lineage=lineage,
            )

        try:
            return turn(request.payload)
        except ValidationError:  # the agent put something there that is no JSON
            return turn({name: value for name, value in request.payload.items() if _is_json(value)})

    # Loading

    async def _load(self, lane: Lane) -> Memory:
        """The conversation of a lane: from the database, or new."""
        sender, thread = lane.key
        possible = possible_ids(thread, sender, self.jid)
        stored = await self.store.load(possible, sender, most_held(self.policy.memory))
        owners = {name: row.owner for name, row in stored.rows.items()}
        name = choose(possible, sender, owners | self._lanes.owners(possible))
        if name is None:
            raise StoreError(f"every id for the thread {thread!r} of {sender} belongs to others")
        self._lanes.name(lane, name)
        # At once after the look-up: what is written behind it finds the person here.
        person = self._persons.get(sender)
        if person is None:
            person = Person(Variables("person", sender, stored.person), Preferences.of(stored.preferences))
            self._persons[sender] = person
        row = stored.rows.get(name)
        if row is None:
            session = str(session_id(self.jid, sender, name))
            life = conversation.begin(self._clock())
            limit = self.policy.rules.max_interactions
            row = ConversationRow(self.store.new_conversation_row(), name, sender, session, life, limit)
            # What the agent remembers under this id stays its owner's, also if this turn never ends.
            await self.store.save_conversation(row)
        history = interactions(stored.history)
        state = SessionState(id=row.session_id, agent_id=self.jid, user_id=sender, history=history)
        variables = Variables("conversation", name, stored.variables)
        state, _ = self.governance.window(state, row.turns, variables)
        memory = Memory(row, state, variables, person)
        if history:
            memory.last_answer = str(history[-1].output.get("text", "")).strip()
        lane.memory = memory
        return memory

    def _take_up(self, incoming: Incoming, key: UUID, row: int) -> None:
        """A request that was received and not finished before the restart."""
        is_new: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        is_new.set_result(True)
        if self.policy.on_restart == "rerun" or self.is_paused:  # in a pause nothing of it was begun
            self._places.put(Waiting(incoming, key, row, is_new, redelivered=True))
            return
        text = "I was interrupted before I could answer this. Please ask again."
        stanzas = voice_for(incoming, key, self.jid, self.policy.stanza_bytes).say(Failed(text, ErrorCode.UNAVAILABLE, True))
        self._unsent.append((row, stanzas))

    # What a person prefers

    async def preferences(self, owner: str) -> Preferences:
        """What somebody (a bare JID) prefers of this agent."""
        person = self._persons.get(owner)
        return Preferences.of(await self.store.variables(PREFERENCES, owner)) if person is None else person.preferences

    async def prefer(self, owner: str, preferences: Preferences) -> None:
        """Keeps what somebody prefers; it holds from the next turn on. `StoreError` if it cannot be stored."""
        await self.store.save_variable(PREFERENCES, owner, PREFERENCES, preferences.to_json())
        if (person := self._persons.get(owner)) is not None:
            person.preferences = preferences

    # For whoever runs the agent

    async def end_conversation(self, conversation_id: str) -> bool:
        """Ends a conversation; False where none of that id is active. The answer at work there still leaves."""
        return await self._operators.end(conversation_id)

    async def reset_conversation(self, conversation_id: str) -> bool:
        """Begins a new episode, also of one that has reached its limit; False where there is none of that id."""
        return await self._operators.reset(conversation_id)

    @property
    def is_paused(self) -> bool:
        """Whether nothing new is begun."""
        return self._operators.is_paused

    def pause(self) -> None:
        """Begins nothing new; what runs ends, what comes in is kept. It lasts until `resume`, over restarts too."""
        self._operators.pause(True)

    def resume(self) -> None:
        """Goes on with what was kept, in its order."""
        if self._operators.pause(False):
            for lane in self._lanes:
                if lane.queue:
                    self._set_to_work(lane)

    def on_pause(self, call: Callable[[], None]) -> None:
        """Calls this whenever the agent is paused or goes on."""
        self._operators.on_pause = call

    # Sending

    def _send_final(self, row: int, stanzas: list[str]) -> None:
        last = Tracked(stanzas[-1])
        last.on_acknowledged = lambda: self.store.close(row)
        self._send([*stanzas[:-1], last])

    def _close_when_acknowledged(self, row: int, last: Tracked | None) -> None:
        if last is None or last.acknowledged:
            self.store.close(row)
        else:
            last.on_acknowledged = lambda: self.store.close(row)


MOST_HOPS = 16
"""Through so many agents a request may go. Each asks in a conversation of its own, so nothing else would end a circle."""
_JSON: TypeAdapter[Any] = TypeAdapter(JsonValue)
_RETRY_S = 10.0
_STOP_S = 5.0
_LOOK_AGAIN_S = 1.0
_QUEUES = 10  # of full length; more may not wait of one person, on all threads together
_SHARES = 4  # of an agent's concurrency; one person has one at most


def _with_life(row: ConversationRow, life: Life) -> ConversationRow:
    return row if row.life is life else row._replace(life=life)


def _is_json(value: object) -> bool:
    try:
        _JSON.validate_python(value)
    except ValidationError:
        return False
    return True


def _interaction_json(interaction: Interaction) -> str:
    try:
        return interaction.__pydantic_serializer__.to_json(interaction, by_alias=True, exclude_none=True).decode()
    except ValueError:  # lone surrogates, or what an agent put into the payload and is no JSON
        dumped = interaction.model_dump(by_alias=True, exclude_none=True)
        return to_json(printable(dumped), fallback=repr).decode()


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def _nowhere(stanzas: list[str]) -> None:
    raise CoReasonError("the runner is not open")
