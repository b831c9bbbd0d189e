"""Those who will never be known again, as occupants of a room who have left: nothing of them is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .governance import Governance
from .lane import Lanes
from .stores import AgentStore


class Departures:
    """For one agent. Whoever has gone is an owner of conversations."""

    def __init__(self, store: AgentStore, lanes: Lanes, governance: Governance) -> None:
        self._store = store
        self._lanes = lanes
        self._governance = governance

    async def forget_where(self, is_gone: Callable[[str], bool]) -> None:
        """Before the agent is open: forgets everybody who has gone meanwhile."""
        for owner in await self._store.people():
            if is_gone(owner):
                await self._store.forget(owner)

    async def forget(self, owner: str) -> None:
        """Forgets somebody, once their turns are over."""
        while workers := [lane.worker for lane in self._lanes.of(owner) if lane.worker is not None]:
            await asyncio.wait(workers)
        await self._governance.let_go(owner)
        for lane in self._lanes.of(owner):
            lane.clear()  # what a pause keeps back
            lane.memory = None
            self._lanes.let_go(lane)
        await self._store.forget(owner)
