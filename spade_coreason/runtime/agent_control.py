"""The control of one running agent by operations: its conversations, its turns, its people, and its pause."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from ..contracts import QuestionState, Schedule
from ..domain import conversation
from ..domain.conversation import ConversationStatus
from ..domain.texts.error_chain import describe_await
from ..memory import ErasureReport
from ..operations.status import QuotaUsage, RunningTurn
from ..storage import (
    AgentRepository,
    Commit,
    CutOffTurn,
    FoundConversation,
    PendingRequest,
    Settled,
    StoredAgent,
    StoredConversation,
    StoredQuestion,
)
from .event_emitter import EventEmitter
from .initiative.initiative import Initiative
from .intake.access_requests import AccessRequests
from .intake.mailboxes import Mailboxes
from .intake.quota_limit import QuotaLimit
from .intake.recovery import InboxRecovery
from .live_erasure import LiveErasure
from .questions.desk import QuestionDesk
from .upkeep.expiry import ConversationExpiry

log = logging.getLogger(__name__)


class AgentControl:
    """One running agent as operations use it (`RunningAgent`).

    Only an erasure waits for turns, because an operator may call the others within one.
    """

    initiative: Initiative
    questions: QuestionDesk
    """The notifications and schedules of the agent, which are built after it."""

    def __init__(
        self,
        repository: AgentRepository,
        mailboxes: Mailboxes,
        expiry: ConversationExpiry,
        erasure: LiveErasure,
        recovery: InboxRecovery,
        access_requests: AccessRequests,
        quota_limit: QuotaLimit,
        clock: Callable[[], datetime],
    ) -> None:
        self._repository = repository
        self._mailboxes = mailboxes
        self._expiry = expiry
        self._erasure = erasure
        self.recovery = recovery
        self._access_requests = access_requests
        self.quota_limit = quota_limit
        self._clock = clock
        self._is_pause_decided = False
        self.pause_changed: EventEmitter[[]] = EventEmitter()
        """Emitted when the agent is paused or resumed."""

    def load(self, stored: StoredAgent) -> None:
        """Take the pause of an earlier run: a pause lasts over restarts. A decision of this run is newer than `stored`."""
        if stored.is_paused and not self._is_pause_decided:
            self._mailboxes.pause()

    # The pause

    @property
    def is_paused(self) -> bool:
        """True while the agent is paused: it starts no turns."""
        return self._mailboxes.is_paused

    async def find_pause(self) -> bool:
        """Return True while the agent is paused."""
        return self.is_paused

    def pause(self) -> Commit[bool]:
        """Start no further turns, until `resume`. Running turns finish, and new requests are stored.

        A pause lasts over restarts. It has effect at once; its commit is done when it is durable.
        """
        return self.set_paused(True)

    def resume(self) -> Commit[bool]:
        """End a pause: answer the stored requests in their order."""
        return self.set_paused(False)

    def set_paused(self, is_paused: bool) -> Commit[bool]:
        """Pause or resume."""
        self._is_pause_decided = True
        if is_paused is not self._mailboxes.is_paused:
            if is_paused:
                self._mailboxes.pause()
            else:
                self._mailboxes.resume()
            self.pause_changed.emit()
        stored = self._repository.save_pause(is_paused)
        stored.on_failed(self._log_failed_write)
        return stored

    # Conversations

    async def find_conversation(self, conversation_id: str) -> StoredConversation | None:
        """Return the record of a conversation in memory, which may not be stored yet; None if it is not in memory."""
        return self._find_active(conversation_id)

    async def end(self, conversation_id: str) -> bool:
        """End an active conversation, with the state `completed`. A running turn still sends its reply.

        Return False if no conversation of that id is active.
        """
        record = await self._change(conversation_id, _end_if_active)
        if record is None:
            return False
        await self._expiry.on_ended(conversation_id, record.status.state)
        if (mailbox := self._mailboxes.conversations.find(conversation_id)) is not None:
            self._mailboxes.evict_if_idle(mailbox)
        return True

    async def reset(self, conversation_id: str) -> bool:
        """Begin a new episode of a conversation in any state: active, with its counters at zero and the same history.

        Return False if no conversation has that id.
        """
        now = self._clock()
        record = await self._change(conversation_id, lambda status: conversation.restart_episode(status, now))
        if record is None:
            return False
        self._expiry.on_activity(conversation_id, now)
        return True

    async def _change(
        self, conversation_id: str, change: Callable[[ConversationStatus], ConversationStatus]
    ) -> StoredConversation | None:
        """Change the status of a conversation in memory and in the store.

        Return the changed record; None if no conversation has that id, or the change is empty.
        """
        stored = (
            None
            if self._find_active(conversation_id)
            else (await self._repository.find_conversations([conversation_id])).get(conversation_id)
        )
        record = self._find_active(conversation_id) or stored
        if record is None or (status := change(record.status)) is record.status:
            return None
        mailbox = self._mailboxes.conversations.find(conversation_id)
        record = replace(record, status=status)
        if not status.is_active:
            record = self._expiry.prune(record, mailbox.active if mailbox is not None else None)
        self._update_active(conversation_id, change)
        await self._repository.save_conversation(record)
        if stored is not None:
            self._update_active(conversation_id, change)  # a turn may have loaded the old record during the write
        return record

    def _find_active(self, conversation_id: str) -> StoredConversation | None:
        mailbox = self._mailboxes.conversations.find(conversation_id)
        return mailbox.active.record if mailbox is not None and mailbox.active is not None else None

    def _update_active(self, conversation_id: str, change: Callable[[ConversationStatus], ConversationStatus]) -> None:
        mailbox = self._mailboxes.conversations.find(conversation_id)
        if mailbox is not None and (active := mailbox.active) is not None:
            active.record = replace(active.record, status=change(active.record.status))
            active.echo_count = 0

    # Turns, requests and people

    async def list_operators(self) -> list[str]:
        """Return the bare JIDs of its operators."""
        return sorted(self._access_requests.access.operators)

    async def count_busy(self) -> int:
        """Return the number of conversations with a turn that runs."""
        return self._mailboxes.busy_count

    async def hold_turns(self) -> None:
        """Start no further turns, until `release_turns` was called as often."""
        self._mailboxes.hold()

    async def release_turns(self) -> None:
        """End what `hold_turns` began: start the turns of what waits."""
        self._mailboxes.release()

    async def wait_for_turns(self, timeout_s: float) -> None:
        """Wait until no turn runs, at most `timeout_s` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._mailboxes.wait_until_idle()

    async def list_turns(self) -> list[RunningTurn]:
        """Return the turns that run, the oldest first."""
        found = [
            RunningTurn(
                self._repository.agent,
                turn.queued.incoming.person or mailbox.sender,
                mailbox.conversation_id or "",
                turn.started_at,
                turn.last_step,
                describe_await(turn.work),
            )
            for mailbox in self._mailboxes
            if (turn := mailbox.turn) is not None
        ]
        return sorted(found, key=lambda turn: turn.since)

    async def run_stored(self, request: PendingRequest) -> bool:
        """Run a request that is stored and has not run in this process. Return False if it waits for a start or a resume."""
        self._repository.database.add_open_row(self._repository.agent, request.key, request.inbox_row)
        return self.recovery.queue(request) and self._mailboxes.is_accepting and not self._mailboxes.starts_none

    async def retry_notification(self, notification_id: str) -> bool:
        """Send a notification again. Return False if there is none, or if it is waiting."""
        return await self.initiative.notifier.retry(notification_id)

    async def drop_notification(self, notification_id: str) -> bool:
        """Delete a notification, also one that waits. Return False if there is none."""
        return await self.initiative.notifier.drop(notification_id)

    async def wake_notifications(self) -> None:
        """Look for notifications that are due: one was stored."""
        self.initiative.notifier.wake_at(self._clock())

    async def find_schedules(self, owner: str) -> list[Schedule]:
        """Return the schedules of one owner (a bare JID), the next due ones first."""
        return await self.initiative.scheduler.find_all(owner)

    async def cancel_schedule(self, schedule_id: str) -> bool:
        """Cancel a schedule. Return False if there is none."""
        return await self.initiative.scheduler.cancel(schedule_id)

    async def settle_question(
        self, question: StoredQuestion, state: QuestionState, answer: dict[str, Any], decided_by: str
    ) -> Settled | None:
        """Store the answer to a question, unless it has one; its request runs again. None if it was deleted."""
        return await self.questions.settle(question, state, answer, decided_by)

    async def may_answer(self, question: StoredQuestion, person: str) -> bool:
        """Return True if a person (a bare JID) who was asked may answer now."""
        return self.questions.may_answer(question, person)

    async def reassign_question(self, question: StoredQuestion) -> None:
        """Ask the people who may approve a call now, with a new code. ValueError, with the remedy, if that cannot be."""
        await self.questions.reassign(question)

    async def run_schedule(self, schedule_id: str) -> bool:
        """Run a schedule now. Return False if there is none. ValueError if a limit refuses its request."""
        return await self.initiative.scheduler.run_now(schedule_id)

    async def erase_person(self, person: str) -> ErasureReport:
        """Delete all that the agent has about a person (a bare JID). Their turns end first, and what waits is dropped."""
        return await self._erasure.erase_person(person)

    async def refuse_person(self, person: str) -> bool:
        """Refuse new requests of a person (a bare JID), also those that others pass on, and end what runs and waits of them.

        Return False if they are refused already.
        """
        return self._erasure.refuse_person(person)

    async def count_dropped(self, person: str) -> int:
        """Return the number of waiting requests that `refuse_person` has dropped."""
        return self._erasure.count_dropped(person)

    async def admit_person(self, person: str) -> None:
        """Take the requests of a person (a bare JID) again: end what `refuse_person` began."""
        self._erasure.admit_person(person)

    async def wait_until_admitted(self, person: str) -> None:
        """Wait until no deletion refuses the requests of a person (a bare JID)."""
        await self._erasure.wait_until_admitted(person)

    async def wait_for_person(self, person: str) -> bool:
        """Wait until the turns that ran at `refuse_person` are over, and stored if they had ended. False if one is not."""
        return await self._erasure.wait_for_person(person)

    async def list_cut_off(self, person: str) -> list[CutOffTurn]:
        """Return the turns in conversations of others that `refuse_person` has cancelled, after `wait_for_person`."""
        return self._erasure.list_cut_off(person)

    async def cut_conversation(self, conversation: FoundConversation, should_go_on: Callable[[], bool]) -> ErasureReport:
        """Erase the found turns from a conversation of an agent or a room. It ends early if `should_go_on` returns False."""
        return await self._erasure.cut_conversation(conversation, should_go_on)

    async def erase_conversation(self, record: StoredConversation) -> ErasureReport:
        """Delete a conversation. Its turn ends first, and what waits in it is dropped."""
        return await self._erasure.erase_conversation(record)

    async def decide_access(self, person: str, is_admitted: bool) -> bool:
        """Admit or reject a person (a bare JID). Return True if they may talk to the agent now."""
        return await self._access_requests.decide(person, is_admitted)

    async def list_waiting_people(self) -> list[str]:
        """Return the people (bare JIDs) about whom operators were asked and have not decided."""
        return self._access_requests.pending

    async def list_usage(self, person: str | None, limit: int) -> list[QuotaUsage]:
        """Return what a person has used today; without one the total, then those who used most."""
        return self.quota_limit.usage(limit) if person is None else [self.quota_limit.usage_of(person)]

    def _log_failed_write(self, error: BaseException) -> None:
        log.error("%s: cannot store the pause or resume, which a restart will undo: %s", self._repository.agent, error)


def _end_if_active(status: ConversationStatus) -> ConversationStatus:
    return conversation.complete(status) if status.is_active else status
