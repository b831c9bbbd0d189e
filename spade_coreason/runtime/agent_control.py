"""The control of one running agent by operations: its conversations, its turns, its people, and its pause."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

from ..domain import conversation
from ..domain.conversation import ConversationStatus
from ..domain.quotas import QuotaUsage
from ..domain.texts.error_chain import describe_await
from ..operations.host import RunningAgent
from ..operations.status import RunningTurn
from ..storage import (
    AgentRepository,
    Commit,
    PendingRequest,
    StoredAgent,
    StoredConversation,
    StoredQuestion,
)
from .access.access_requests import AccessRequests
from .conversations.expiry import ConversationExpiry
from .event_emitter import EventEmitter
from .initiative.notifications import AgentNotifications
from .intake.recovery import InboxRecovery
from .intake.scheduler import Scheduler
from .live_erasure import LiveErasure
from .mailboxes.limits import QuotaLimit
from .mailboxes.mailboxes import Mailboxes
from .questions.desk import QuestionDesk

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, kw_only=True)
class AgentControl(RunningAgent):
    """One running agent as operations use it.

    Only an erasure waits for turns, because an operator may call the others within one.
    """

    repository: AgentRepository
    mailboxes: Mailboxes
    expiry: ConversationExpiry
    clock: Callable[[], datetime]
    recovery: InboxRecovery
    quota_limit: QuotaLimit
    access_requests: AccessRequests
    erasure: LiveErasure
    questions: QuestionDesk
    notifications: AgentNotifications
    schedules: Scheduler
    pause_changed: EventEmitter[[]] = field(default_factory=EventEmitter)
    """Emitted when the agent is paused or resumed."""
    _is_pause_decided: bool = False

    def load(self, stored: StoredAgent) -> None:
        """Take the pause of an earlier run: a pause lasts over restarts. A decision of this run is newer than `stored`."""
        if stored.is_paused and not self._is_pause_decided:
            self.mailboxes.gate.pause()

    # The pause

    @property
    def is_paused(self) -> bool:
        """True while the agent is paused: it starts no turns."""
        return self.mailboxes.gate.is_paused

    async def find_pause(self) -> bool:
        """Return True while the agent is paused."""
        return self.is_paused

    def set_paused(self, is_paused: bool) -> Commit[bool]:
        """Pause the agent (True) or resume it (False). The stored requests are answered in their order then.

        While it is paused no turn starts, running turns finish, and new requests are stored. A pause lasts over restarts. The
        call has effect at once; its commit is done when it is durable.
        """
        self._is_pause_decided = True
        if is_paused is not self.mailboxes.gate.is_paused:
            if is_paused:
                self.mailboxes.gate.pause()
            else:
                self.mailboxes.gate.resume()
            self.pause_changed.emit()
        stored = self.repository.save_pause(is_paused)
        stored.on_failed(self._log_failed_write)
        return stored

    # Conversations

    async def find_conversation(self, conversation_id: str) -> StoredConversation | None:
        """Return the record of a conversation, which may not be stored yet; None if there is none."""
        return self._find_active(conversation_id) or await self._load(conversation_id)

    async def _load(self, conversation_id: str) -> StoredConversation | None:
        return (await self.repository.find_conversations([conversation_id])).get(conversation_id)

    async def end(self, conversation_id: str) -> bool:
        """End an active conversation, with the state `completed`. A running turn still sends its reply.

        Return False if no conversation of that id is active.
        """
        record = await self._change(conversation_id, _end_if_active)
        if record is None:
            return False
        await self.expiry.on_ended(conversation_id, record.status.state)
        if (mailbox := self.mailboxes.conversations.find(conversation_id)) is not None:
            self.mailboxes.evict_if_idle(mailbox)
        return True

    async def reset(self, conversation_id: str) -> bool:
        """Begin a new episode of a conversation in any state: active, with its counters at zero and the same history.

        Return False if no conversation has that id.
        """
        now = self.clock()
        record = await self._change(conversation_id, lambda status: conversation.restart_episode(status, now))
        if record is None:
            return False
        self.expiry.on_activity(conversation_id, now)
        return True

    async def _change(
        self, conversation_id: str, change: Callable[[ConversationStatus], ConversationStatus]
    ) -> StoredConversation | None:
        """Change the status of a conversation in memory and in the store.

        Return the changed record; None if no conversation has that id, or the change is empty.
        """
        stored = None if self._find_active(conversation_id) else await self._load(conversation_id)
        record = self._find_active(conversation_id) or stored
        if record is None or (status := change(record.status)) is record.status:
            return None
        mailbox = self.mailboxes.conversations.find(conversation_id)
        record = replace(record, status=status)
        if not status.is_active:
            record = self.expiry.prune(record, mailbox.active if mailbox is not None else None)
        self._update_active(conversation_id, change)
        await self.repository.save_conversation(record)
        if stored is not None:
            self._update_active(conversation_id, change)  # a turn may have loaded the old record during the write
        return record

    def _find_active(self, conversation_id: str) -> StoredConversation | None:
        mailbox = self.mailboxes.conversations.find(conversation_id)
        return mailbox.active.record if mailbox is not None and mailbox.active is not None else None

    def _update_active(self, conversation_id: str, change: Callable[[ConversationStatus], ConversationStatus]) -> None:
        mailbox = self.mailboxes.conversations.find(conversation_id)
        if mailbox is not None and (active := mailbox.active) is not None:
            active.record = replace(active.record, status=change(active.record.status))
            active.echo_count = 0

    # Turns, requests and people

    async def list_operators(self) -> list[str]:
        """Return the bare JIDs of its operators."""
        return sorted(self.access_requests.access.operators)

    async def count_busy(self) -> int:
        """Return the number of conversations with a turn that runs."""
        return self.mailboxes.busy_count

    async def hold_turns(self) -> None:
        """Start no further turns, until `release_turns` was called as often."""
        self.mailboxes.gate.hold()

    async def release_turns(self) -> None:
        """End what `hold_turns` began: start the turns of what waits."""
        self.mailboxes.gate.release()

    async def wait_for_turns(self, timeout_s: float) -> None:
        """Wait until no turn runs, at most `timeout_s` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.mailboxes.wait_until_idle()

    async def list_turns(self) -> list[RunningTurn]:
        """Return the turns that run, the oldest first."""
        found = [
            RunningTurn(
                self.repository.agent,
                turn.queued.incoming.person or mailbox.sender,
                mailbox.conversation_id or "",
                turn.started_at,
                turn.last_step,
                describe_await(turn.work),
            )
            for mailbox in self.mailboxes
            if (turn := mailbox.turn) is not None
        ]
        return sorted(found, key=lambda turn: turn.since)

    async def run_stored(self, request: PendingRequest) -> bool:
        """Run a request that is stored and has not run in this process. Return False if it waits for a start or a resume."""
        self.repository.database.inbox_index.add_open(self.repository.agent, request.key, request.inbox_row)
        return self.recovery.queue(request) and self.mailboxes.is_accepting and not self.mailboxes.gate.is_closed

    async def wake_notifications(self) -> None:
        """Look for notifications that are due: one was stored."""
        self.notifications.tasks.wake()

    async def may_answer(self, question: StoredQuestion, person: str) -> bool:
        """Return True if a person (a bare JID) who was asked may answer now."""
        return self.questions.rights.may_answer(question, person)

    async def list_waiting_people(self) -> list[str]:
        """Return the people (bare JIDs) about whom operators were asked and have not decided."""
        return self.access_requests.pending

    async def list_usage(self, person: str | None, limit: int) -> list[QuotaUsage]:
        """Return what a person has used today; without one the total, then those who used most."""
        return self.quota_limit.usage(limit) if person is None else [self.quota_limit.usage_of(person)]

    def _log_failed_write(self, error: BaseException) -> None:
        log.error("%s: cannot store the pause or resume, which a restart will undo: %s", self.repository.agent, error)


def _end_if_active(status: ConversationStatus) -> ConversationStatus:
    return conversation.complete(status) if status.is_active else status
