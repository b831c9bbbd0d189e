"""Notices that tell somebody a few times a minute and no more: whoever sends everything back would get them for ever."""

from __future__ import annotations

import asyncio

AGAIN_S = 60.0
_REMEMBERED = 10_000


class Notices:
    """Who was told something lately, `times` a minute at most."""

    def __init__(self, times: int = 1) -> None:
        self._times = times
        self._told: dict[str, tuple[float, int]] = {}

    def may_tell(self, jid: str) -> bool:
        """Whether `jid` may be told; if so it counts as done."""
        now = asyncio.get_running_loop().time()
        since, times = self._told.pop(jid, (now, 0))
        if now >= since + AGAIN_S:
            since, times = now, 0
        self._told[jid] = since, min(times + 1, self._times)
        if len(self._told) > _REMEMBERED:
            del self._told[next(iter(self._told))]  # who was quiet for longest
        return times < self._times
