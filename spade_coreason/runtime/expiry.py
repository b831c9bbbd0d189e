"""The ends of an agent's conversations: idle ones time out, whoever asked is told, the agent's lifecycle follows."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from ..contracts import ConversationState
from ..domain import conversation
from ..domain.conversation import Rules
from ..domain.value import replace
from ..exceptions import StoreError
from ..memory import ActiveConversation
from ..storage import AgentRepository, StoredConversation
from .agent_lifecycle import AgentLifecycle
from .mailbox import Mailboxes
from .policy import Timings

log = logging.getLogger(__name__)

OnConversationEnd = Callable[[str, str], Any]

_DAY = timedelta(days=1)
_BATCH_SIZE = 500


class ConversationExpiry:
    """Which conversations are active, and what happens when one is no longer."""

    def __init__(
        self,
        store: AgentRepository,
        mailboxes: Mailboxes,
        lifecycle: AgentLifecycle,
        rules: Rules,
        clock: Callable[[], datetime],
        callbacks: Sequence[OnConversationEnd],
        prune: Callable[[StoredConversation, ActiveConversation | None], StoredConversation],
        timings: Timings,
    ) -> None:
        self._store = store
        self._mailboxes = mailboxes
        self._lifecycle = lifecycle
        self._rules = rules
        self._clock = clock
        self._callbacks = callbacks
        self._timings = timings
        self.prune = prune
        """What an end does to the window of a conversation; after a turn it is pruned anyway."""
        self._active: dict[str, datetime] = {}
        """When something was said last in each."""
        self._wake = asyncio.Event()
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Takes up what is active, and begins to watch it."""
        await self._store.inbox.purge(self._clock())
        for name, last in (await self._store.list_active()).items():
            self.on_activity(name, last)
        self._is_closing = False
        self._task = asyncio.create_task(self._watch_idle())

    async def close(self) -> None:
        """Watches no longer."""
        self._is_closing = True
        self._wake.set()
        if self._task is not None:
            await self._task  # not cancelled: it may be reading

    def on_activity(self, conversation_id: str, now: datetime) -> None:
        """A conversation is active, and something is said in it."""
        if not self._active:
            self._wake.set()
        self._active[conversation_id] = now

    def on_deleted(self, conversation_id: str) -> None:
        """A conversation is deleted; nobody is told."""
        if self._active.pop(conversation_id, None) is not None:
            self._notify_if_idle()

    async def on_ended(self, conversation_id: str, state: ConversationState) -> None:
        """A conversation is active no longer: says so to everybody who asked."""
        lane = self._mailboxes.find_by_conversation(conversation_id)
        if (
            lane is None or lane.conversation is None or not lane.conversation.record.status.is_active
        ):  # else it has begun again
            self._active.pop(conversation_id, None)
        for callback in self._callbacks:
            await self._run_callback(callback, conversation_id, state)
        self._notify_if_idle()

    def _notify_if_idle(self) -> None:
        if not self._active:
            self._lifecycle.on_idle(lambda: not self._active)

    async def _run_callback(self, callback: OnConversationEnd, conversation_id: str, state: ConversationState) -> None:
        """Calls somebody else's code in a task of its own: whatever becomes of it, the conversation goes on."""

        async def call() -> None:
            try:
                result = callback(conversation_id, state.value)
                if inspect.isawaitable(result):
                    await result
            except (Exception, SystemExit, asyncio.CancelledError):  # sys.exit() would end the whole process
                log.exception("%s: on_conversation_end of %s failed", self._store.agent, conversation_id)

        task = asyncio.create_task(call())
        timeout_s = self._timings.conversation_end_s
        _, late = await asyncio.wait({task}, timeout=timeout_s)
        if late:
            task.cancel()
            log.error("%s: on_conversation_end of %s took longer than %g s", self._store.agent, conversation_id, timeout_s)

    async def expire_idle(self) -> None:
        """Ends the conversations in which nothing was said for the idle timeout."""
        now = self._clock()
        before = now - self._rules.timeout
        silent = [name for name, last in self._active.items() if last <= before]
        waiting = [name for name in silent if not self._is_busy(name)]
        for first in range(0, len(waiting), _BATCH_SIZE):
            names = waiting[first : first + _BATCH_SIZE]
            rows = await self._store.find_conversations(names)
            for name in names:
                if self._is_busy(name) or self._active.get(name, now) > before:
                    continue  # it goes on, or is over, since its row was read
                if name not in rows:
                    self.on_deleted(name)
                else:
                    await self._expire_conversation(rows[name], now)

    def _is_busy(self, conversation_id: str) -> bool:
        """Whether a conversation is being answered: it is not idle, however long that takes."""
        lane = self._mailboxes.find_by_conversation(conversation_id)
        return lane is not None and (lane.worker is not None or lane.conversation is None)

    async def _expire_conversation(self, record: StoredConversation, now: datetime) -> None:
        lane = self._mailboxes.find_by_conversation(record.conversation_id)
        memory = lane.conversation if lane is not None else None
        record = memory.record if memory is not None else record
        life = conversation.apply_idle_timeout(record.status, now, self._rules)
        if life is record.status:  # what is stored says something else than was known
            if life.is_active:
                self.on_activity(record.conversation_id, life.last_interaction)
            else:
                self.on_deleted(record.conversation_id)
            return
        before, record = record, self.prune(replace(record, status=life), memory)
        if memory is not None:
            memory.record = record
        try:
            await self._store.save_conversation(record)
        except StoreError:
            if memory is not None and memory.record is record:
                memory.record = before
            raise
        await self.on_ended(record.conversation_id, life.state)
        if lane is not None:
            self._mailboxes.evict_if_idle(lane)

    async def _watch_idle(self) -> None:
        """Sleeps until the first conversation can have timed out; while none is active, until one is."""
        timeout = self._rules.timeout
        purged_at = self._clock()
        # What is being answered is looked at again, but not all the time.
        least_s = min(1.0, timeout.total_seconds() / 4)
        while not self._is_closing:
            if not self._active:
                await self._wait(None)
                continue
            try:
                oldest = min(self._active.values())
                due_s = (oldest + timeout - self._clock()).total_seconds() if timeout else _DAY.total_seconds()
                if await self._wait(min(max(least_s, due_s), _DAY.total_seconds())):
                    continue
                if timeout:
                    await self.expire_idle()
                if self._clock() - purged_at >= _DAY:
                    purged_at = self._clock()
                    await self._store.inbox.purge(purged_at)
            except StoreError as error:
                log.error("%s: idle conversations cannot be ended at the moment: %s", self._store.agent, error)
                await self._wait(self._timings.retry_s)

    async def _wait(self, delay_s: float | None) -> bool:
        """Sleeps so long, or until the first conversation is active, or the end; True if it was woken."""
        try:
            async with asyncio.timeout(delay_s):
                await self._wake.wait()
        except TimeoutError:
            return False
        if not self._is_closing:
            self._wake.clear()
        return True
