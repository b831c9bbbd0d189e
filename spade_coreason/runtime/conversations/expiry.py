"""The ends of conversations: idle ones time out, callbacks are called, and the agent's lifecycle is told."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from ...contracts import ConversationState
from ...domain import conversation
from ...domain.policy import Rules, RunnerTimings
from ...exceptions import StoreError
from ...memory import ActiveConversation
from ...storage import AgentRepository, StoredAgent, StoredConversation
from ..event_emitter import EventEmitter
from ..mailboxes.mailboxes import Mailboxes
from .agent_lifecycle import AgentLifecycle

log = logging.getLogger(__name__)

OnConversationEnd = Callable[[str, str], Any]
"""A function or coroutine function that is called with a conversation id and the final state of its episode."""

_DAY = timedelta(days=1)
_BATCH_SIZE = 500


class ConversationExpiry:
    """The active conversations of one agent, and the handling of their ends.

    `timings` limits the time of the subscribers of `conversation_ended`.
    """

    def __init__(
        self,
        repository: AgentRepository,
        mailboxes: Mailboxes,
        lifecycle: AgentLifecycle,
        rules: Rules,
        clock: Callable[[], datetime],
        prune: Callable[[StoredConversation, ActiveConversation | None], StoredConversation],
        timings: RunnerTimings,
    ) -> None:
        self._repository = repository
        self._mailboxes = mailboxes
        self._lifecycle = lifecycle
        self._rules = rules
        self._clock = clock
        self._timings = timings
        self.prune = prune
        """Prune the window of a conversation at its end. Without an end, each turn prunes it."""
        self.conversation_ended: EventEmitter[[str, str]] = EventEmitter()
        """Emitted with a conversation id and the final state of its episode. A subscriber may be a coroutine function."""
        self._active: dict[str, datetime] = {}
        """The time of the last activity of each active conversation."""
        self._wake = asyncio.Event()
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None

    async def open(self, stored: StoredAgent) -> None:
        """Take the active conversations, and begin to watch for idle ones."""
        await self._repository.inbox.purge(self._clock())
        for conversation_id, last_activity in stored.active.items():
            self.on_activity(conversation_id, last_activity)
        self._is_closing = False
        self._task = asyncio.create_task(self._watch_idle())

    async def close(self) -> None:
        """Stop watching."""
        self._is_closing = True
        self._wake.set()
        if self._task is not None:
            await self._task  # not cancelled, because it may be reading

    def on_activity(self, conversation_id: str, now: datetime) -> None:
        """Note the activity of a conversation, which makes it active."""
        if not self._active:
            self._wake.set()
        self._active[conversation_id] = now

    def on_deleted(self, conversation_id: str) -> None:
        """Drop a deleted conversation, without callbacks."""
        if self._active.pop(conversation_id, None) is not None:
            self._notify_if_idle()

    async def on_ended(self, conversation_id: str, state: ConversationState) -> None:
        """Drop a conversation that has ended, and call the subscribers. `state` is its final state."""
        mailbox = self._mailboxes.conversations.find(conversation_id)
        # If the conversation is active, a new episode began during the end of the last one.
        if mailbox is None or mailbox.active is None or not mailbox.active.record.status.is_active:
            self._active.pop(conversation_id, None)
        for callback in self.conversation_ended:
            await self._run_callback(callback, conversation_id, state)
        self._notify_if_idle()

    def _notify_if_idle(self) -> None:
        if not self._active:
            self._lifecycle.on_idle(lambda: not self._active)

    async def _run_callback(self, callback: OnConversationEnd, conversation_id: str, state: ConversationState) -> None:
        """Call a callback in a task of its own. Its failure or timeout is logged and does not stop the conversation."""

        async def call() -> None:
            try:
                result = callback(conversation_id, state.value)
                if inspect.isawaitable(result):
                    await result
            except BaseException:  # sys.exit() and KeyboardInterrupt would end the whole process
                log.exception("%s: on_conversation_end of %s failed", self._repository.agent, conversation_id)

        task = asyncio.create_task(call())
        timeout_s = self._timings.conversation_end_s
        _, late = await asyncio.wait({task}, timeout=timeout_s)
        if late:
            task.cancel()
            log.error("%s: on_conversation_end of %s took longer than %g s", self._repository.agent, conversation_id, timeout_s)

    async def expire_idle(self) -> None:
        """End the conversations that have been idle for the idle timeout."""
        now = self._clock()
        idle_since = now - self._rules.timeout
        candidates = [conversation_id for conversation_id, last_activity in self._active.items() if last_activity <= idle_since]
        idle = [conversation_id for conversation_id in candidates if not self._is_busy(conversation_id)]
        for first in range(0, len(idle), _BATCH_SIZE):
            batch = idle[first : first + _BATCH_SIZE]
            records = await self._repository.find_conversations(batch)
            for conversation_id in batch:
                if self._is_busy(conversation_id) or self._active.get(conversation_id, now) > idle_since:
                    continue  # it went on or ended after its record was read
                if conversation_id not in records:
                    self.on_deleted(conversation_id)
                else:
                    await self._expire_conversation(records[conversation_id], now)

    def _is_busy(self, conversation_id: str) -> bool:
        """Return True while a conversation is loaded or a turn of it runs: it is then not idle, even in a long turn."""
        mailbox = self._mailboxes.conversations.find(conversation_id)
        return mailbox is not None and (mailbox.worker is not None or mailbox.active is None)

    async def _expire_conversation(self, record: StoredConversation, now: datetime) -> None:
        mailbox = self._mailboxes.conversations.find(record.conversation_id)
        active = mailbox.active if mailbox is not None else None
        record = active.record if active is not None else record
        status = conversation.apply_idle_timeout(record.status, now, self._rules)
        if status is record.status:  # the stored status is newer than `_active`
            if status.is_active:
                self.on_activity(record.conversation_id, status.last_interaction)
            else:
                self.on_deleted(record.conversation_id)
            return
        previous, record = record, self.prune(replace(record, status=status), active)
        if active is not None:
            active.record = record
        try:
            await self._repository.save_conversation(record)
        except StoreError:
            if active is not None and active.record is record:
                active.record = previous
            raise
        await self.on_ended(record.conversation_id, status.state)
        if mailbox is not None:
            self._mailboxes.evict_if_idle(mailbox)

    async def _watch_idle(self) -> None:
        """Sleep until the first conversation may have timed out; with no active conversation, until one becomes active."""
        timeout = self._rules.timeout
        purged_at = self._clock()
        # A busy conversation is checked again, but not all the time.
        min_delay_s = min(1.0, timeout.total_seconds() / 4)
        while not self._is_closing:
            if not self._active:
                await self._wait(None)
                continue
            try:
                oldest = min(self._active.values())
                due_s = (oldest + timeout - self._clock()).total_seconds() if timeout else _DAY.total_seconds()
                if await self._wait(min(max(min_delay_s, due_s), _DAY.total_seconds())):
                    continue
                if timeout:
                    await self.expire_idle()
                if self._clock() - purged_at >= _DAY:
                    purged_at = self._clock()
                    await self._repository.inbox.purge(purged_at)
            except StoreError as error:
                log.error("%s: cannot end idle conversations at the moment: %s", self._repository.agent, error)
                await self._wait(self._timings.retry_s)

    async def _wait(self, delay_s: float | None) -> bool:
        """Sleep for a delay, or until the first conversation is active or `close` is called. Return True if woken early."""
        try:
            async with asyncio.timeout(delay_s):
                await self._wake.wait()
        except TimeoutError:
            return False
        if not self._is_closing:
            self._wake.clear()
        return True
