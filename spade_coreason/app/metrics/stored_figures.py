"""The numbers of stored conversations and the like, counted on the event loop and read by the threads of scrapes."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import CancelledError
from contextlib import suppress

from ...concurrency import cancel_tasks
from ...exceptions import StoreError
from ...storage import CountsByState, Database, count_stored

log = logging.getLogger(__name__)

SCRAPE_WAIT_S = 0.5
"""The longest time that a scrape waits for the event loop and the database. Then it gets what was counted before."""
MIN_INTERVAL_S = 10.0
_MAX_SHARE = 0.05
"""The largest share of the time in which the database counts. A large one is asked less often."""


class StoredFigures:
    """The latest numbers of `count_stored`. Create it in the event loop; `refresh` is called by other threads.

    `interval_s` is the shortest time between two counts.
    """

    def __init__(self, database: Database, interval_s: float = MIN_INTERVAL_S) -> None:
        self._database = database
        self._interval_s = interval_s
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._due_at_s = 0.0
        self._asked_at_s: float | None = None
        """The time of the oldest scrape that the event loop has not noticed yet."""
        self._delay_s = 0.0
        self.counts: dict[str, CountsByState] | None = None
        """The latest numbers by table; None before the first time."""
        self.counted_at_s = 0.0
        """The time of the latest numbers, by `time.monotonic`."""

    @property
    def loop_delay_s(self) -> float:
        """The time that the event loop took to notice the last scrape, or for which it has not noticed one."""
        asked_at_s = self._asked_at_s
        return self._delay_s if asked_at_s is None else time.monotonic() - asked_at_s

    def refresh(self) -> None:
        """Count again if that is due. Wait at most `SCRAPE_WAIT_S`, from another thread than that of the event loop."""
        if self._loop.is_closed():
            return
        if self._asked_at_s is None:
            self._asked_at_s = time.monotonic()
        with suppress(TimeoutError, CancelledError):  # the loop is blocked, or the platform stops
            asyncio.run_coroutine_threadsafe(self._refresh(), self._loop).result(SCRAPE_WAIT_S)

    async def close(self) -> None:
        """End a count that runs."""
        await cancel_tasks(self._task)

    async def _refresh(self) -> None:
        if (asked_at_s := self._asked_at_s) is not None:
            self._delay_s, self._asked_at_s = time.monotonic() - asked_at_s, None
        if self._task is None and time.monotonic() >= self._due_at_s:
            self._task = asyncio.create_task(self._count())
        if self._task is not None:
            await asyncio.shield(self._task)

    async def _count(self) -> None:
        began_at_s = time.monotonic()
        try:
            self.counts = await count_stored(self._database)
            self.counted_at_s = time.monotonic()
        except StoreError as error:
            log.debug("the metrics cannot read the database: %s", error)
        finally:
            now_s = time.monotonic()
            self._due_at_s = max(began_at_s + self._interval_s, now_s + (now_s - began_at_s) / _MAX_SHARE)
            self._task = None
