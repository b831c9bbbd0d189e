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

from ..concurrency import TimerGroup
from ..contracts import AgentInterface, ErrorCode
from ..contracts.base import utc_now
from ..domain.conversation import RUN, Outcome, Rules
from ..domain.identifiers import derive_inbox_key
from ..domain.jid import bare_jid
from ..domain.messages import Failed, InboundRequest, TextEmitted, owner_of
from ..domain.preferences import Preferences
from ..domain.value import replace
from ..memory import ActiveConversation, AgentInteractionMemory, HistoryWindow, Knowledge, Summariser, TokenCounter, Usage
from ..storage import AgentRepository, OnCommit
from .access_requests import AccessRequests
from .admission import MAX_HOPS, AdmissionControl, decide, refusal_notice
from .agent_lifecycle import AgentLifecycle
from .client_features import ClientFeatures, UnknownClientFeatures
from .commands.executor import CommandExecutor
from .commands.model import Command, CommandResult
from .commands.parser import ParsedCommand
from .commands.registry import Commands
from .dispatcher import Dispatcher
from .expiry import ConversationExpiry, OnConversationEnd
from .feedback import Feedback
from .files import Files
from .loader import ConversationLoader
from .long_answers import LongAnswers
from .mailbox import Mailbox, Mailboxes, MailboxTask, QueuedRequest
from .metrics import Metrics
from .operations import PAUSED_NOTICE, AgentControl
from .outbound import SendStanzas
from .outbox import Outbox
from .policy import Policy
from .response import Response
from .retention import EphemeralOwners, Purged, RetentionJob
from .stream import ReplyTimers
from .thread_resolver import ThreadResolver
from .turn import Turn
from .turn_services import TurnServices

__all__ = ["MAX_HOPS", "Policy", "Runner"]

log = logging.getLogger(__name__)


