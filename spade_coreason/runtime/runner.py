"""One request through one agent: load, execute, update, prune, save (seed: Session Management, Runtime Behavior).

Needs no network: requests come in by `receive`, stanzas go out by the `send` given to `open`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from pydantic_core import to_json

from ..concurrency import Alarms
from ..contracts import AgentInterface, ErrorCode
from ..contracts.base import utc_now
from ..domain.conversation import RUN, Rules, Verdict
from ..domain.identifiers import inbox_key
from ..domain.jid import bare
from ..domain.messages import Failed, Incoming, SaidText, owner_of
from ..domain.preferences import Preferences
from ..domain.value import replace
from ..memory import AgentInteractionMemory, Governance, Knowledge, Memory, Summariser, TokenCounter, Usage
from ..storage import AgentStore, Then
from .access_requests import Admissions
from .admission import MOST_HOPS, WaitingRoom, decide, notice
from .agent_lifecycle import Lifecycle
from .client_features import Devices, UnknownDevices
from .commands.executor import Obeying
from .commands.model import Command, Outcome
from .commands.parser import Read
from .commands.registry import Commands
from .context import Engine
from .dispatcher import Workers
from .expiry import Ends, OnConversationEnd
from .feedback import Feedback
from .files import Files
from .loader import Memories
from .long_answers import Filing
from .mailbox import Errand, Lane, Lanes, Waiting
from .metrics import Activity
from .operations import PAUSED, Operators
from .outbound import Send
from .outbox import Outbox
from .policy import Policy
from .response import Response
from .retention import Departures, Purge, Purged
from .stream import Pace
from .threads import Places
from .turn import Turn

__all__ = ["MOST_HOPS", "Policy", "Runner"]

log = logging.getLogger(__name__)


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
        usage: Usage | None = None,
    ) -> None:
        self.agent = agent
        self.jid = bare(jid)
        self.store = store
        self.policy = policy or Policy()
        self.knowledge = knowledge
        self.governance = Governance(store, self.policy.memory, count=count, summariser=summariser, knowledge=knowledge)
        self.files = files
        self.activity = Activity()
        self.admissions: Admissions | None = None
        """Where operators say who may talk to the agent, where there is somebody to ask them."""
        self.commands = Commands(agent, are_on=self.policy.commands, operators=self.policy.operators)
        self._clock = clock
        self._memory = memory
        timings = self.policy.timings
        # However many threads one person begins, there is room for others.
        self._lanes = Lanes(self.policy.concurrency, max(1, self.policy.concurrency // _SHARES))
        lifecycle = Lifecycle(agent, self.policy.lifecycle, self.policy.idle_shutdown_s, timings.shutdown_s)
        own = getattr(agent, "on_conversation_end", None)
        on_end = (*on_conversation_end, own) if callable(own) else on_conversation_end
        self._ends = Ends(store, self._lanes, lifecycle, self.policy.rules, clock, on_end, self.governance.pruned, timings)
        self._outbox = Outbox(self.jid, store.inbox, self.policy.stanza_bytes)
        self._engine = Engine(
            agent=agent,
            jid=self.jid,
            store=store,
            policy=self.policy,
            clock=clock,
            lanes=self._lanes,
            lifecycle=lifecycle,
            ends=self._ends,
            governance=self.governance,
            knowledge=knowledge,
            filing=Filing(self.jid, files, self.policy.file_over_bytes),
            outbox=self._outbox,
            devices=UnknownDevices(),
            pace=Pace(timings),
            assist_alarms=Alarms(self.policy.assist_timeout_s, self.jid, timings.blocked_s),
            usage=usage or Usage(store, clock),
            activity=self.activity,
        )
        self._memories = Memories(self._engine)
        self._workers = Workers(self._engine, self._turn, self._may_begin)
        self._places = Places(store, self._workers.put, self.policy.remembered_turns)
        self._waiting_room = WaitingRoom(self._lanes, self._places, store.inbox, self.policy.queue)
        self._obeying = Obeying(
            self._engine, self._memories, self.commands, self, self._waiting_room, self._workers.set_to_work
        )
        self._operators = Operators(store, self._lanes, self._ends, clock)
        self._purge = Purge(
            store, lambda: self.memory, self._lanes, self._ends, self.policy.retention, clock, self.governance.let_go_of
        )
        self.departures = Departures(store, self._lanes, self.governance)
        self._feedback = Feedback(agent, store, self._lanes, self.policy.assist_timeout_s)
        self._early: list[Waiting] = []
        self._is_accepting = False

    # Opening and closing

    async def open(self, send: Send, devices: Devices | None = None) -> None:
        """Takes up what the last run left, and begins to accept.

        `send` gets stanzas in order and never fails. `devices` says what those of people show; None where nobody knows.
        """
        self._outbox.send = send
        self._engine.devices = devices or UnknownDevices()
        await self._operators.open()
        await self._ends.open()
        self._purge.open()
        await self._engine.lifecycle.open()
        pending = await self.store.inbox.pending()
        # What came in meanwhile may be among them.
        early, self._early = self._early, []
        rows = {waiting.row for waiting in early}
        self._is_accepting = True
        self._workers.open()
        for request in pending:
            if request.row in rows:
                continue
            if request.answer is not None:
                self._outbox.keep(request.row, json.loads(request.answer))
            elif request.request is not None:
                self._take_up(Incoming.from_json(request.request), UUID(bytes=request.key), request.row)
        for waiting in early:
            self._places.put(waiting, owner_of(waiting.incoming))

    def _take_up(self, incoming: Incoming, key: UUID, row: int) -> None:
        """A request that was received and not finished before the restart."""
        is_new: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        is_new.set_result(True)
        if self.policy.on_restart == "rerun" or self.is_paused:  # in a pause nothing of it was begun
            waiting = Waiting(incoming, key, row, is_new, self.activity.now(), redelivered=True)
            self._places.put(waiting, owner_of(incoming))
            return
        text = "I was interrupted before I could answer this. Please ask again."
        self._outbox.keep(row, self._outbox.words(incoming, key, Failed(text, ErrorCode.UNAVAILABLE, True)))

    def send_unsent(self) -> None:
        """Sends the answers that the last run had stored and the server had not acknowledged; with the same ids."""
        self._outbox.send_unsent()

    async def drain(self, grace_s: float) -> bool:
        """Takes no new work, and waits for the turns that run. False if some took longer and were given up.

        What was not begun, or given up, is still in the inbox and runs after the next start.
        """
        self._is_accepting = False
        self._places.stop()
        return await self._workers.drain(grace_s)

    async def close(self) -> None:
        """After `drain`: closes the agent."""
        self._engine.pace.stop()
        self._engine.assist_alarms.stop()
        await self._purge.close()
        await self._ends.close()
        await self._places.settled()
        await self._feedback.settled()
        await self.governance.close()
        await self._engine.lifecycle.close()

    # The way of a request

    def receive(self, incoming: Incoming, then: Then | None = None) -> asyncio.Future[bool] | None:
        """Takes a request in. The future is done when it is durable; False for a duplicate, which goes no further.

        None where too many of its conversation wait already, or it comes through too many agents: it is not kept, and the
        sender hears so. `then` follows when it is kept, with what the future has, and before the answer.
        """
        sender = owner_of(incoming)
        incoming = self._places.placed(incoming, sender)
        if (refusal := self._waiting_room.refusal(incoming, sender)) is not None:
            self._outbox.tell(incoming, uuid4(), refusal)
            return None
        if incoming.replaces is not None:
            self.withdraw(sender, incoming.replaces)
        key = inbox_key(self.jid, sender, incoming.stanza_id, incoming.content, incoming.archive_id)
        request = incoming.to_json if incoming.is_words else incoming.to_json()
        row, is_new, is_surely_new = self.store.inbox.receive(key.bytes, sender, request, self._clock(), then)
        at_work = self._lanes.get(sender, incoming.thread)
        if at_work is not None and at_work.worker is None:
            at_work.has_cancelled = False
        elif at_work is not None:
            self._obeying.cancel_at_once(at_work, incoming, is_new, is_surely_new)
        waiting = Waiting(incoming, key, row, is_new, self.activity.now(), is_surely_new)
        if self._operators.is_paused:
            is_new.add_done_callback(partial(self._tell_of_pause, waiting))
        if self._is_accepting:
            self._places.put(waiting, sender)
        else:
            self._early.append(waiting)
        return is_new

    async def _turn(self, lane: Lane, waiting: Waiting) -> None:
        incoming = waiting.incoming
        memory = lane.memory or await self._memories.load(lane)
        now = self._clock()
        if incoming.may_command:
            text = str(incoming.payload.get("query", ""))
            said = self.commands.read(text)
            if isinstance(said, Read) or incoming.language == "program":
                await self._obeying.answer(lane, memory, waiting, said)
                return
            if said is not text:
                incoming = replace(incoming, payload={**incoming.payload, "query": said})
                waiting = replace(waiting, incoming=incoming)
        received = decide(memory, incoming, now, self.policy.rules)
        memory.life = received.life
        if received.ended is not None:
            await self._ends.ended(memory.row.conversation_id, received.ended)
        response = self._engine.response(waiting, memory)
        if received.verdict is RUN:
            await Turn(self._engine, lane, memory, waiting, response, now).answer()
        else:
            await self._refuse(memory, waiting, response, received.verdict, now)

    async def _refuse(self, memory: Memory, waiting: Waiting, response: Response, verdict: Verdict, now: datetime) -> None:
        final: list[str] = []
        incoming = waiting.incoming
        if verdict is Verdict.NOTICE or incoming.language == "program":
            said = notice(memory, incoming, now, self.policy.rules, has_commands=self.policy.commands)
            final = response.conclude(said)
            memory.echoes = 0
        else:
            response.abandon()
        await self.store.inbox.finish(waiting.row, memory.row, None, to_json(final).decode() if final else None)
        await waiting.is_new
        if final:
            self._outbox.send_final(waiting.row, final)

    def _may_begin(self, one: Waiting | Errand) -> bool:
        """In a pause only what the platform does itself, so that one of its commands can end it."""
        return not self._operators.is_paused or not self._obeying.is_work(one)

    def _tell_of_pause(self, waiting: Waiting, kept: asyncio.Future[bool]) -> None:
        """Says to a person that their message waits. A program waits, as it does for any slow answer."""
        incoming = waiting.incoming
        is_kept = not kept.cancelled() and kept.exception() is None and kept.result()
        if not is_kept or not self.is_paused or incoming.language not in ("person", "room"):
            return
        if self._obeying.is_work(waiting) and self._operators.may_tell(owner_of(incoming)):
            self._outbox.send(self._outbox.words(incoming, uuid4(), SaidText(PAUSED, 1)))

    # Beside it

    async def has_room(self, incoming: Incoming) -> None:
        """Waits until a request is not refused because too many wait."""
        await self._waiting_room.has_room(incoming)

    def withdraw(self, sender: str, message_id: str) -> bool:
        """Takes a request back that is not answered yet; whether there was one. Only its own sender can."""
        return self._waiting_room.take_back(sender, message_id)

    def react(self, sender: str, message_id: str, emojis: tuple[str, ...], nickname: str = "") -> None:
        """Takes what somebody feels about an answer: recorded with its turn, and given to the agent's `feedback`.

        `nickname` is who of those in a room. Of a message that is not ours, or not of a conversation of theirs, nothing is
        known here.
        """
        self._feedback.take(sender, message_id, emojis, nickname)

    @property
    def turns_in_flight(self) -> int:
        """How many conversations have a turn running or waiting."""
        return len(self._workers) + len(self._places)

    def waiting(self, sender: str) -> int:
        """How many requests of a sender (a bare JID) wait for their turn."""
        return self._lanes.waiting(sender) + self._places.waiting(sender)

    def holds(self, conversation_id: str) -> bool:
        """Whether anything of a conversation is in memory."""
        return self._lanes.named(conversation_id) is not None

    async def settled(self, *of: str | None) -> None:
        """Waits until no turn runs or waits: of anybody, or `of` a sender (a bare JID) and a thread."""
        await self._places.settled()
        await self._workers.settled(*of)

    async def purge(self) -> Purged:
        """Deletes for good what `Policy.retention` does not keep; done by itself at the start and once a day."""
        return await self._purge.run()

    async def expire_idle(self) -> None:
        """Ends the conversations in which nothing was said for the idle timeout; done by itself when it is time."""
        await self._ends.expire_idle()

    # What commands need

    async def obey(
        self, owner: str, command: Command, values: Mapping[str, Any], conversation_id: str | None = None
    ) -> Outcome:
        """What comes of a command of somebody (a bare JID) who says it in no conversation.

        It is about the one named, which is theirs, or else the newest of theirs. One that changes a conversation waits for its
        turn there. StoreError; FieldError for a value that it cannot take; CancelledError if what it is about is forgotten.
        """
        if not self._is_accepting:
            return Outcome("I am about to stop; please try again later.", is_error=True)
        return await self._obeying.obey(owner, command, values, conversation_id)

    def say(self, owner: str, outcome: Outcome) -> None:
        """Says to a person, outside of any turn, what came of a command."""
        self._obeying.say(owner, outcome)

    def stop_answers(self, owner: str) -> int:
        """Stops the agent at work for a person (a bare JID), in all conversations; how many answers."""
        at_work = [lane for lane in self._lanes.of(owner) if lane.current is not None and self._obeying.is_work(lane.current)]
        return sum(lane.stop() for lane in at_work)

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

    async def preferences(self, owner: str) -> Preferences:
        """What somebody (a bare JID) prefers of this agent."""
        return await self._memories.preferences(owner)

    async def prefer(self, owner: str, preferences: Preferences) -> None:
        """Keeps what somebody prefers; it holds from the next turn on. `StoreError` if it cannot be stored."""
        await self._memories.prefer(owner, preferences)

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
            self._workers.resume()

    def on_pause(self, call: Callable[[], None]) -> None:
        """Calls this whenever the agent is paused or goes on."""
        self._operators.on_pause = call


_SHARES = 4  # of an agent's concurrency; one person has one at most
