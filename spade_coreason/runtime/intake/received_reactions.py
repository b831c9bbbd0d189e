"""Reactions of people to replies (XEP-0444): recorded with their turn, and passed to the agent."""

from __future__ import annotations

import asyncio
import inspect
import logging
from uuid import UUID

from ...contracts import Agent, Interaction
from ...exceptions import StoreError
from ...storage import AgentRepository
from ..mailboxes.mailboxes import Mailboxes

log = logging.getLogger(__name__)

_MAX_WAITING_PER_SENDER = 100
_MAX_WAITING = 1000


class ReceivedReactions:
    """The reactions to the replies of one agent. Exceptions of its `feedback` method are logged only.

    Those of one sender are recorded in their order, one at a time. A reaction replaces an earlier one to the same message. So
    of those that wait only the latest is kept, at most 100 of one sender and 1,000 of all.
    """

    def __init__(self, agent: Agent, repository: AgentRepository, mailboxes: Mailboxes, timeout_s: float) -> None:
        self._agent = agent
        self._repository = repository
        self._mailboxes = mailboxes
        self._timeout_s = timeout_s
        self._waiting: dict[str, dict[tuple[UUID, str], tuple[str, ...]]] = {}
        """Reactions by sender, then by turn and nickname."""
        self._waiting_count = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def receive_reaction(self, sender: str, message_id: str, emojis: tuple[str, ...], nickname: str) -> bool:
        """Record a reaction, unless it is to a message of others or of another owner's conversation.

        Return False if it is dropped because too many wait.
        """
        try:
            key = UUID(message_id[:36]), nickname
        except ValueError:
            return True
        waiting = self._waiting.setdefault(sender, {})
        if waiting.pop(key, None) is None:
            if len(waiting) >= _MAX_WAITING_PER_SENDER or self._waiting_count >= _MAX_WAITING:
                return False
            self._waiting_count += 1
        waiting[key] = emojis
        if sender not in self._tasks:
            self._tasks[sender] = asyncio.create_task(self._record_reactions(sender, waiting))
        return True

    async def wait_until_idle(self) -> None:
        """Wait until all reactions are recorded. Calls of `feedback` that take longer than two seconds are cancelled."""
        for timeout_s in (2.0, 1.0):
            if self._tasks:
                _, late = await asyncio.wait(self._tasks.values(), timeout=timeout_s)
                for task in late:
                    task.cancel()

    async def _record_reactions(self, sender: str, waiting: dict[tuple[UUID, str], tuple[str, ...]]) -> None:
        """Record the waiting reactions of one sender."""
        try:
            while waiting:
                key = turn_id, nickname = next(iter(waiting))
                emojis = waiting.pop(key)
                self._waiting_count -= 1
                await self._record_reaction(sender, turn_id, emojis, nickname)
        finally:
            self._waiting_count -= len(waiting)
            del self._waiting[sender], self._tasks[sender]

    async def _record_reaction(self, sender: str, turn_id: UUID, emojis: tuple[str, ...], nickname: str) -> None:
        try:
            stored = await self._repository.turns.save_feedback(str(turn_id), sender, emojis, nickname)
        except StoreError as error:
            log.error("%s: cannot store a reaction of %s: %s", self._repository.agent, sender, error)
            return
        if stored is None:
            return
        conversation_id, interaction = stored
        mailbox = self._mailboxes.conversations.find(conversation_id)
        if mailbox is not None and mailbox.worker is None:
            mailbox.active = None  # it is loaded again, with the reaction
            self._mailboxes.evict_if_idle(mailbox)
        feedback = getattr(self._agent, "feedback", None)
        if callable(feedback):
            try:
                result = feedback(Interaction.model_validate_json(interaction), emojis)
                if inspect.isawaitable(result):
                    async with asyncio.timeout(self._timeout_s or None):
                        await result
            except BaseException:  # sys.exit() and KeyboardInterrupt would end the whole process
                log.exception("%s: feedback failed", self._repository.agent)
