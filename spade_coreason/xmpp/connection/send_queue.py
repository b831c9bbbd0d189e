"""Stanzas on their way out: in order, in few writes, and again after a cut where the server has not acknowledged them."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from ...runtime import OutboundStanza
from .client import XMPPClient
from .liveness import Keepalive
from .stream_management import REQUEST_ACK

StanzaT = TypeVar("StanzaT", bound=str)

_ACK_AFTER_S = 1.0
_EARLY_WRITE_STANZAS = 32
"""So many stanzas of one round leave ahead: who reads them works while the others are sent."""


class SendQueue:
    """What one connection sends, across its sessions. Between two of them it waits."""

    def __init__(self, client: XMPPClient, keepalive: Keepalive) -> None:
        self._client = client
        self._keepalive = keepalive
        self._loop = asyncio.get_running_loop()
        self._queued: list[str] = []
        self._unacknowledged: list[str] = []
        self._has_session = False
        self._is_flushing = False
        self._sends_this_round = 0
        """In this round."""
        self._is_quiet = True
        """Whether there was one at most in the last."""
        self._ack_timer: asyncio.TimerHandle | None = None
        self._ack_progress = asyncio.Event()
        client.stream_management.on_ack_due = self.flush_soon

    def send(self, stanzas: list[str]) -> None:
        """Sends stanzas in order; what is sent in one round of the event loop leaves in one write, or in few."""
        self._queued += stanzas
        self._sends_this_round += 1
        self.flush_soon()
        # The embedded server turned around parts of an answer that were two writes of one round. It has no stream management.
        if self._is_end_of_lone_reply(stanzas) or (
            len(self._queued) >= _EARLY_WRITE_STANZAS and self._client.stream_management.enabled_out
        ):
            self._write()

    def _is_end_of_lone_reply(self, stanzas: list[str]) -> bool:
        """Whether they are the last of an answer, while answers come one by one: there is nothing to wait for."""
        if not (self._is_quiet and self._sends_this_round == 1 and stanzas):
            return False
        last = stanzas[-1]
        return isinstance(last, OutboundStanza) and last.is_last

    def withdraw_unsent(self, stanza_type: type[StanzaT]) -> list[StanzaT]:
        """Takes back what has not left yet, or must leave again with a new session, of one kind."""
        recalled = [stanza for stanza in self._queued if isinstance(stanza, stanza_type)]
        self._queued = [stanza for stanza in self._queued if not isinstance(stanza, stanza_type)]
        return recalled

    def start_session(self, is_new: bool) -> None:
        """A session is there, a new one or the one that was cut."""
        if is_new:
            # A resumption that failed cleared slixmpp's queue; what was in it is sent again, with the same ids.
            self._queued = self._unacknowledged + self._queued
        self._unacknowledged = []
        self._has_session = True

    def end_session(self) -> None:
        """The session is gone."""
        if self._has_session:
            self._unacknowledged = [
                stanza for _, stanza in self._client.stream_management.unacked_queue if isinstance(stanza, str)
            ]
        else:
            # A resumption may have told what has arrived, before it was cut too.
            self._unacknowledged = [
                s for s in self._unacknowledged if not (isinstance(s, OutboundStanza) and s.is_acknowledged)
            ]
        self._has_session = False
        self._ack_progress.set()

    def notify_acknowledged(self) -> None:
        """The server has acknowledged something just now."""
        self._ack_progress.set()

    async def wait_until_acknowledged(self, timeout_s: float) -> bool:
        """Waits until the server has acknowledged everything; whether it has."""
        self.flush()
        try:
            async with asyncio.timeout(timeout_s):
                await self._client.waiting_queue.join()  # slixmpp's own stanzas are counted when they leave
                while (
                    self._has_session
                    and self._client.stream_management.enabled_out
                    and self._client.stream_management.unacked_queue
                ):
                    self._ack_progress.clear()
                    self._client.send_raw(REQUEST_ACK)
                    await self._ack_progress.wait()
        except TimeoutError:
            return False
        return not self._queued

    def close(self) -> None:
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
        self._is_quiet = self._sends_this_round <= 1
        self._sends_this_round = 0
        self._write()

    def _write(self) -> None:
        if not self._has_session or not self._client.is_connected():
            return
        sm = self._client.stream_management
        stanzas, self._queued = self._queued, []
        sm.count_sent(stanzas)
        text = sm.pop_due_ack() + "".join(stanzas)
        if sm.enabled_out and stanzas:
            sm.window_counter -= len(stanzas)
            if sm.window_counter <= 0:
                sm.window_counter = sm.window
                text += REQUEST_ACK
                self._keepalive.expect_response()
            elif self._ack_timer is None:
                self._ack_timer = self._loop.call_later(_ACK_AFTER_S, self._request_ack)
        if text:
            self._client.send_raw(text)
        if not sm.enabled_out:
            for stanza in stanzas:  # without stream management nobody will say more
                if isinstance(stanza, OutboundStanza):
                    stanza.acknowledge()

    def _request_ack(self) -> None:
        self._ack_timer = None
        if self._has_session and self._client.is_connected() and self._client.stream_management.unacked_queue:
            self._client.send_raw(REQUEST_ACK)
            self._keepalive.expect_response()
