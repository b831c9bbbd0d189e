"""The renewal of a worker's lease: a thread with its own connection, so that a busy event loop does not lose the lease."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..backends.database import Database
from .leases import RENEW_SQL, Reach, WorkerTerms
from .mailbox import EVERYBODY, LEASES_CHANGED

_RENEWALS = 4
"""The number of renewals in the time of a lease."""
LAPSED = 0.7
"""The part of that time after which a worker does no more: it cannot know whether another one has taken over."""
_CUT_BY = 0.85
"""The part of that time by which the sessions must be cut, or the process ends."""
_LOOK_S = 1.0
"""The time between two looks of a worker that is not told."""


@dataclass(frozen=True, slots=True)
class LeaseHandlers:
    """The functions that a renewal calls. `on_lost` is called in its thread, with the reason; the others in the event loop.

    `on_renewed` follows each renewal, and each change of the leases by another worker. `on_lapsed` has to cut the sessions with
    the XMPP server, and `on_restored` may let them begin again. `on_lost` ends the process.

    `on_called` gets each other message of the bell (mailbox.py): to look at calls, at the doors, or with "" at both.
    """

    on_renewed: Callable[[], object]
    on_lapsed: Callable[[], object]
    on_restored: Callable[[], object]
    on_lost: Callable[[str], object]
    on_called: Callable[[str], object] = lambda payload: None


class LeaseRenewal:
    """Renews the lease of `worker`, which holds for `terms.lease_s` seconds, from `start` until `stop`.

    The lease is lost if another worker has deleted its row, and if the event loop does not react: for `blocked_s` seconds while
    the lease is renewed, or at once when it lapses. `lose` ends it too.
    """

    def __init__(self, database: Database, worker: int, terms: WorkerTerms, handlers: LeaseHandlers, blocked_s: float) -> None:
        self.snapshot = "{}"
        """The state that the worker publishes, as JSON. It is stored with the next renewal."""
        self._stored_snapshot = ""
        self._reach: Reach | None = None
        self._database = database
        self._worker = worker
        self._terms = terms
        self._handlers = handlers
        self._blocked_s = blocked_s
        self._main_loop = asyncio.get_running_loop()
        self._answered_at = self._renewed_at = time.monotonic()
        self._settled_at = 0.0
        self._is_lapsed = False
        self._is_cut = threading.Event()
        self._thread = threading.Thread(target=self._run_thread, name="lease-renewal", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_over = threading.Event()
        self._wake = asyncio.Event()
        self._untold: Reach | None = None
        """The result that is due: the other workers do not know it yet. None if they know all."""

    def start(self) -> None:
        """Begin. The lease has just been taken."""
        self._database.backend.bell.answer(self._take)
        self._thread.start()

    async def stop(self) -> None:
        """End the renewals."""
        self._is_over.set()
        self._renew_now()
        await asyncio.to_thread(self._thread.join)

    def note_reach(self, reach: Reach, is_due: bool) -> None:
        """Store the result of the last look for the XMPP server, by `time.monotonic`, with the next renewal.

        If it is due, that comes now, and the other workers are told.
        """
        self._reach = reach
        if is_due:
            self._untold = reach
            self._renew_now()

    def lose(self, reason: str) -> None:
        """Lose the lease, because another worker serves an agent of this one."""
        self._handlers.on_lost(reason)

    def _renew_now(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(self._wake.set)

    @property
    def lease_s(self) -> float:
        """The seconds for which each renewal holds."""
        return self._terms.lease_s

    @property
    def interval_s(self) -> float:
        """The seconds from one renewal to the next."""
        return self._terms.lease_s / _RENEWALS

    @property
    def has_lapsed(self) -> bool:
        """True if the lease was not renewed in time."""
        return self.seconds_left < (1 - LAPSED) * self._terms.lease_s

    @property
    def has_settled(self) -> bool:
        """False while the database is away, and for a while after that.

        The workers have to renew their leases then, and are not dead.
        """
        return self.seconds_left > self._terms.lease_s / 2 and time.monotonic() >= self._settled_at

    @property
    def seconds_left(self) -> float:
        """The seconds until the lease ends, if it is not renewed."""
        return self._renewed_at + self._terms.lease_s - time.monotonic()

    def _take(self, message: str) -> None:
        if message == LEASES_CHANGED:
            self._handlers.on_renewed()
        else:
            self._handlers.on_called(message)

    # In the thread

    def _run_thread(self) -> None:
        try:
            asyncio.run(self._run())
        except Exception as error:  # noqa: BLE001 - nothing else would notice that the lease is not renewed any more
            self._handlers.on_lost(f"its renewal failed: {error!r}")

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        engine = self._database.backend.connections.make_engine("spade-coreason lease", self.interval_s, self.interval_s)
        watch = asyncio.create_task(self._watch())
        try:
            while not self._is_over.is_set():
                with suppress(*self._database.backend.driver_errors):
                    async with engine.connect() as connection:
                        driver: Any = (await connection.get_raw_connection()).driver_connection
                        try:
                            await self._renew(driver)
                        finally:
                            driver.terminate()
                if not self._is_over.is_set():
                    await asyncio.sleep(self.interval_s / 5)
        finally:
            watch.cancel()
            await engine.dispose()

    async def _renew(self, driver: Any) -> None:
        while not self._is_over.is_set():
            began_at = time.monotonic()
            self._wake.clear()
            untold = self._untold  # before the reach, which is then not older
            looked, reach = self._reach is not None, self._reach or Reach(False, began_at, began_at)
            snapshot = self.snapshot
            found = await driver.fetchval(
                RENEW_SQL,
                self._worker,
                self._terms.lease_micros,
                snapshot if snapshot != self._stored_snapshot else None,
                reach.is_reached if looked else None,
                round((began_at - reach.began_at) * 1_000_000),
                round((began_at - reach.ended_at) * 1_000_000),
            )
            if found is None:
                if not self._is_over.is_set():
                    self._handlers.on_lost("another worker has taken over, because this one did not renew its lease in time")
                return
            if began_at - self._renewed_at > self._terms.lease_s / 2:
                self._settled_at = began_at + self._terms.lease_s / 2
            self._renewed_at = began_at
            if untold is not None:
                self._call(lambda: self._database.backend.bell.ring(EVERYBODY, LEASES_CHANGED))
                if self._untold is untold:
                    self._untold = None
            self._stored_snapshot = snapshot
            if self._is_lapsed:
                self._is_lapsed = False
                self._main_loop.call_soon_threadsafe(self._handlers.on_restored)
            self._call(self._handlers.on_renewed)
            interval_s = self.interval_s
            if not self._database.backend.bell.is_open:
                self._call(lambda: self._handlers.on_called(""))
                interval_s = min(interval_s, _LOOK_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, began_at + interval_s - time.monotonic())):
                    await self._wake.wait()

    async def _watch(self) -> None:
        """Look for a lease that lapses and for an event loop that does not react."""
        lease_s = self._terms.lease_s
        beat_at = 0.0
        while True:
            await asyncio.sleep(lease_s / 20)
            now = time.monotonic()
            if now > beat_at:
                beat_at = now + self.interval_s
                self._call(lambda: None)
            silent_s = now - self._renewed_at
            if silent_s > LAPSED * lease_s and not self._is_lapsed:
                self._is_lapsed = True
                self._is_cut.clear()  # not after the renewal: an earlier cut may still come
                self._main_loop.call_soon_threadsafe(self._cut)
            if self._is_lapsed and silent_s > _CUT_BY * lease_s and not self._is_cut.is_set():
                self._handlers.on_lost("the database cannot be reached, and something blocks the event loop")
            if now - self._answered_at > self._blocked_s:
                self._handlers.on_lost(f"the event loop has been blocked for {self._blocked_s:g} s")

    def _call(self, handler: Callable[[], object]) -> None:
        def run() -> None:
            self._answered_at = time.monotonic()
            handler()

        with suppress(RuntimeError):  # the loop is closed
            self._main_loop.call_soon_threadsafe(run)

    def _cut(self) -> None:
        self._handlers.on_lapsed()
        self._is_cut.set()
