"""What people feel about answers (XEP-0444): recorded with its turn, and given to the agent."""

from __future__ import annotations

import asyncio
import inspect
import logging
from uuid import UUID

from ..contracts import AgentInterface, Interaction
from ..exceptions import StoreError
from ..storage import AgentRepository
from .mailbox import Mailboxes

log = logging.getLogger(__name__)


class Feedback:
    """For the answers of one agent; whatever its `feedback` raises, only the log has it."""

    def __init__(self, agent: AgentInterface, store: AgentRepository, mailboxes: Mailboxes, timeout_s: float) -> None:
        self._agent = agent
        self._store = store
        self._mailboxes = mailboxes
        self._timeout_s = timeout_s
        self._tasks: set[asyncio.Task[None]] = set()

    def receive_reaction(self, sender: str, message_id: str, emojis: tuple[str, ...], nickname: str) -> None:
        """Takes the reaction of somebody to a message. One that is not ours, or not of a conversation of theirs, is none."""
        try:
            turn = UUID(message_id[:36])
        except ValueError:
            return
        task = asyncio.create_task(self._record_reaction(sender, turn, emojis, nickname))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait_until_idle(self) -> None:
        """Waits until everything is recorded; an agent that does not come to an end with it is stopped."""
        for timeout_s in (2.0, 1.0):
            if self._tasks:
                _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
                for task in late:
                    task.cancel()

    async def _record_reaction(self, sender: str, turn_id: UUID, emojis: tuple[str, ...], nickname: str) -> None:
        try:
            found = await self._store.save_feedback(str(turn_id), sender, emojis, nickname)
        except StoreError as error:
            log.error("%s: a reaction of %s is not stored: %s", self._store.agent, sender, error)
            return
        if found is None:
            return
        name, body = found
        lane = self._mailboxes.find_by_conversation(name)
        if lane is not None and lane.worker is None:
            lane.conversation = None  # it is loaded again, with what was recorded
        feedback = getattr(self._agent, "feedback", None)
        if callable(feedback):
            try:
                result = feedback(Interaction.model_validate_json(body), emojis)
                if inspect.isawaitable(result):
                    async with asyncio.timeout(self._timeout_s or None):
                        await result
            except (Exception, SystemExit, asyncio.CancelledError):  # sys.exit() would end the whole process
                log.exception("%s: feedback failed", self._store.agent)
