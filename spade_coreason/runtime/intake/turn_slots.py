"""The slots for turns: how many run at once, of one person or room, of one domain and of all."""

from __future__ import annotations

import asyncio
import weakref

from ...concurrency import Semaphore
from ...domain.jid import bare_jid, jid_domain
from ...domain.quotas import Quotas

_QUOTA_DIVISOR = 4  # one sender gets a quarter of an agent's turns at most, if nothing else is configured
_LARGE_PAUSE_S = 0.1
"""The time from the beginning of a large request to that of the next of its sender. Each costs as much as a hundred others."""


class TurnSlots:
    """The slots for the turns of one agent: `max_turns` in all, a share of them for each person and room."""

    def __init__(self, max_turns: int, quotas: Quotas) -> None:
        self._quotas = quotas
        self._max_turns = min(max_turns, quotas.total.turns or max_turns)
        self._all = Semaphore(self._max_turns)
        self._by_holder: weakref.WeakValueDictionary[tuple[str, str], Semaphore] = weakref.WeakValueDictionary()
        """The slots of people, rooms and domains, by kind and holder."""

    def of(self, owner: str, *, is_room: bool = False) -> Semaphore:
        """Return the slots for the turns of a person or a room (a bare JID)."""
        if "/" in owner:  # an occupant who writes privately shares the slots of the room
            owner, is_room = bare_jid(owner), True
        key = ("room" if is_room else "person"), owner
        slots = self._by_holder.get(key)
        if slots is None:
            role, quota = ("", self._quotas.room) if is_room else self._quotas.role_of(owner)
            limit = max(1, self._max_turns // _QUOTA_DIVISOR) if quota.turns is None else quota.turns or self._max_turns
            parent = self._all if role == "operator" else self._of_domain(jid_domain(owner))
            slots = self._by_holder[key] = Semaphore(min(limit, self._max_turns), parent)
        return slots

    async def pace_large(self, owner: str) -> None:
        """Wait until the next large request of a sender may begin, which is some time after the one before it."""
        key = "large", owner
        slot = self._by_holder.get(key)
        if slot is None:
            slot = self._by_holder[key] = Semaphore(1)
        await slot.acquire()
        asyncio.get_running_loop().call_later(_LARGE_PAUSE_S, slot.release)

    def _of_domain(self, domain: str) -> Semaphore:
        limit = self._quotas.domain.turns
        if not limit:
            return self._all
        slots = self._by_holder.get(("domain", domain))
        if slots is None:
            slots = self._by_holder["domain", domain] = Semaphore(limit, self._all)
        return slots
