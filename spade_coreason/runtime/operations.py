"""What those who run an agent do to its work: end or reset a conversation, hold all of them for a while."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime

from ..concurrency import RateLimiter
from ..domain import conversation
from ..domain.conversation import ConversationStatus
from ..domain.value import replace
from ..storage import AgentRepository, StoredConversation
from .expiry import ConversationExpiry
from .mailbox import Mailboxes

log = logging.getLogger(__name__)

PAUSED_NOTICE = "I am paused at the moment; your message is kept."

_SCOPE, _NAME = "platform", "paused"  # of the variable that lasts; its holder is the agent


class AgentControl:
    """For one agent. Nothing here waits for a turn: an operator may ask within one."""

    def __init__(
        self, store: AgentRepository, mailboxes: Mailboxes, expiry: ConversationExpiry, clock: Callable[[], datetime]
    ) -> None:
        self._store = store
        self._mailboxes = mailboxes
        self._expiry = expiry
        self._clock = clock
        self._rate_limiter = RateLimiter()
        self.is_paused = False
        self.on_pause: Callable[[], None] = lambda: None
        """Called when the agent is paused or goes on."""

    async def load(self) -> None:
        """A pause outlasts a restart."""
        stored = await self._store.load_variables(_SCOPE, self._store.agent)
        self.is_paused = self.is_paused or stored.get(_NAME) == "true"

    def set_paused(self, is_paused: bool) -> bool:
        """Whether that changed anything. It counts at once, and is stored as soon as that can be."""
        if is_paused is self.is_paused:
            return False
        self.is_paused = is_paused
        stored = self._store.save_variable(_SCOPE, self._store.agent, _NAME, "true" if is_paused else "false")
        stored.add_done_callback(self._log_failed_write)
        self.on_pause()
        return True

    def allow_notice(self, person: str) -> bool:
        """Whether somebody who writes meanwhile hears of the pause: once a minute."""
        return self._rate_limiter.allow(person)

    async def end(self, conversation_id: str) -> bool:
        """Ends an active conversation: `completed`. A turn that runs there still gives its answer."""
        row = await self._change(conversation_id, _end_if_active)
        if row is None:
            return False
        await self._expiry.on_ended(conversation_id, row.status.state)
        if (lane := self._mailboxes.find_by_conversation(conversation_id)) is not None:
            self._mailboxes.evict_if_idle(lane)
        return True

    async def reset(self, conversation_id: str) -> bool:
        """Begins a new episode of a conversation, whatever its state: active, nothing counted, with the same memory."""
        now = self._clock()
        row = await self._change(conversation_id, lambda life: conversation.restart_episode(life, now))
        if row is None:
            return False
        self._expiry.on_activity(conversation_id, now)
        return True

    async def _change(
        self, conversation_id: str, change: Callable[[ConversationStatus], ConversationStatus]
    ) -> StoredConversation | None:
        """Changes the life of a conversation, in memory and in the store. None if there is none, or nothing to change."""
        stored = (
            None
            if self._find_active(conversation_id)
            else (await self._store.find_conversations([conversation_id])).get(conversation_id)
        )
        row = self._find_active(conversation_id) or stored
        if row is None or (life := change(row.status)) is row.status:
            return None
        lane = self._mailboxes.find_by_conversation(conversation_id)
        row = replace(row, status=life)
        if not life.is_active:
            row = self._expiry.prune(row, lane.conversation if lane is not None else None)
        self._update_active(conversation_id, change)
        await self._store.save_conversation(row)
        if stored is not None:
            self._update_active(conversation_id, change)  # it may have been loaded meanwhile, as it was before
        return row

    def _find_active(self, conversation_id: str) -> StoredConversation | None:
        lane = self._mailboxes.find_by_conversation(conversation_id)
        return lane.conversation.record if lane is not None and lane.conversation is not None else None

    def _update_active(self, conversation_id: str, change: Callable[[ConversationStatus], ConversationStatus]) -> None:
        lane = self._mailboxes.find_by_conversation(conversation_id)
        if lane is not None and (memory := lane.conversation) is not None:
            memory.record = replace(memory.record, status=change(memory.record.status))
            memory.echo_count = 0

    def _log_failed_write(self, stored: asyncio.Future[bool]) -> None:
        if not stored.cancelled() and (error := stored.exception()) is not None:
            log.error("%s: whether it is paused is not stored, and a restart undoes it: %s", self._store.agent, error)


def _end_if_active(life: ConversationStatus) -> ConversationStatus:
    return conversation.complete(life) if life.is_active else life
