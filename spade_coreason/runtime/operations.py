"""What those who run an agent do to its work: end or reset a conversation, hold all of them for a while."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime

from ..concurrency import Notices
from ..domain import conversation
from ..domain.conversation import Life
from ..domain.value import replace
from ..storage import AgentStore, ConversationRow
from .expiry import Ends
from .mailbox import Lanes

log = logging.getLogger(__name__)

PAUSED = "I am paused at the moment; your message is kept."

_SCOPE, _NAME = "platform", "paused"  # of the variable that lasts; its holder is the agent


class Operators:
    """For one agent. Nothing here waits for a turn: an operator may ask within one."""

    def __init__(self, store: AgentStore, lanes: Lanes, ends: Ends, clock: Callable[[], datetime]) -> None:
        self._store = store
        self._lanes = lanes
        self._ends = ends
        self._clock = clock
        self._notices = Notices()
        self.is_paused = False
        self.on_pause: Callable[[], None] = lambda: None
        """Called when the agent is paused or goes on."""

    async def open(self) -> None:
        """A pause outlasts a restart."""
        stored = await self._store.variables(_SCOPE, self._store.agent)
        self.is_paused = self.is_paused or stored.get(_NAME) == "true"

    def pause(self, is_paused: bool) -> bool:
        """Whether that changed anything. It counts at once, and is stored as soon as that can be."""
        if is_paused is self.is_paused:
            return False
        self.is_paused = is_paused
        stored = self._store.save_variable(_SCOPE, self._store.agent, _NAME, "true" if is_paused else "false")
        stored.add_done_callback(self._look)
        self.on_pause()
        return True

    def may_tell(self, person: str) -> bool:
        """Whether somebody who writes meanwhile hears of the pause: once a minute."""
        return self._notices.may_tell(person)

    async def end(self, name: str) -> bool:
        """Ends an active conversation: `completed`. A turn that runs there still gives its answer."""
        row = await self._change(name, _ended)
        if row is None:
            return False
        await self._ends.ended(name, row.life.state)
        if (lane := self._lanes.named(name)) is not None:
            self._lanes.let_go(lane)
        return True

    async def reset(self, name: str) -> bool:
        """Begins a new episode of a conversation, whatever its state: active, nothing counted, with the same memory."""
        now = self._clock()
        row = await self._change(name, lambda life: conversation.reset(life, now))
        if row is None:
            return False
        self._ends.begun(name, now)
        return True

    async def _change(self, name: str, change: Callable[[Life], Life]) -> ConversationRow | None:
        """Changes the life of a conversation, in memory and in the store. None if there is none, or nothing to change."""
        stored = None if self._in_memory(name) else (await self._store.find_conversations([name])).get(name)
        row = self._in_memory(name) or stored
        if row is None or (life := change(row.life)) is row.life:
            return None
        lane = self._lanes.named(name)
        row = replace(row, life=life)
        if not life.is_active:
            row = self._ends.prune(row, lane.memory if lane is not None else None)
        self._keep(name, change)
        await self._store.save_conversation(row)
        if stored is not None:
            self._keep(name, change)  # it may have been loaded meanwhile, as it was before
        return row

    def _in_memory(self, name: str) -> ConversationRow | None:
        lane = self._lanes.named(name)
        return lane.memory.row if lane is not None and lane.memory is not None else None

    def _keep(self, name: str, change: Callable[[Life], Life]) -> None:
        lane = self._lanes.named(name)
        if lane is not None and (memory := lane.memory) is not None:
            memory.row = replace(memory.row, life=change(memory.row.life))
            memory.echoes = 0

    def _look(self, stored: asyncio.Future[bool]) -> None:
        if not stored.cancelled() and (error := stored.exception()) is not None:
            log.error("%s: whether it is paused is not stored, and a restart undoes it: %s", self._store.agent, error)


def _ended(life: Life) -> Life:
    return conversation.end(life) if life.is_active else life
