"""What is deleted for good, and when: what was said so long ago, or before so many turns, or in conversations that ended so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import NamedTuple

from ..contracts import ConversationState
from ..exceptions import StoreError
from ..memory import AgentInteractionMemory, HistoryWindow, forget_conversation
from ..storage import AgentRepository, StoredConversation
from .expiry import ConversationExpiry
from .mailbox import Mailboxes
from .policy import Keep, Retention

log = logging.getLogger(__name__)


class Purged(NamedTuple):
    """What was deleted: whole conversations, with all that belongs to them, and turns, theirs included."""

    conversations: int = 0
    turns: int = 0


class RetentionJob:
    """Deletes what an agent need not keep: at the start, and once a day; in pieces, beside the turns.

    A conversation that is being answered has time until the next day. `cancel_compaction` ends the work on a summary of one.
    """

    def __init__(
        self,
        store: AgentRepository,
        interaction_memory: Callable[[], AgentInteractionMemory | None],
        mailboxes: Mailboxes,
        expiry: ConversationExpiry,
        retention: Retention,
        clock: Callable[[], datetime],
        cancel_compaction: Callable[[str], Awaitable[None]],
    ) -> None:
        self._store = store
        self._interaction_memory = interaction_memory
        self._mailboxes = mailboxes
        self._expiry = expiry
        self._retention = retention
        self._clock = clock
        self._cancel_compaction = cancel_compaction
        self._is_closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begins to delete, where anything is not kept for ever."""
        self._is_closing.clear()
        if not self._retention.is_unlimited:
            self._task = asyncio.create_task(self._run_daily())

    async def close(self) -> None:
        """Ends after the piece that is being deleted."""
        self._is_closing.set()
        if self._task is not None:
            await self._task
            self._task = None

    async def _run_daily(self) -> None:
        while not self._is_closing.is_set():
            try:
                purged = await self.run()
            except StoreError as error:
                log.error("%s: what is too old is not deleted today: %s", self._store.agent, error)
            else:
                if purged != Purged():
                    log.info("%s: deleted for good: %d conversations, %d turns", self._store.agent, *purged)
            try:
                async with asyncio.timeout(self._retention.every.total_seconds()):
                    await self._is_closing.wait()
            except TimeoutError:
                continue

    async def run(self) -> Purged:
        """Deletes what is not to be kept as of now."""
        now = self._clock()
        conversations = turns = 0
        for state in ConversationState:
            keep = self._retention.for_state(state)
            if keep.age is not None:
                gone = await self._delete_idle(state, now - keep.age)
                conversations, turns = conversations + gone.conversations, turns + gone.turns
            if keep != Keep():
                turns += await self._delete_old_turns(state, now, keep)
        if self._retention.default.age is not None:
            await self._store.retention.delete_orphaned_variables(now - self._retention.default.age)
        return Purged(conversations, turns)

    async def _delete_idle(self, state: ConversationState, before: datetime) -> Purged:
        """Deletes the conversations in which nothing was said for so long."""
        conversations = turns = after = 0
        while rows := await self._store.retention.find_silent(state, before, after, self._retention.batch):
            after = rows[-1].id
            for row in rows:
                if self._is_closing.is_set():
                    return Purged(conversations, turns)
                if await self._evict(row):
                    turns += await self._delete_turns(row, None, row.turns)
                    if self._is_closing.is_set():
                        return Purged(conversations, turns)
                    self._expiry.on_deleted(row.conversation_id)  # before it may begin again
                    await forget_conversation(self._store, self._interaction_memory(), row, with_copies=False)
                    conversations += 1
        return Purged(conversations, turns)

    async def _delete_old_turns(self, state: ConversationState, now: datetime, keep: Keep) -> int:
        """Deletes the oldest turns of the conversations that go on."""
        before = now - keep.age if keep.age is not None else None
        deleted = after = 0
        while rows := await self._store.retention.find_overfull(state, before, keep.turns, after, self._retention.batch):
            after = rows[-1].id
            for row in rows:
                if self._is_closing.is_set():
                    return deleted
                if await self._evict(row):
                    most = row.turns - keep.turns if keep.turns is not None else 0
                    deleted += await self._delete_turns(row, before, most)
        return deleted

    async def _delete_turns(self, record: StoredConversation, before: datetime | None, through: int) -> int:
        deleted = 0
        while not self._is_closing.is_set():
            piece = await self._store.retention.delete_oldest(record.id, before, through, self._retention.batch)
            deleted += piece
            if piece < self._retention.batch:
                break
        return deleted

    async def _evict(self, record: StoredConversation) -> bool:
        """Frees what is held of a conversation in memory; False while it is being answered."""
        await self._cancel_compaction(record.conversation_id)
        lane = self._mailboxes.find_by_conversation(record.conversation_id)
        if lane is None:
            return True
        if lane.worker is not None:
            return False
        lane.conversation = None  # it is loaded again, without what is deleted
        self._mailboxes.evict_if_idle(lane)
        return True


class EphemeralOwners:
    """For one agent. Whoever has gone is an owner of conversations."""

    def __init__(self, store: AgentRepository, mailboxes: Mailboxes, history_window: HistoryWindow) -> None:
        self._store = store
        self._mailboxes = mailboxes
        self._history_window = history_window

    async def forget_where(self, has_left: Callable[[str], bool]) -> None:
        """Before the agent is open: forgets everybody who has gone meanwhile."""
        for owner in await self._store.list_people():
            if has_left(owner):
                await self._store.erase_person(owner)

    async def forget(self, owner: str) -> None:
        """Forgets somebody, once their turns are over."""
        while workers := [lane.worker for lane in self._mailboxes.of_sender(owner) if lane.worker is not None]:
            await asyncio.wait(workers)
        await self._history_window.cancel_for_owner(owner)
        for lane in self._mailboxes.of_sender(owner):
            lane.clear()  # what a pause keeps back
            lane.conversation = None
            self._mailboxes.evict_if_idle(lane)
        await self._store.erase_person(owner)