class Runner:
    """Runs one agent: one turn at a time within a conversation, many conversations at once."""

    def __init__(
        self,
        agent: AgentInterface,
        jid: str,
        store: AgentRepository,
        policy: Policy | None = None,
        *,
        clock: Callable[[], datetime] = utc_now,
        on_conversation_end: tuple[OnConversationEnd, ...] = (),
        interaction_memory: Callable[[], AgentInteractionMemory] | None = None,
        files: Files | None = None,
        knowledge: Knowledge | None = None,
        summariser: Summariser | None = None,
        count_tokens: TokenCounter | None = None,
        usage: Usage | None = None,
    ) -> None:
        self.agent = agent
        self.jid = bare_jid(jid)
        self.store = store
        self.policy = policy or Policy()
        self.knowledge = knowledge
        self.history_window = HistoryWindow(
            store, self.policy.memory, count_tokens=count_tokens, summariser=summariser, knowledge=knowledge
        )
        self.files = files
        self.metrics = Metrics()
        self.access_requests: AccessRequests | None = None
        """Where operators say who may talk to the agent, where there is somebody to ask them."""
        self.commands = Commands(agent, is_enabled=self.policy.commands, operators=self.policy.operators)
        self._clock = clock
        self._interaction_memory = interaction_memory
        timings = self.policy.timings
        # However many threads one person begins, there is room for others.
        self._mailboxes = Mailboxes(self.policy.concurrency, max(1, self.policy.concurrency // _QUOTA_DIVISOR))
        lifecycle = AgentLifecycle(agent, self.policy.lifecycle, self.policy.idle_shutdown_s, timings.shutdown_s)
        own = getattr(agent, "on_conversation_end", None)
        on_end = (*on_conversation_end, own) if callable(own) else on_conversation_end
        self._expiry = ConversationExpiry(
            store,
            self._mailboxes,
            lifecycle,
            self.policy.rules,
            clock,
            on_end,
            self.history_window.with_current_window,
            timings,
        )
        self._outbox = Outbox(self.jid, store.inbox, self.policy.stanza_bytes)
        self._services = TurnServices(
            agent=agent,
            jid=self.jid,
            store=store,
            policy=self.policy,
            clock=clock,
            mailboxes=self._mailboxes,
            lifecycle=lifecycle,
            expiry=self._expiry,
            history_window=self.history_window,
            knowledge=knowledge,
            long_answers=LongAnswers(self.jid, files, self.policy.file_over_bytes),
            outbox=self._outbox,
            client_features=UnknownClientFeatures(),
            reply_timers=ReplyTimers(timings),
            assist_timers=TimerGroup(self.policy.assist_timeout_s, self.jid, timings.blocked_s),
            usage=usage or Usage(store, clock),
            metrics=self.metrics,
        )
        self._loader = ConversationLoader(self._services)
        self._dispatcher = Dispatcher(self._services, self._run_turn, self._may_start)
        self._thread_resolver = ThreadResolver(store, self._dispatcher.dispatch, self.policy.remembered_turns)
        self._admission = AdmissionControl(self._mailboxes, self._thread_resolver, store.inbox, self.policy.queue)
        self._command_executor = CommandExecutor(
            self._services, self._loader, self.commands, self, self._admission, self._dispatcher.schedule
        )
        self._control = AgentControl(store, self._mailboxes, self._expiry, clock)
        self._retention_job = RetentionJob(
            store,
            lambda: self.interaction_memory,
            self._mailboxes,
            self._expiry,
            self.policy.retention,
            clock,
            self.history_window.cancel_for,
        )
        self.ephemeral_owners = EphemeralOwners(store, self._mailboxes, self.history_window)
        self._feedback = Feedback(agent, store, self._mailboxes, self.policy.assist_timeout_s)
        self._received_early: list[QueuedRequest] = []
        self._is_accepting = False

    # Opening and closing

    async def open(self, send: SendStanzas, client_features: ClientFeatures | None = None) -> None:
        """Takes up what the last run left, and begins to accept.

        `send` gets stanzas in order and never fails. `client_features` says what those of people show; None where nobody knows.
        """
        self._outbox.send = send
        self._services.client_features = client_features or UnknownClientFeatures()
        await self._control.load()
        await self._expiry.open()
        self._retention_job.open()
        await self._services.lifecycle.open()
        pending = await self.store.inbox.load_pending()
        # What came in meanwhile may be among them.
        early, self._received_early = self._received_early, []
        rows = {waiting.inbox_row for waiting in early}
        self._is_accepting = True
        self._dispatcher.start()
        for request in pending:
            if request.inbox_row in rows:
                continue
            if request.answer is not None:
                self._outbox.add_unsent(request.inbox_row, json.loads(request.answer))
            elif request.request is not None:
                self._recover_request(InboundRequest.from_json(request.request), UUID(bytes=request.key), request.inbox_row)
        for waiting in early:
            self._thread_resolver.resolve_and_enqueue(waiting, owner_of(waiting.incoming))

    def _recover_request(self, incoming: InboundRequest, key: UUID, inbox_row: int) -> None:
        """A request that was received and not finished before the restart."""
        is_new: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        is_new.set_result(True)
        if self.policy.on_restart == "rerun" or self.is_paused:  # in a pause nothing of it was begun
            waiting = QueuedRequest(incoming, key, inbox_row, is_new, self.metrics.now(), is_redelivered=True)
            self._thread_resolver.resolve_and_enqueue(waiting, owner_of(incoming))
            return
        text = "I was interrupted before I could answer this. Please ask again."
        self._outbox.add_unsent(inbox_row, self._outbox.encode(incoming, key, Failed(text, ErrorCode.UNAVAILABLE, True)))

    def send_unsent(self) -> None:
        """Sends the answers that the last run had stored and the server had not acknowledged; with the same ids."""
        self._outbox.send_unsent()

    async def drain(self, grace_s: float) -> bool:
        """Takes no new work, and waits for the turns that run. False if some took longer and were given up.

        What was not begun, or given up, is still in the inbox and runs after the next start.
        """
        self._is_accepting = False
        self._thread_resolver.stop()
        return await self._dispatcher.drain(grace_s)

    async def close(self) -> None:
        """After `drain`: closes the agent."""
        self._services.reply_timers.stop()
        self._services.assist_timers.cancel_all()
        await self._retention_job.close()
        await self._expiry.close()
        await self._thread_resolver.wait_until_idle()
        await self._feedback.wait_until_idle()
        await self.history_window.close()
        await self._services.lifecycle.close()

    # The way of a request

    def receive(self, incoming: InboundRequest, on_stored: OnCommit | None = None) -> asyncio.Future[bool] | None:
        """Takes a request in. The future is done when it is durable; False for a duplicate, which goes no further.

        None where too many of its conversation wait already, or it comes through too many agents: it is not kept, and the
        sender hears so. `on_stored` follows when it is kept, with what the future has, and before the answer.
        """
        sender = owner_of(incoming)
        incoming = self._thread_resolver.resolve_now(incoming, sender)
        if (refusal := self._admission.refusal(incoming, sender)) is not None:
            self._outbox.send_problem(incoming, uuid4(), refusal)
            return None
        if incoming.replaces is not None:
            self.cancel_request(sender, incoming.replaces)
        key = derive_inbox_key(self.jid, sender, incoming.stanza_id, incoming.content, incoming.archive_id)
        request = incoming.to_json if incoming.is_text_only else incoming.to_json()
        row, is_new, is_surely_new = self.store.inbox.receive(key.bytes, sender, request, self._clock(), on_stored)
        at_work = self._mailboxes.get(sender, incoming.thread)
        if at_work is not None and at_work.worker is None:
            at_work.has_cancelled = False
        elif at_work is not None:
            self._command_executor.cancel_if_requested(at_work, incoming, is_new, is_surely_new)
        waiting = QueuedRequest(incoming, key, row, is_new, self.metrics.now(), is_surely_new)
        if self._control.is_paused:
            is_new.add_done_callback(partial(self._notify_of_pause, waiting))
        if self._is_accepting:
            self._thread_resolver.resolve_and_enqueue(waiting, sender)
        else:
            self._received_early.append(waiting)
        return is_new

    async def _run_turn(self, mailbox: Mailbox, queued: QueuedRequest) -> None:
        incoming = queued.incoming
        memory = mailbox.conversation or await self._loader.load(mailbox)
        now = self._clock()
        if incoming.may_be_command:
            text = str(incoming.payload.get("query", ""))
            said = self.commands.parse(text)
            if isinstance(said, ParsedCommand) or incoming.channel == "program":
                await self._command_executor.reply_to_command(mailbox, memory, queued, said)
                return
            if said is not text:
                incoming = replace(incoming, payload={**incoming.payload, "query": said})
                queued = replace(queued, incoming=incoming)
        received = decide(memory, incoming, now, self.policy.rules)
        memory.status = received.status
        if received.ended_state is not None:
            await self._expiry.on_ended(memory.record.conversation_id, received.ended_state)
        response = self._services.make_response(queued, memory)
        if received.outcome is RUN:
            await Turn(self._services, mailbox, memory, queued, response, now).answer()
        else:
            await self._refuse(memory, queued, response, received.outcome, now)

    async def _refuse(
        self, active: ActiveConversation, queued: QueuedRequest, response: Response, outcome: Outcome, now: datetime
    ) -> None:
        final: list[str] = []
        incoming = queued.incoming
        if outcome is Outcome.NOTICE or incoming.channel == "program":
            said = refusal_notice(active, incoming, now, self.policy.rules, has_commands=self.policy.commands)
            final = response.finish(said)
            active.echo_count = 0
        else:
            response.abandon()
        await self.store.inbox.finish(queued.inbox_row, active.record, None, to_json(final).decode() if final else None)
        await queued.stored
        if final:
            self._outbox.send_final(queued.inbox_row, final)

    def _may_start(self, item: QueuedRequest | MailboxTask) -> bool:
        """In a pause only what the platform does itself, so that one of its commands can end it."""
        return not self._control.is_paused or not self._command_executor.is_for_agent(item)

    def _notify_of_pause(self, queued: QueuedRequest, stored: asyncio.Future[bool]) -> None:
        """Says to a person that their message waits. A program waits, as it does for any slow answer."""
        incoming = queued.incoming
        is_kept = not stored.cancelled() and stored.exception() is None and stored.result()
        if not is_kept or not self.is_paused or incoming.channel not in ("person", "room"):
            return
        if self._command_executor.is_for_agent(queued) and self._control.allow_notice(owner_of(incoming)):
            self._outbox.send(self._outbox.encode(incoming, uuid4(), TextEmitted(PAUSED_NOTICE, 1)))

    # Beside it

    async def wait_for_capacity(self, incoming: InboundRequest) -> None:
        """Waits until a request is not refused because too many wait."""
        await self._admission.wait_for_capacity(incoming)

    def cancel_request(self, sender: str, message_id: str) -> bool:
        """Takes a request back that is not answered yet; whether there was one. Only its own sender can."""
        return self._admission.cancel(sender, message_id)

    def record_reaction(self, sender: str, message_id: str, emojis: tuple[str, ...], nickname: str = "") -> None:
        """Takes what somebody feels about an answer: recorded with its turn, and given to the agent's `feedback`.

        `nickname` is who of those in a room. Of a message that is not ours, or not of a conversation of theirs, nothing is
        known here.
        """
        self._feedback.receive_reaction(sender, message_id, emojis, nickname)

    @property
    def turns_in_flight(self) -> int:
        """How many conversations have a turn running or waiting."""
        return len(self._dispatcher) + len(self._thread_resolver)

    def waiting(self, sender: str) -> int:
        """How many requests of a sender (a bare JID) wait for their turn."""
        return self._mailboxes.count_queued(sender) + self._thread_resolver.count_queued(sender)

    def holds(self, conversation_id: str) -> bool:
        """Whether anything of a conversation is in memory."""
        return self._mailboxes.find_by_conversation(conversation_id) is not None

    async def wait_until_idle(self, *mailbox_key: str | None) -> None:
        """Waits until no turn runs or waits: of anybody, or `mailbox_key` a sender (a bare JID) and a thread."""
        await self._thread_resolver.wait_until_idle()
        await self._dispatcher.wait_until_idle(*mailbox_key)

    async def purge(self) -> Purged:
        """Deletes for good what `Policy.retention` does not keep; done by itself at the start and once a day."""
        return await self._retention_job.run()

    async def expire_idle(self) -> None:
        """Ends the conversations in which nothing was said for the idle timeout; done by itself when it is time."""
        await self._expiry.expire_idle()

    # What commands need

    async def run_command(
        self, owner: str, command: Command, values: Mapping[str, Any], conversation_id: str | None = None
    ) -> CommandResult:
        """What comes of a command of somebody (a bare JID) who says it in no conversation.

        It is about the one named, which is theirs, or else the newest of theirs. One that changes a conversation waits for its
        turn there. StoreError; FieldError for a value that it cannot take; CancelledError if what it is about is forgotten.
        """
        if not self._is_accepting:
            return CommandResult("I am about to stop; please try again later.", is_error=True)
        return await self._command_executor.run_command(owner, command, values, conversation_id)

    def send_command_result(self, owner: str, result: CommandResult) -> None:
        """Says to a person, outside of any turn, what came of a command."""
        self._command_executor.send_command_result(owner, result)

    def cancel_replies(self, owner: str) -> int:
        """Stops the agent at work for a person (a bare JID), in all conversations; how many answers."""
        at_work = [
            lane
            for lane in self._mailboxes.of_sender(owner)
            if lane.current is not None and self._command_executor.is_for_agent(lane.current)
        ]
        return sum(lane.cancel_current() for lane in at_work)

    @property
    def rules(self) -> Rules:
        """The rules of the conversations."""
        return self.policy.rules

    @property
    def interaction_memory(self) -> AgentInteractionMemory | None:
        """The agent's interaction memory, where there is one."""
        return self._interaction_memory() if self._interaction_memory is not None else None

    def now(self) -> datetime:
        """The time of conversations."""
        return self._clock()

    async def get_preferences(self, owner: str) -> Preferences:
        """What somebody (a bare JID) prefers of this agent."""
        return await self._loader.get_preferences(owner)

    async def set_preferences(self, owner: str, preferences: Preferences) -> None:
        """Keeps what somebody prefers; it holds from the next turn on. `StoreError` if it cannot be stored."""
        await self._loader.set_preferences(owner, preferences)

    # For whoever runs the agent

    async def end_conversation(self, conversation_id: str) -> bool:
        """Ends a conversation; False where none of that id is active. The answer at work there still leaves."""
        return await self._control.end(conversation_id)

    async def reset_conversation(self, conversation_id: str) -> bool:
        """Begins a new episode, also of one that has reached its limit; False where there is none of that id."""
        return await self._control.reset(conversation_id)

    @property
    def is_paused(self) -> bool:
        """Whether nothing new is begun."""
        return self._control.is_paused

    def pause(self) -> None:
        """Begins nothing new; what runs ends, what comes in is kept. It lasts until `resume`, over restarts too."""
        self._control.set_paused(True)

    def resume(self) -> None:
        """Goes on with what was kept, in its order."""
        if self._control.set_paused(False):
            self._dispatcher.resume()

    def on_pause(self, callback: Callable[[], None]) -> None:
        """Calls this whenever the agent is paused or goes on."""
        self._control.on_pause = callback


_QUOTA_DIVISOR = 4  # of an agent's concurrency; one person has one at most
