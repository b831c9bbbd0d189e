"""Stanzas on their way out: in order, in few writes, and again after a cut where the server has not acknowledged them."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from ...runtime import Tracked
from .client import Client
from .liveness import Watch
from .stream_management import REQUEST_ACK

Wanted = TypeVar("Wanted", bound=str)

_ACK_AFTER_S = 1.0
_PORTION = 32
"""So many stanzas of one round leave ahead: who reads them works while the others are sent."""


class Outgoing:
    """What one connection sends, across its sessions. Between two of them it waits."""

    def __init__(self, client: Client, watch: Watch) -> None:
        self._client = client
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._waiting: list[str] = []
        self._unacknowledged: list[str] = []
        self._has_session = False
        self._is_flushing = False
        self._sends = 0
        """In this round."""
        self._is_quiet = True
        """Whether there was one at most in the last."""
        self._ack_timer: asyncio.TimerHandle | None = None
        self._settled = asyncio.Event()
        client.sm.on_news = self.flush_soon

    def send(self, stanzas: list[str]) -> None:
        """Sends stanzas in order; what is sent in one round of the event loop leaves in one write, or in few."""
        self._waiting += stanzas
        self._sends += 1
        self.flush_soon()
        # The embedded server turned around parts of an answer that were two writes of one round. It has no stream management.
        if self._ends_lone_answer(stanzas) or (len(self._waiting) >= _PORTION and self._client.sm.enabled_out):
            self._write()

    def _ends_lone_answer(self, stanzas: list[str]) -> bool:
        """Whether they are the last of an answer, while answers come one by one: there is nothing to wait for."""
        if not (self._is_quiet and self._sends == 1 and stanzas):
            return False
        last = stanzas[-1]
        return isinstance(last, Tracked) and last.is_last

    def recall(self, kind: type[Wanted]) -> list[Wanted]:
        """Takes back what has not left yet, or must leave again with a new session, of one kind."""
        recalled = [stanza for stanza in self._waiting if isinstance(stanza, kind)]
        self._waiting = [stanza for stanza in self._waiting if not isinstance(stanza, kind)]
        return recalled

    def begin(self, is_new: bool) -> None:
        """A session is there, a new one or the one that was cut."""
        if is_new:
            # A resumption that failed cleared slixmpp's queue; what was in it is sent again, with the same ids.
            self._waiting = self._unacknowledged + self._waiting
        self._unacknowledged = []
        self._has_session = True

    def cut(self) -> None:
        """The session is gone."""
        if self._has_session:
            self._unacknowledged = [stanza for _, stanza in self._client.sm.unacked_queue if isinstance(stanza, str)]
        else:
            # A resumption may have told what has arrived, before it was cut too.
            self._unacknowledged = [s for s in self._unacknowledged if not (isinstance(s, Tracked) and s.acknowledged)]
        self._has_session = False
        self._settled.set()

    def acknowledged(self) -> None:
        """The server has acknowledged something just now."""
        self._settled.set()

    async def settle(self, timeout_s: float) -> bool:
        """Waits until the server has acknowledged everything; whether it has."""
        self.flush()
        try:
            async with asyncio.timeout(timeout_s):
                await self._client.waiting_queue.join()  # slixmpp's own stanzas are counted when they leave
                while self._has_session and self._client.sm.enabled_out and self._client.sm.unacked_queue:
                    self._settled.clear()
                    self._client.send_raw(REQUEST_ACK)
                    await self._settled.wait()
        except TimeoutError:
            return False
        return not self._waiting

    def end(self) -> None:
        """Sends what is queued, for the last time."""
        if self._ack_timer is not None:
            self._ack_timer.cancel()
        self.flush()

    def flush_soon(self) -> None:
        """Sends what is queued at the end of this round of the event loop."""
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Sends what is queued now, if there is a session."""
        self._is_flushing = False
        self._is_quiet = self._sends <= 1
        self._sends = 0
        self._write()

    def _write(self) -> None:
        if not self._has_session or not self._client.is_connected():
            return
        sm = self._client.sm
        stanzas, self._waiting = self._waiting, []
        sm.count(stanzas)
        text = sm.take_ack() + "".join(stanzas)
        if sm.enabled_out and stanzas:
            sm.window_counter -= len(stanzas)
            if sm.window_counter <= 0:
                sm.window_counter = sm.window
                text += REQUEST_ACK
                self._watch.expect_a_sign()
            elif self._ack_timer is None:
                self._ack_timer = self._loop.call_later(_ACK_AFTER_S, self._ask_for_ack)
        if text:
            self._client.send_raw(text)
        if not sm.enabled_out:
            for stanza in stanzas:  # without stream management nobody will say more
                if isinstance(stanza, Tracked):
                    stanza.acknowledge()

    def _ask_for_ack(self) -> None:
        self._ack_timer = None
        if self._has_session and self._client.is_connected() and self._client.sm.unacked_queue:
            self._client.send_raw(REQUEST_ACK)
            self._watch.expect_a_sign()
