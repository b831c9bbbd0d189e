"""The clock of one agent: it wakes when the next notification or schedule is due, and not before."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from ...exceptions import StoreError

log = logging.getLogger(__name__)

_MAX_SLEEP_S = 86_400.0
"""The longest sleep: the clock of the machine may be set while it sleeps."""
_MIN_SLEEP_S = 0.001
"""The shortest sleep: the timer of the loop may be a little ahead of the clock."""


class DueSource(Protocol):
    """Something that has due times."""

    async def run_due(self, now: datetime) -> None:
        """Hand over what is due, a hundred at most. The clock asks again for the rest. StoreError if it cannot be read."""
        ...

    async def find_next_due(self) -> datetime | None:
        """Return the next due time of what `run_due` has not handed over; None without one, or while no more is taken."""
        ...


class DueTimes:
    """The clock of one agent. `retry_s` is the wait after a failure of the database."""

    def __init__(self, agent: str, sources: Sequence[DueSource], clock: Callable[[], datetime], retry_s: float) -> None:
        self._agent = agent
        self._sources = sources
        self._clock = clock
        self._retry_s = retry_s
        self._timer: asyncio.TimerHandle | None = None
        self._due_at: datetime | None = None
        """The time for which the timer is set."""
        self._task: asyncio.Task[None] | None = None
        self._is_open = self._looks_again = False
        self.has_alarm = True
        """False while a test sets the clock: then `check` and `catch_up` alone notice that time has passed."""
        self.wake_ups = 0
        """The number of times that it has looked for what is due."""

    def open(self) -> None:
        """Begin to wait for the due times that `wake_at` has named."""
        self._is_open = True
        if self._due_at is not None:
            self._set_timer(self._due_at)

    async def close(self) -> None:
        """Hand over nothing more."""
        self._is_open = False
        self._cancel_timer()
        if self._task is not None:
            await asyncio.wait({self._task})  # not cancelled, because it may be reading

    def wake_at(self, due_at: datetime) -> None:
        """Wake at a time, unless it wakes before. Before `open`, the time is kept."""
        if self._task is not None:
            self._looks_again = True  # it may have looked already
        elif self._due_at is None or due_at < self._due_at:
            self._due_at = due_at
            if self._is_open:
                self._set_timer(due_at)

    def check(self) -> None:
        """Look now: the clock was set."""
        if self._is_open:
            self._wake()

    async def find_next_due(self) -> datetime | None:
        """Return the next due time of all sources; None without one. StoreError if it cannot be read."""
        times = [due_at for source in self._sources if (due_at := await source.find_next_due()) is not None]
        return min(times, default=None)

    @property
    def is_open(self) -> bool:
        """True while it hands over what is due."""
        return self._is_open

    @property
    def is_due(self) -> bool:
        """True while it hands something over, or is about to."""
        return self._task is not None or (self._is_open and self._due_at is not None and self._due_at <= self._clock())

    async def catch_up(self) -> None:
        """Hand over what is due now, without waiting for the timer: the clock may have been set."""
        while self._is_open and self.is_due:
            if self._task is None:
                self.check()
            if self._task is not None:
                await asyncio.wait({self._task})

    def _set_timer(self, due_at: datetime) -> None:
        self._cancel_timer()
        self._due_at = due_at
        delay_s = (due_at - self._clock()).total_seconds()
        if delay_s <= 0:
            self._timer = asyncio.get_running_loop().call_later(0, self._wake)
        elif self.has_alarm:
            self._timer = asyncio.get_running_loop().call_later(min(max(delay_s, _MIN_SLEEP_S), _MAX_SLEEP_S), self._wake)

    def _wake_later(self) -> None:
        """Look again after a failure, also if a due time far away is named before."""
        self._cancel_timer()
        if self._is_open:
            self._due_at = self._clock() + timedelta(seconds=self._retry_s)
            self._timer = asyncio.get_running_loop().call_later(self._retry_s, self._wake)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._due_at = None

    def _wake(self) -> None:
        self._cancel_timer()
        if self._task is not None:
            self._looks_again = True
            return
        self._task = asyncio.get_running_loop().create_task(self._work())
        self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            # A fault of the platform. What is due is looked for again, so that one fault does not end all reminders.
            log.error("%s: cannot hand over what is due", self._agent, exc_info=error)
            self._wake_later()
        elif self._is_open and self._looks_again:
            self._wake()

    async def _work(self) -> None:
        self.wake_ups += 1
        self._looks_again = False
        try:
            now = self._clock()
            for source in self._sources:
                await source.run_due(now)
            next_due = await self.find_next_due()
        except StoreError as error:
            log.error("%s: cannot look for what is due; the next attempt is in %g s: %s", self._agent, self._retry_s, error)
            self._wake_later()
            return
        if next_due is not None and self._is_open:
            self._set_timer(next_due)
