"""Permanent deletion: of old turns and conversations by `Rules.retention`, and of owners who have left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import NamedTuple

from ...contracts import ConversationState
from ...domain.policy import Keep, Policy
from ...exceptions import StoreError
from ...memory import AgentInteractionMemory, HistoryWindows, erase_conversation
from ...storage import AgentRepository, StoredConversation
from ..mailboxes.mailboxes import Mailboxes
from ..mailboxes.withdrawal import Withdrawal
from .expiry import ConversationExpiry

log = logging.getLogger(__name__)


class Purged(NamedTuple):
    """Numbers of deleted conversations and turns. Deleted turns include those of deleted conversations."""

    conversations: int = 0
    turns: int = 0


class RetentionJob:
    """The daily deletion of one agent's old turns and conversations, in small transactions between those of turns.

    A conversation with a running turn is left until the next day. `cancel_compaction` stops the work on a summary of one.
    """

    def __init__(
        self,
        repository: AgentRepository,
        interaction_memory: Callable[[], AgentInteractionMemory] | None,
        mailboxes: Mailboxes,
        expiry: ConversationExpiry,
        policy: Policy,
        clock: Callable[[], datetime],
        cancel_compaction: Callable[[str], Awaitable[None]],
    ) -> None:
        self._repository = repository
        self._interaction_memory = interaction_memory
        self._mailboxes = mailboxes
        self._expiry = expiry
        self._retention = policy.rules.retention
        self._interval_s = policy.timings.retention_s
        self._batch_rows = policy.retention_rows
        self._clock = clock
        self._cancel_compaction = cancel_compaction
        self._is_closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Start the job, unless the policy keeps everything."""
        self._is_closing.clear()
        if any(self._retention.for_state(state).is_limited for state in ConversationState):
            self._task = asyncio.create_task(self._run_daily())

    async def close(self) -> None:
        """Stop the job after its current transaction."""
        self._is_closing.set()
        if self._task is not None:
            await self._task
            self._task = None

    async def _run_daily(self) -> None:
        while not self._is_closing.is_set():
            try:
                purged = await self.run()
            except StoreError as error:
                log.error("%s: cannot delete expired data; the next attempt is in a day: %s", self._repository.agent, error)
            else:
                if purged != Purged():
                    log.info("%s: retention deleted %d conversations and %d turns", self._repository.agent, *purged)
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._is_closing.wait()
            except TimeoutError:
                continue

    async def run(self) -> Purged:
        """Delete once all that the policy does not keep as of now."""
        now = self._clock()
        conversations = turns = 0
        for state in ConversationState:
            keep = self._retention.for_state(state)
            if keep.age is not None:
                deleted = await self._delete_idle(state, now - keep.age)
                conversations, turns = conversations + deleted.conversations, turns + deleted.turns
            if keep.is_limited:
                turns += await self._delete_old_turns(state, now, keep)
        if (age := self._retention.age) is not None:
            await self._repository.retention.delete_orphaned_variables(now - age)
        if (age := self._retention.shortest_age) is not None:
            await self._repository.incidents.delete_older(now - age)
        return Purged(conversations, turns)

    async def _delete_idle(self, state: ConversationState, before: datetime) -> Purged:
        """Delete the conversations in a state that have been idle since `before`."""
        conversations = turns = after_id = 0
        memory = None if self._interaction_memory is None else self._interaction_memory()
        while records := await self._repository.retention.find_idle(state, before, after_id, self._batch_rows):
            after_id = records[-1].id
            for record in records:
                if self._is_closing.is_set():
                    return Purged(conversations, turns)
                if await self._evict(record):
                    turns += await self._delete_turns(record, None, record.turns)
                    if self._is_closing.is_set():
                        return Purged(conversations, turns)
                    self._expiry.on_deleted(record.conversation_id)  # before a request can load it again
                    await erase_conversation(self._repository, memory, record, with_copies=False)
                    conversations += 1
        return Purged(conversations, turns)

    async def _delete_old_turns(self, state: ConversationState, now: datetime, keep: Keep) -> int:
        """Delete the oldest turns of conversations in a state that themselves stay."""
        before = now - keep.age if keep.age is not None else None
        deleted = after_id = 0
        while records := await self._repository.retention.find_with_expired_turns(
            state, before, keep.turns or None, after_id, self._batch_rows
        ):
            after_id = records[-1].id
            for record in records:
                if self._is_closing.is_set():
                    return deleted
                if await self._evict(record):
                    through = record.turns - keep.turns if keep.turns else 0
                    deleted += await self._delete_turns(record, before, through)
        return deleted

    async def _delete_turns(self, record: StoredConversation, before: datetime | None, through: int) -> int:
        deleted = 0
        while not self._is_closing.is_set():
            count = await self._repository.retention.delete_oldest(record.id, before, through, self._batch_rows)
            deleted += count
            if count < self._batch_rows:
                break
        return deleted

    async def _evict(self, record: StoredConversation) -> bool:
        """Remove a conversation from memory. Return False while a turn of it runs."""
        await self._cancel_compaction(record.conversation_id)
        mailbox = self._mailboxes.conversations.find(record.conversation_id)
        if mailbox is None:
            return True
        if mailbox.worker is not None:
            return False
        mailbox.active = None  # it is loaded again, without the deleted turns
        self._mailboxes.evict_if_idle(mailbox)
        return True


class EphemeralOwners:
    """The owners of one agent's conversations who may leave for good, such as occupants of rooms."""

    def __init__(
        self, repository: AgentRepository, mailboxes: Mailboxes, withdrawal: Withdrawal, history_windows: HistoryWindows
    ) -> None:
        self._repository = repository
        self._mailboxes = mailboxes
        self._withdrawal = withdrawal
        self._history_windows = history_windows

    async def erase_where(self, has_left: Callable[[str], bool]) -> None:
        """Erase all owners for whom `has_left` returns True, before the runner opens."""
        for owner in await self._repository.list_people():
            if has_left(owner):
                await self._repository.erase_person(owner)

    async def erase(self, owner: str) -> None:
        """Erase an owner, once their running turns have ended."""
        while workers := [mailbox.worker for mailbox in self._mailboxes.of_sender(owner) if mailbox.worker is not None]:
            await asyncio.wait(workers)
        await self._history_windows.cancel_for_owner(owner)
        for mailbox in self._mailboxes.of_sender(owner):
            self._withdrawal.drop_all(mailbox)  # requests that wait for the end of a pause
            mailbox.active = None
            self._mailboxes.evict_if_idle(mailbox)
        await self._repository.erase_person(owner)
