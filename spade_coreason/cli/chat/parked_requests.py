"""The requests of a chat that wait for a person. The rest of a reply comes as a text of the agent, above the prompt."""

from __future__ import annotations

import asyncio

from ...domain.jid import bare_jid


class ParkedRequests:
    """The requests of a chat that wait: the agent (a JID) and the id of each, the oldest first."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, str]] = []
        self._text = asyncio.Event()

    def add(self, jid: str, request_id: str) -> None:
        """Add a request that waits for a person."""
        self.waiting.append((jid, request_id))

    def note_text(self, jid: str) -> None:
        """Note a text of an agent: it goes on with its oldest request."""
        self.waiting = self.waiting[: (place := self._find(jid))] + self.waiting[place + 1 :]
        self._text.set()

    async def wait_for_text(self, timeout_s: float) -> bool:
        """Wait for the next text, if a request waits. Return False if none comes."""
        if not self.waiting:
            return False
        self._text.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._text.wait()
        except TimeoutError:
            return False
        return True

    def _find(self, jid: str) -> int:
        agents = [bare_jid(waiting) for waiting, _ in self.waiting]
        return agents.index(bare_jid(jid)) if bare_jid(jid) in agents else len(agents)
