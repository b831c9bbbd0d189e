"""The queue of outgoing stanzas: sent in order, in few writes, and again after a cut if they were not acknowledged.

A server may take stanzas more slowly than they come. Then they wait here, and each recipient has its turn, so that a thousand
replies to one person do not delay the reply to another.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from ...domain.callers import is_caller
from ...domain.jid import bare_jid
from ...runtime import OutboundMessage
from .batching import MAX_MESSAGES, build_batches
from .fair_queue import SMALL_CHARACTERS, FairQueue
from .liveness import Keepalive
from .slixmpp_client import XMPPClient
from .stream_management import REQUEST_ACK

StanzaT = TypeVar("StanzaT", bound=OutboundMessage)

_ACK_AFTER_S = 1.0
_MAX_UNACKNOWLEDGED = 128
"""While the server has not acknowledged so many stanzas, further ones wait."""
_MAX_UNACKNOWLEDGED_EACH = 32
"""The same for the stanzas of one recipient, if there are others: what is written behind them is late."""
_OTHERS_S = 5.0
"""The time for which a second recipient counts after a stanza to it."""
_MAX_UNACKNOWLEDGED_CHARACTERS = 32_768
"""While the server has not acknowledged so many characters of large stanzas, further large ones wait. A server reads the
stream in order and in small pieces, so what is written behind a megabyte is late."""
_EARLY_WRITE_STANZAS = MAX_MESSAGES
"""With this many queued stanzas a round writes early: the receiver can work while the others are sent."""


class SendQueue:
    """The outgoing stanzas of one connection, across its sessions. Between two sessions they wait."""

    def __init__(self, client: XMPPClient, keepalive: Keepalive) -> None:
        self._client = client
        self._keepalive = keepalive
        self._loop = asyncio.get_running_loop()
        self._queued: list[OutboundMessage] = []
        self._waiting = FairQueue()
        """The stanzas for which the server has no room. Those in `_queued` are behind them."""
        self._unacknowledged: list[OutboundMessage] = []
        self._has_session = False
        self._is_flushing = False
        self._sends_this_round = 0
        self._last_recipient = ""
        self._recipient_changed_at = -math.inf
        """The time of the last stanza to another recipient than the one before it."""
        self._is_quiet = True
        """True if the last round of the event loop had one call of `send` at most."""
        self._ack_timer: asyncio.TimerHandle | None = None
        self._ack_progress = asyncio.Event()
        self.resent_count = 0
        """The number of stanzas that were sent again in a new session."""
        client.stream_management.on_ack_due = self.flush_soon

    def send(self, stanzas: Sequence[OutboundMessage]) -> bool:
        """Send stanzas in order. All stanzas of one round of the event loop leave in one write, or in few.

        Return True if earlier stanzas to the first recipient wait, because the server is slow to acknowledge.
        """
        for message in stanzas:
            if is_caller(message.recipient):
                stanzas = self._client.caller_filter.refuse_to_callers(stanzas)
                break
        self._queued += stanzas
        if stanzas and stanzas[0].recipient != self._last_recipient:
            self._last_recipient, self._recipient_changed_at = stanzas[0].recipient, self._loop.time()
        self._sends_this_round += 1
        self.flush_soon()
        # The embedded server reversed the parts of a reply that came in two writes of one round. It has no stream management.
        if (self._is_quiet and self._is_end_of_lone_reply(stanzas)) or (
            len(self._queued) >= _EARLY_WRITE_STANZAS and self._client.stream_management.enabled_out
        ):
            self._write()
        return bool(self._waiting.recipients) and bool(stanzas) and bare_jid(stanzas[0].recipient) in self._waiting.recipients

    def _is_end_of_lone_reply(self, stanzas: Sequence[OutboundMessage]) -> bool:
        """Return True for the end of a reply that is sent alone in a quiet time: there is nothing to wait for."""
        return bool(self._sends_this_round == 1 and stanzas) and stanzas[-1].is_last

    def withdraw_unsent(self, stanza_type: type[StanzaT]) -> list[StanzaT]:
        """Remove the queued stanzas of one type, and return them: those not sent yet, or to be sent again in a new session."""
        unsent = self._waiting.take_all() + self._queued
        withdrawn = [stanza for stanza in unsent if isinstance(stanza, stanza_type)]
        self._queued = [stanza for stanza in unsent if not isinstance(stanza, stanza_type)]
        return withdrawn

    def start_session(self, is_new: bool) -> None:
        """Begin to send in a session, a new one or a resumed one."""
        if is_new:
            self.resent_count += len(self._unacknowledged)
            # A resumption that failed cleared slixmpp's queue. Its stanzas are sent again, with the same ids.
            self._queued = self._unacknowledged + self._waiting.take_all() + self._queued
        self._unacknowledged = []
        self._has_session = True

    def end_session(self) -> None:
        """Remember the unacknowledged stanzas when the session has ended."""
        if self._has_session:
            unacknowledged = self._client.stream_management.unacked_queue
            self._unacknowledged = [stanza for _, stanza in unacknowledged if isinstance(stanza, OutboundMessage)]
        else:
            # A resumption may have acknowledged some of them, before it was cut too.
            self._unacknowledged = [stanza for stanza in self._unacknowledged if not stanza.is_acknowledged]
        self._has_session = False
        self._ack_progress.set()

    def notify_acknowledged(self) -> None:
        """Send what the server has room for now, and wake up the tasks in `wait_until_acknowledged`."""
        if self._waiting.recipients:
            self._write()
        self._ack_progress.set()

    @property
    def waiting_count(self) -> int:
        """The number of stanzas that are not sent yet."""
        return len(self._queued) + len(self._waiting)

    @property
    def unacknowledged_count(self) -> int:
        """The number of stanzas that were sent, and that the server has not acknowledged."""
        return len(self._client.stream_management.unacked_queue) if self._has_session else len(self._unacknowledged)

    async def wait_until_acknowledged(self, timeout_s: float) -> bool:
        """Wait until the server has acknowledged all stanzas, at most `timeout_s` seconds. Return True if it has."""
        self.flush()
        try:
            async with asyncio.timeout(timeout_s):
                await self._client.waiting_queue.join()  # slixmpp's own stanzas are counted when they leave
                while (
                    self._has_session
                    and self._client.stream_management.enabled_out
                    and (self._client.stream_management.unacked_queue or self._waiting.recipients)
                ):
                    self._ack_progress.clear()
                    self._client.send_raw(REQUEST_ACK)
                    await self._ack_progress.wait()
        except TimeoutError:
            return False
        return not self._queued and not self._waiting.recipients

    def close(self) -> None:
        """Send what is queued, for the last time."""
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        self._queued = self._waiting.take_all() + self._queued
        self._write(is_last=True)

    def flush_soon(self) -> None:
        """Send what is queued at the end of this round of the event loop."""
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what is queued now, if there is a session."""
        self._is_flushing = False
        self._is_quiet = self._sends_this_round <= 1
        self._sends_this_round = 0
        self._write()

    def _write(self, *, is_last: bool = False) -> None:
        if not self._has_session or not self._client.is_connected():
            return
        sm = self._client.stream_management
        stanzas, self._queued = self._queued, []
        had_waiting = bool(self._waiting.recipients)
        if sm.enabled_out and not is_last and not self._has_room(stanzas):
            self._waiting.extend(stanzas)
            stanzas = self._take_waiting()
        written = stanzas
        if len(stanzas) > 1:
            stanzas = build_batches(stanzas)
        contents = stanzas[0].content if len(stanzas) == 1 else "".join([stanza.content for stanza in stanzas])
        sm.count_sent(stanzas)
        text = sm.pop_due_ack() + contents
        if sm.enabled_out and (stanzas or (self._waiting.recipients and not had_waiting)):
            sm.window_counter -= len(stanzas)
            # What waits needs room at once, and turns wait until what has waited is acknowledged.
            if sm.window_counter <= 0 or self._waiting.recipients or had_waiting:
                sm.window_counter = sm.window
                text += REQUEST_ACK
                self._keepalive.expect_response()
            elif self._ack_timer is None:
                self._ack_timer = self._loop.call_later(_ACK_AFTER_S, self._request_ack)
        if text:
            self._client.send_raw(text)
        if not sm.enabled_out:
            for stanza in stanzas:  # without stream management no acknowledgement will come
                stanza.acknowledge()
        for stanza in written:
            stanza.on_written()

    def _has_room(self, stanzas: Sequence[OutboundMessage]) -> bool:
        """Return True if the server has room for these stanzas, and nothing waits before them."""
        unacknowledged = self._client.stream_management.unacked_queue
        limit = _MAX_UNACKNOWLEDGED_EACH if self._has_several_recipients else _MAX_UNACKNOWLEDGED
        if self._waiting.recipients or len(unacknowledged) + len(stanzas) > limit:
            return False
        characters = _count_large(stanzas)
        return (
            not characters
            or characters + _count_large(stanza for _, stanza in unacknowledged) <= _MAX_UNACKNOWLEDGED_CHARACTERS
        )

    @property
    def _has_several_recipients(self) -> bool:
        """True if stanzas to different recipients were sent within the last seconds."""
        return self._loop.time() - self._recipient_changed_at < _OTHERS_S

    def _take_waiting(self) -> list[OutboundMessage]:
        """Take the waiting stanzas for which the server has room."""
        unacknowledged = [stanza for _, stanza in self._client.stream_management.unacked_queue]
        room_by_recipient = {}
        if self._has_several_recipients:
            counts = Counter(bare_jid(stanza.recipient) for stanza in unacknowledged if isinstance(stanza, OutboundMessage))
            room_by_recipient = {
                recipient: _MAX_UNACKNOWLEDGED_EACH - counts[recipient] for recipient in self._waiting.recipients
            }
        return self._waiting.take(
            _MAX_UNACKNOWLEDGED - len(unacknowledged),
            _MAX_UNACKNOWLEDGED_CHARACTERS - _count_large(unacknowledged),
            room_by_recipient,
        )

    def _request_ack(self) -> None:
        self._ack_timer = None
        if self._has_session and self._client.is_connected() and self._client.stream_management.unacked_queue:
            self._client.send_raw(REQUEST_ACK)
            self._keepalive.expect_response()


def _count_large(stanzas: Iterable[object]) -> int:
    """Count the characters of the large stanzas among these."""
    characters = 0
    for stanza in stanzas:  # for one stanza, a loop costs less than a comprehension
        if isinstance(stanza, OutboundMessage) and len(stanza.content) >= SMALL_CHARACTERS:
            characters += len(stanza.content)
    return characters
