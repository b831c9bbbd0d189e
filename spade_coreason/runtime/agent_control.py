"""Operations on a running agent: end or reset a conversation, and pause the agent."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from ..domain import conversation
from ..domain.conversation import ConversationStatus
from ..domain.texts.translation import N_
from ..storage import PLATFORM_SCOPE, AgentRepository, StoredAgent, StoredConversation
from .event_emitter import EventEmitter
from .intake.mailboxes import Mailboxes
from .upkeep.expiry import ConversationExpiry

log = logging.getLogger(__name__)

PAUSED_NOTICE = N_("I am paused at the moment. Your message is stored, and I answer it later.")

_NAME = "paused"
"""The name of the variable in which a pause is stored. The agent holds it."""


class AgentControl:
    """The operations on one agent. None waits for a turn, because an operator may call them within one."""

    def __init__(
        self, repository: AgentRepository, mailboxes: Mailboxes, expiry: ConversationExpiry, clock: Callable[[], datetime]
    ) -> None:
        self._repository = repository
        self._mailboxes = mailboxes
        self._expiry = expiry
        self._clock = clock
        self.pause_changed: EventEmitter[[]] = EventEmitter()
        """Emitted when the agent is paused or resumed."""

    def load(self, stored: StoredAgent) -> None:
        """Take the pause of an earlier run: a pause lasts over restarts."""
        if stored.get_by_holder(PLATFORM_SCOPE, _NAME).get(self._repository.agent) == "true":
            self._mailboxes.pause()

    @property
    def is_paused(self) -> bool:
        """True while the agent is paused: it starts no turns."""
        return self._mailboxes.is_paused

    def pause(self) -> None:
        """Start no further turns, until `resume`. Running turns finish, and new requests are stored.

        A pause lasts over restarts. It has effect at once; the write to the store follows.
        """
        self._set_paused(True)

    def resume(self) -> None:
        """End a pause: answer the stored requests in their order."""
        self._set_paused(False)

    def _set_paused(self, is_paused: bool) -> None:
        if is_paused is self._mailboxes.is_paused:
            return
        if is_paused:
            self._mailboxes.pause()
        else:
            self._mailboxes.resume()
        stored = self._repository.save_variable(PLATFORM_SCOPE, self._repository.agent, _NAME, "true" if is_paused else "false")
        stored.on_failed(self._log_failed_write)
        self.pause_changed.emit()

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

    def _log_failed_write(self, error: BaseException) -> None:
        log.error("%s: cannot store the pause or resume, which a restart will undo: %s", self._repository.agent, error)


def _end_if_active(status: ConversationStatus) -> ConversationStatus:
    return conversation.complete(status) if status.is_active else status
