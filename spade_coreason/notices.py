"""Notices that tell somebody once, and not again for a while: whoever sends everything back gets no second one."""

from __future__ import annotations

import asyncio

AGAIN_S = 60.0
_REMEMBERED = 10_000


class Notices:
    """Who was told something lately."""

    def __init__(self, again_s: float = AGAIN_S) -> None:
        self._again_s = again_s
        self._until: dict[str, float] = {}

    def may_tell(self, jid: str) -> bool:
        """Whether `jid` was not told within the last `again_s` seconds; from now on they were."""
        now = asyncio.get_running_loop().time()
        if now < self._until.get(jid, now):
            return False
        self._until.pop(jid, None)  # so that the first is the oldest
        self._until[jid] = now + self._again_s
        if len(self._until) > _REMEMBERED:
            del self._until[next(iter(self._until))]
        return True
