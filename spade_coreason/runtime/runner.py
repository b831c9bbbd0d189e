"""The runner of one agent. It takes each request through five steps: load, execute, update, prune, save.

The seed describes these steps under Session Management and Runtime Behavior. The runner needs no network: requests come in
by `Runner.receive`, and stanzas go out by the `send` given to `Runner.open`. `gateway` lists the way of a message.
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
from ..domain.messages import Failed, InboundRequest, TextEmitted, conversation_owner
from ..domain.preferences import Preferences
from ..domain.value import replace
from ..memory import ActiveConversation, AgentInteractionMemory, HistoryWindows, Knowledge, Summariser, TokenCounter, Usage
from ..storage import AgentRepository, OnCommit
from .access_requests import AccessRequests
from .admission import MAX_HOPS, AdmissionControl, decide_for_conversation, refusal_notice
from .agent_control import PAUSED_NOTICE, AgentControl
from .agent_lifecycle import AgentLifecycle
from .client_features import ClientFeatures, UnknownClientFeatures
from .commands.executor import CommandExecutor
from .commands.model import Command, CommandResult
from .commands.parser import ParsedCommand
from .commands.registry import Commands
from .dispatcher import Dispatcher
from .expiry import ConversationExpiry, OnConversationEnd
from .files import Files
from .loader import ConversationLoader
from .long_answers import LongAnswers
from .mailbox import Mailbox, Mailboxes, MailboxTask, QueuedRequest
from .metrics import Metrics
from .outbound_stanza import SendStanzas
from .outbox import Outbox
from .policy import Policy
from .received_reactions import ReceivedReactions
from .response import Response
from .retention_job import EphemeralOwners, Purged, RetentionJob
from .stream import ReplyTimers
from .thread_resolver import ThreadResolver
from .turn import Turn
from .turn_services import TurnServices

__all__ = ["MAX_HOPS", "Policy", "Runner"]

log = logging.getLogger(__name__)


class Runner:
    """The runner of one agent: one turn at a time within a conversation, many conversations at once.

    `agent`: an object with `manifest` and `assist`. `jid`: its address, of which the bare JID counts. `store`: the database
    rows of this agent. `policy`: limits and timeouts. `clock`: the time of conversations, with a timezone.
    `on_conversation_end`: functions called with the conversation id and the final state when an episode ends; a method of
    the agent of this name is called last. `interaction_memory`: returns the agent's own memory. `files`: uploads, for
    replies too long for a chat. `knowledge`, `summariser`, `count_tokens`: parts of the memory strategy. `usage`: the
    counter of tokens.

    Call `open` before the agent goes online. To stop, call `drain`, then `close`. Use all methods from one event loop.
    """

    def __init__(
        self,
        agent: AgentInterface,
        jid: str,
        repository: AgentRepository,
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
        self.repository = repository
        self.policy = policy or Policy()
        self.knowledge = knowledge
        self.history_windows = HistoryWindows(
            repository, self.policy.memory, count_tokens=count_tokens, summariser=summariser, knowledge=knowledge
        )
        self.files = files
        self.metrics = Metrics()
        self.access_requests: AccessRequests | None = None
        """Decisions of operators about strangers; set by the gateway, None without one."""
        self.commands = Commands(agent, is_enabled=self.policy.commands, operators=self.policy.operators)
        self._clock = clock
        self._interaction_memory = interaction_memory
        timings = self.policy.timings
        # One person gets a share only, so that many threads of theirs leave room for others.
        self._mailboxes = Mailboxes(self.policy.concurrency, max(1, self.policy.concurrency // _QUOTA_DIVISOR))
        lifecycle = AgentLifecycle(agent, self.policy.lifecycle, self.policy.idle_shutdown_s, timings.shutdown_s)
        agent_callback = getattr(agent, "on_conversation_end", None)
        end_callbacks = (*on_conversation_end, agent_callback) if callable(agent_callback) else on_conversation_end
        self._expiry = ConversationExpiry(
            repository,
            self._mailboxes,
            lifecycle,
            self.policy.rules,
            clock,
            end_callbacks,
            self.history_windows.with_current_window,
            timings,
        )
        self._outbox = Outbox(self.jid, repository.inbox, self.policy.stanza_bytes)
        self._services = TurnServices(
            agent=agent,
            jid=self.jid,
            repository=repository,
            policy=self.policy,
            clock=clock,
            mailboxes=self._mailboxes,
            lifecycle=lifecycle,
            expiry=self._expiry,
            history_windows=self.history_windows,
            knowledge=knowledge,
            long_answers=LongAnswers(self.jid, files, self.policy.file_over_bytes),
            outbox=self._outbox,
            client_features=UnknownClientFeatures(),
            reply_timers=ReplyTimers(timings),
            assist_timers=TimerGroup(self.policy.assist_timeout_s, self.jid, timings.blocked_s),
            usage=usage or Usage(repository, clock),
            metrics=self.metrics,
        )
        self._loader = ConversationLoader(self._services)
        self._dispatcher = Dispatcher(self._services, self._run_turn, self._may_start)
        self._thread_resolver = ThreadResolver(repository, self._dispatcher.dispatch, self.policy.remembered_turns)
        self._admission = AdmissionControl(self._mailboxes, self._thread_resolver, repository.inbox, self.policy.queue)
        self._command_executor = CommandExecutor(
            self._services, self._loader, self.commands, self, self._admission, self._dispatcher.schedule
        )
        self._control = AgentControl(repository, self._mailboxes, self._expiry, clock)
        self._retention_job = RetentionJob(
            repository,
            lambda: self.interaction_memory,
            self._mailboxes,
            self._expiry,
            self.policy.retention,
            clock,
            self.history_windows.cancel_for_conversation,
        )
        self.ephemeral_owners = EphemeralOwners(repository, self._mailboxes, self.history_windows)
        self._feedback = ReceivedReactions(agent, repository, self._mailboxes, self.policy.assist_timeout_s)
        self._received_early: list[QueuedRequest] = []
        self._is_accepting = False

    # Opening and closing

    async def open(self, send: SendStanzas, client_features: ClientFeatures | None = None) -> None:
        """Load what the last run left unfinished, and begin to accept requests.

        `send` gets stanzas in order and must not fail. `client_features` tells what the clients of people can show; None
        if that is unknown. Requests that were received before this call are queued behind the recovered ones.
        """
        self._outbox.send = send
        self._services.client_features = client_features or UnknownClientFeatures()
        await self._control.load()
        await self._expiry.open()
        self._retention_job.open()
        await self._services.lifecycle.open()
        pending = await self.repository.inbox.load_pending()
        # Requests that arrived during this call may be among the pending ones.
        early, self._received_early = self._received_early, []
        early_rows = {queued.inbox_row for queued in early}
        self._is_accepting = True
        self._dispatcher.start()
        for pending_request in pending:
            if pending_request.inbox_row in early_rows:
                continue
            if pending_request.reply is not None:
                self._outbox.add_unsent(pending_request.inbox_row, json.loads(pending_request.reply))
            elif pending_request.request is not None:
                self._recover_request(
                    InboundRequest.from_json(pending_request.request),
                    UUID(bytes=pending_request.key),
                    pending_request.inbox_row,
                )
        for queued in early:
            self._thread_resolver.resolve_and_enqueue(queued, conversation_owner(queued.incoming))

    def _recover_request(self, incoming: InboundRequest, key: UUID, inbox_row: int) -> None:
        """Queue or refuse a request that was received and not finished before the restart (`Policy.on_restart`)."""
        stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        stored.set_result(True)
        if self.policy.on_restart == "rerun" or self.is_paused:  # during a pause its turn had not begun
            queued = QueuedRequest(incoming, key, inbox_row, stored, self.metrics.now(), is_redelivered=True)
            self._thread_resolver.resolve_and_enqueue(queued, conversation_owner(incoming))
            return
        text = "I was interrupted before I could answer this. Please ask again."
        self._outbox.add_unsent(inbox_row, self._outbox.encode(incoming, key, Failed(text, ErrorCode.UNAVAILABLE, True)))

    def send_unsent(self) -> None:
        """Send the final replies that the last run stored and the server did not acknowledge, with the same ids."""
        self._outbox.send_unsent()

    async def drain(self, grace_s: float) -> bool:
        """Start no new turns, and wait up to `grace_s` for those that run. Return False if some were cancelled.

        Requests whose turn was cancelled or had not begun stay in the inbox, and run after the next start.
        """
        self._is_accepting = False
        self._thread_resolver.stop()
        return await self._dispatcher.drain(grace_s)

    async def close(self) -> None:
        """Close the agent, after `drain`: end the background tasks and run `shutdown()`."""
        self._services.reply_timers.stop()
        self._services.assist_timers.cancel_all()
        await self._retention_job.close()
        await self._expiry.close()
        await self._thread_resolver.wait_until_idle()
        await self._feedback.wait_until_idle()
        await self.history_windows.close()
        await self._services.lifecycle.close()

    # The way of a request

    def receive(self, incoming: InboundRequest, on_stored: OnCommit | None = None) -> asyncio.Future[bool] | None:
        """Receive a request. The future is done when the request is durable: True if it is new, False for a duplicate.

        A duplicate is not run. Returns None if the request is refused and not stored: the queue is full, or the request
        came through too many agents. The sender is told. `on_stored` is called with the result of the future, before the
        reply is sent.
        """
        sender = conversation_owner(incoming)
        incoming = self._thread_resolver.resolve_now(incoming, sender)
        if (refusal := self._admission.refusal(incoming, sender)) is not None:
            self._outbox.send_problem(incoming, uuid4(), refusal)
            return None
        if incoming.replaces is not None:
            self.cancel_request(sender, incoming.replaces)
        key = derive_inbox_key(self.jid, sender, incoming.stanza_id, incoming.content, incoming.archive_id)
        request = incoming.to_json if incoming.is_text_only else incoming.to_json()
        inbox_row, stored, may_start_early = self.repository.inbox.receive(key.bytes, sender, request, self._clock(), on_stored)
        mailbox = self._mailboxes.get(sender, incoming.thread)
        if mailbox is not None and mailbox.worker is None:
            mailbox.has_cancelled_turn = False
        elif mailbox is not None:
            self._command_executor.cancel_if_requested(mailbox, incoming, stored, may_start_early)
        queued = QueuedRequest(incoming, key, inbox_row, stored, self.metrics.now(), may_start_early)
        if self._control.is_paused:
            stored.add_done_callback(partial(self._notify_of_pause, queued))
        if self._is_accepting:
            self._thread_resolver.resolve_and_enqueue(queued, sender)
        else:
            self._received_early.append(queued)
        return stored

    async def _run_turn(self, mailbox: Mailbox, queued: QueuedRequest) -> None:
        """Answer one request in a worker: load its conversation, then run a command, run the agent or refuse."""
        incoming = queued.incoming
        active = mailbox.active or await self._loader.load(mailbox)
        now = self._clock()
        if incoming.may_be_command:
            text = str(incoming.payload.get("query", ""))
            parsed = self.commands.parse(text)
            if isinstance(parsed, ParsedCommand) or incoming.channel == "program":
                await self._command_executor.reply_to_command(mailbox, active, queued, parsed)
                return
            if parsed is not text:
                incoming = replace(incoming, payload={**incoming.payload, "query": parsed})
                queued = replace(queued, incoming=incoming)
        decision = decide_for_conversation(active, incoming, now, self.policy.rules)
        active.status = decision.status
        if decision.ended_state is not None:
            await self._expiry.on_ended(active.record.conversation_id, decision.ended_state)
        response = self._services.make_response(queued, active)
        if decision.outcome is RUN:
            await Turn(self._services, mailbox, active, queued, response, now).answer()
        else:
            await self._refuse(active, queued, response, decision.outcome, now)

    async def _refuse(
        self, active: ActiveConversation, queued: QueuedRequest, response: Response, outcome: Outcome, now: datetime
    ) -> None:
        """Finish a request without a turn: with a notice, or in silence to people who have had one."""
        final_stanzas: list[str] = []
        incoming = queued.incoming
        if outcome is Outcome.NOTICE or incoming.channel == "program":
            notice = refusal_notice(active, incoming, now, self.policy.rules, has_commands=self.policy.commands)
            final_stanzas = response.finish(notice)
            active.echo_count = 0
        else:
            response.abandon()
        await self.repository.inbox.finish(
            queued.inbox_row, active.record, None, to_json(final_stanzas).decode() if final_stanzas else None
        )
        await queued.stored
        if final_stanzas:
            self._outbox.send_final(queued.inbox_row, final_stanzas)

    def _may_start(self, item: QueuedRequest | MailboxTask) -> bool:
        """Return True unless the agent is paused and the item is for it. So a command of the platform can end a pause."""
        return not self._control.is_paused or not self._command_executor.is_for_agent(item)

    def _notify_of_pause(self, queued: QueuedRequest, stored: asyncio.Future[bool]) -> None:
        """Tell a person that their message is stored until the pause ends. Programs get no notice: they wait for a reply."""
        incoming = queued.incoming
        is_new = not stored.cancelled() and stored.exception() is None and stored.result()
        if not is_new or not self.is_paused or incoming.channel not in ("person", "room"):
            return
        if self._command_executor.is_for_agent(queued) and self._control.allow_notice(conversation_owner(incoming)):
            self._outbox.send(self._outbox.encode(incoming, uuid4(), TextEmitted(PAUSED_NOTICE, 1)))

    # Beside the requests

    async def wait_for_capacity(self, incoming: InboundRequest) -> None:
        """Wait until the queues have room for a request, so that `receive` does not refuse it for their length."""
        await self._admission.wait_for_capacity(incoming)

    def cancel_request(self, sender: str, message_id: str) -> bool:
        """Cancel an unanswered request of `sender` (a bare JID). Return True if there was one."""
        return self._admission.cancel(sender, message_id)

    def record_reaction(self, sender: str, message_id: str, emojis: tuple[str, ...], nickname: str = "") -> None:
        """Record a reaction with the turn that it is about, and call the agent's `feedback`.

        `sender`: a bare JID. `nickname`: the occupant of a room who reacted. Ignored unless `message_id` is a message of
        this agent in a conversation of `sender`.
        """
        self._feedback.receive_reaction(sender, message_id, emojis, nickname)

    @property
    def turns_in_flight(self) -> int:
        """Number of conversations with a turn that runs or waits."""
        return len(self._dispatcher) + len(self._thread_resolver)

    def count_queued(self, sender: str) -> int:
        """Count the requests of a sender (a bare JID) that wait for their turn."""
        return self._mailboxes.count_queued(sender) + self._thread_resolver.count_queued(sender)

    def has_mailbox(self, conversation_id: str) -> bool:
        """Return True if a conversation has a mailbox in memory."""
        return self._mailboxes.find_by_conversation(conversation_id) is not None

    async def wait_until_idle(self, *mailbox_key: str | None) -> None:
        """Wait until no turn runs or waits.

        `mailbox_key` limits that to one mailbox: its sender (a bare JID) and its thread.
        """
        await self._thread_resolver.wait_until_idle()
        await self._dispatcher.wait_until_idle(*mailbox_key)

    async def purge(self) -> Purged:
        """Delete permanently what `Policy.retention` does not keep. The runner does so at the start and once a day."""
        return await self._retention_job.run()

    async def expire_idle(self) -> None:
        """End the conversations that have been idle for the idle timeout. The runner does so when one is due."""
        await self._expiry.expire_idle()

    # What commands need

    async def run_command(
        self, owner: str, command: Command, values: Mapping[str, Any], conversation_id: str | None = None
    ) -> CommandResult:
        """Run a command of `owner` (a bare JID) outside of a turn, and return its result.

        The command applies to `conversation_id`, which must belong to `owner`; by default to the newest conversation of
        `owner`. A command that changes a conversation waits for its turn there. Raises `StoreError`; `FieldError` for a
        value that the command does not accept; `CancelledError` if the conversation is deleted while the command waits.
        """
        if not self._is_accepting:
            return CommandResult("I am about to stop; please try again later.", is_error=True)
        return await self._command_executor.run_command(owner, command, values, conversation_id)

    def send_command_result(self, owner: str, result: CommandResult) -> None:
        """Send the result of a command to `owner` (a bare JID), outside of a turn."""
        self._command_executor.send_command_result(owner, result)

    def cancel_replies(self, owner: str) -> int:
        """Cancel the running turns of a sender (a bare JID) in all conversations. Return the number of cancelled turns."""
        answering = [
            mailbox
            for mailbox in self._mailboxes.of_sender(owner)
            if mailbox.current is not None and self._command_executor.is_for_agent(mailbox.current)
        ]
        return sum(mailbox.cancel_current() for mailbox in answering)

    @property
    def rules(self) -> Rules:
        """The limits and timeouts of conversations, from the policy."""
        return self.policy.rules

    @property
    def interaction_memory(self) -> AgentInteractionMemory | None:
        """The agent's interaction memory; None if it has none."""
        return self._interaction_memory() if self._interaction_memory is not None else None

    def now(self) -> datetime:
        """Return the time of the clock for conversations."""
        return self._clock()

    async def get_preferences(self, owner: str) -> Preferences:
        """Return the preferences of a person (a bare JID) for this agent."""
        return await self._loader.get_preferences(owner)

    async def set_preferences(self, owner: str, preferences: Preferences) -> None:
        """Store the preferences of a person (a bare JID), for the next turn on. Raises `StoreError`."""
        await self._loader.set_preferences(owner, preferences)

    # What operators need

    async def end_conversation(self, conversation_id: str) -> bool:
        """End a conversation. Return False if no conversation of that id is active. A running turn still sends its reply."""
        return await self._control.end(conversation_id)

    async def reset_conversation(self, conversation_id: str) -> bool:
        """Begin a new episode, even if the conversation has reached its limit. Return False if there is none of that id."""
        return await self._control.reset(conversation_id)

    @property
    def is_paused(self) -> bool:
        """True while the agent is paused: it starts no turns."""
        return self._control.is_paused

    def pause(self) -> None:
        """Start no further turns, until `resume`. Running turns finish, and new requests are stored.

        A pause lasts over restarts.
        """
        self._control.set_paused(True)

    def resume(self) -> None:
        """End a pause: answer the stored requests in their order."""
        if self._control.set_paused(False):
            self._dispatcher.resume()

    def on_pause(self, callback: Callable[[], None]) -> None:
        """Set the function that is called when the agent is paused or resumed."""
        self._control.on_pause = callback


_QUOTA_DIVISOR = 4  # one person gets a quarter of an agent's concurrency at most
