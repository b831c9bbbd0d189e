"""The requests of a chat that wait for a person: the rest of a reply is shown when it comes, above the prompt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from ...exceptions import PeerError
from ..answers import AnswerText
from ..errors import format_error
from .incoming_texts import IncomingTexts

if TYPE_CHECKING:
    from ...runtime import PeerEvent


class ParkedRequests:
    """The requests whose replies go on when a person has answered."""

    def __init__(self, texts: IncomingTexts) -> None:
        self._texts = texts
        self._tasks: dict[asyncio.Task[None], tuple[str, str]] = {}
        self._arrival = asyncio.Event()
        self.arrivals = 0
        """The number of times that a request has ended, or has asked again."""

    @property
    def waiting(self) -> list[tuple[str, str]]:
        """The agents (JIDs) that wait for a person, each with the id of the request."""
        return list(self._tasks.values())

    def follow(self, jid: str, request_id: str, events: AsyncIterator[PeerEvent]) -> None:
        """Show what comes after the event `request.parked` of a request."""
        task = asyncio.create_task(self._follow(jid, events))
        self._tasks[task] = jid, request_id
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def wait_for_arrival(self, before: int, timeout_s: float) -> None:
        """Wait until `arrivals` is larger than `before`, unless no request is left or the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.arrivals == before and self._tasks:
                    self._arrival.clear()
                    await self._arrival.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        """Stop. The requests go on at their agents."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, jid: str, events: AsyncIterator[PeerEvent]) -> None:
        answer, text = AnswerText(), ""
        try:
            async for event in events:
                text += answer.feed(event)
                if event.type == "request.parked":
                    self._show(jid, text)
                    text = ""
        except PeerError as error:
            text += f"\n\n{format_error(error)}"
        self._show(jid, text)

    def _show(self, jid: str, text: str) -> None:
        if text.strip():
            self._texts.put(jid, text.strip())
        self.arrivals += 1
        self._arrival.set()
