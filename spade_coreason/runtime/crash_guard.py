"""The protection against requests that end the process: what ran at several ends runs alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias

from ..exceptions import StoreError
from ..storage import CrashedRequest, RunningRequests

log = logging.getLogger(__name__)

MarkAlone: TypeAlias = Callable[[int, bool], Awaitable[None]]
"""A function that stores if a request, by its row in the inbox, runs alone."""

_POLL_S = 0.02
_RETRY_S = 0.5
_ALONE_S = 10.0
_MAX_ALONE_S = 160.0


class CrashGuard:
    """The guard of all agents of a process.

    It marks the requests whose turns run in `running`, so that the next process knows what ran when this one ended. `crashed`
    are the unanswered requests that ran at earlier crashes and stops. Suspects among them run one at a time. While one does, no
    other turn begins for at most `alone_s` seconds, and twice as long for each further end. `is_after_stop`: the last end was a
    stop, so that `crashed` has all the requests that it cut off.

    With `mark_alone` this is one of several workers. It stores when a suspect begins to run alone and when it does no more, and
    begins no turn before its request is durable: if it dies, another worker has to know what ran.
    """

    def __init__(
        self,
        running: RunningRequests,
        crashed: Collection[CrashedRequest] = (),
        alone_s: float = _ALONE_S,
        *,
        is_after_stop: bool = False,
        mark_alone: MarkAlone | None = None,
    ) -> None:
        self.running = running
        self._mark_alone = mark_alone
        self._unmarking: asyncio.Task[None] | None = None
        self._is_after_stop = is_after_stop
        self._handed_over: set[str] = set()
        self._cut_off: set[int] = set()
        self.suspects: dict[int, float] = {}
        """The suspects that have not run yet: the time for which each may run alone, by its row in the inbox."""
        self._failed: dict[int, CrashedRequest] = {}
        self._one_suspect = asyncio.Lock()
        self._may_start = asyncio.Event()
        self._may_start.set()
        self._alone_s = alone_s
        self.waits_for_storage = mark_alone is not None
        """True if no turn may begin before its request is durable."""
        self.add(crashed)

    def add(self, crashed: Collection[CrashedRequest], handed_over: Collection[str] = ()) -> None:
        """Take the unanswered requests that ran at earlier crashes and stops, also of agents that other workers have served.

        `handed_over` are the agents (bare JIDs) that another worker has given back at a stop. `crashed` has all that it cut
        off of these.
        """
        self._handed_over.update(handed_over)
        for request in crashed:
            self._cut_off.add(request.id)
            if request.failed_at is not None:
                self._failed[request.id] = request
                text = (
                    "crashed the process again, or blocked it for a minute,"
                    if request.has_crashed
                    else f"was cut off by {request.stops} stops"
                )
                log.error(
                    "%s: a request of %s %s and has failed; see `spade-coreason requests list`",
                    request.agent,
                    request.sender,
                    text,
                )
            elif request.is_suspect:
                self.suspects[request.id] = min(_MAX_ALONE_S, self._alone_s * 2**request.ends_as_suspect)
                log.warning(
                    "%s: a request of %s was running during %d crashes and %d stops of the process; it now runs alone",
                    request.agent,
                    request.sender,
                    request.crashes,
                    request.stops,
                )

    def remove(self, agent: str, rows: Iterable[int]) -> None:
        """Forget an agent that another worker is to serve, and its unanswered requests, by their rows in the inbox."""
        self._handed_over.discard(agent)
        for row in rows:
            self.suspects.pop(row, None)
            self._failed.pop(row, None)
            self._cut_off.discard(row)

    def find_failed(self, inbox_row: int) -> CrashedRequest | None:
        """Return a request that is not run again, because it ended the process. None for any other."""
        return self._failed.get(inbox_row)

    def may_have_begun(self, agent: str, inbox_row: int) -> bool:
        """Return False for a request of an agent of which it is known that the last stop did not cut off its turn."""
        return not (self._is_after_stop or agent in self._handed_over) or inbox_row in self._cut_off

    @asynccontextmanager
    async def permit(self, inbox_row: int) -> AsyncIterator[None]:
        """Wait until a turn may begin, and run it in the block. It is needed only while there are `suspects`."""
        alone_s = self.suspects.get(inbox_row)
        if alone_s is None:
            await self._may_start.wait()
            yield
            return
        try:
            async with self._one_suspect:
                self._may_start.clear()
                # A suspect may wait for another agent of this process, so the others cannot wait for its end.
                timer = asyncio.get_running_loop().call_later(alone_s, self._may_start.set)
                try:
                    # What runs already may take long. If it does, the crash of both proves nothing, and the next run decides.
                    while not (self.running.is_idle or self._may_start.is_set()):  # noqa: ASYNC110 - an event costs each turn
                        await asyncio.sleep(_POLL_S)
                    if self._mark_alone is not None and not self._may_start.is_set():
                        self._unmarking = asyncio.create_task(self._unmark(inbox_row))
                        await self._store_mark(inbox_row, True)
                    yield
                finally:
                    timer.cancel()
                    self._may_start.set()
        finally:
            self.suspects.pop(inbox_row, None)

    async def _unmark(self, inbox_row: int) -> None:
        """Store that a suspect runs alone no more, once other turns may begin."""
        await self._may_start.wait()
        await self._store_mark(inbox_row, False)

    async def _store_mark(self, inbox_row: int, runs_alone: bool) -> None:
        """Store if a suspect runs alone, also if the database is away now, unless it is not true any more."""
        assert self._mark_alone is not None
        while not (runs_alone and self._may_start.is_set()):
            with suppress(StoreError):
                await self._mark_alone(inbox_row, runs_alone)
                return
            await asyncio.sleep(_RETRY_S)
