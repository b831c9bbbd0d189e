"""The canary of a worker: it finds out within seconds whether this worker reaches the XMPP server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol

from ...exceptions import ConnectError
from ...storage import Reach

log = logging.getLogger(__name__)

_CHECKS = 4
"""The number of checks in the time of a lease."""
_ANSWER = 1 / 3
"""The part of that time that the server has for the answer to a new stream."""
_LOOKS = 10
"""The number of looks for an answer on a connection."""
_STALLED = 1.25
"""An attempt that took so many times its timeout says nothing: this process did not run in that time."""


class CanaryConnection(Protocol):
    """A connection of an agent."""

    @property
    def answered_at(self) -> float | None:
        """The time (`time.monotonic`) of the last answer by the server to what this side sent; None without a session."""
        ...

    def request_answer(self) -> None:
        """Ask the server for a sign of life."""
        ...


class Canary:
    """Looks for the XMPP server, and calls `on_found` with what it finds, and whether another worker should know it at once.

    An answer by the server on any of the `connections` is a proof. If none comes, one of them asks for it. If that is not
    answered either, `open_stream` has to reach the server anew. Other data from the server are no proof: it may not hear us.
    """

    def __init__(
        self,
        connections: Callable[[], Sequence[CanaryConnection]],
        open_stream: Callable[[], Awaitable[None]],
        lease_s: float,
        on_found: Callable[[Reach, bool], object],
    ) -> None:
        self._connections = connections
        self._open_stream = open_stream
        self._interval_s = lease_s / _CHECKS
        self._answer_s = _ANSWER * lease_s
        self._on_found = on_found
        self._found: Reach | None = None
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Look now: another worker has lost the server, and has to know whether this one reaches it."""
        self._asked.set()

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            is_asked = self._asked.is_set()
            self._asked.clear()
            try:
                await self._check(is_asked=is_asked)
            except Exception:
                log.exception("the XMPP server cannot be looked for; it tries again")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), self._interval_s)

    async def _check(self, *, is_asked: bool) -> None:
        began_at = time.monotonic()
        answered_at = self._answered_at()
        if (is_asked or began_at - answered_at >= self._interval_s / 2) and (connections := self._online()):
            max(connections, key=lambda connection: connection.answered_at or 0.0).request_answer()
            answered_at = await self._wait_for_answer(began_at)
        if answered_at > began_at - self._interval_s:
            self._note(is_reached=True, began_at=answered_at, ended_at=answered_at, is_due=is_asked)
            return
        began_at = time.monotonic()
        try:
            async with asyncio.timeout(self._answer_s):
                await self._open_stream()
        except (ConnectError, OSError):  # TimeoutError is an OSError
            ended_at = time.monotonic()
            if ended_at - began_at < _STALLED * self._answer_s and self._answered_at() < began_at:
                is_new = self._found is None or self._found.is_reached
                self._note(is_reached=False, began_at=began_at, ended_at=ended_at, is_due=is_new)
        else:
            self._note(is_reached=True, began_at=began_at, ended_at=began_at, is_due=is_asked)

    async def _wait_for_answer(self, asked_at: float) -> float:
        """Wait half an interval for an answer that is later than `asked_at`. Return the time of the last answer."""
        for _ in range(_LOOKS):
            await asyncio.sleep(self._interval_s / 2 / _LOOKS)
            if (answered_at := self._answered_at()) > asked_at:
                break
        return answered_at

    def _online(self) -> list[CanaryConnection]:
        return [connection for connection in self._connections() if connection.answered_at is not None]

    def _answered_at(self) -> float:
        return max((connection.answered_at or 0.0 for connection in self._connections()), default=0.0)

    def _note(self, *, is_reached: bool, began_at: float, ended_at: float, is_due: bool) -> None:
        if is_reached and self._found is not None and self._found.is_reached:
            began_at = self._found.began_at
        self._found = Reach(is_reached, began_at, ended_at)
        self._on_found(self._found, is_due)
