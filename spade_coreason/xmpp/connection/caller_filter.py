"""A filter for the domain of callers of doors: nothing on the wire comes from it, and nothing goes to it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from ...domain.callers import is_caller
from ...runtime import OutboundMessage

log = logging.getLogger(__name__)

FROM_CALLER = "a sender in the domain of callers"
TO_CALLER = "a recipient in the domain of callers"
_REFUSAL = "remote-server-not-found"
"""The condition of the error that a server would send: no server can have the domain (RFC 2606, 2)."""
_LOG_INTERVAL_S = 60.0


class CallerFilter:
    """The stanzas of the account `jid` that are dropped because one end is in the domain of callers.

    They are counted in `dropped`, by reason. A server that lets senders forge their address could name any caller. The log has
    one line a minute at most.
    """

    def __init__(self, jid: str, dropped: Counter[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._jid = jid
        self._dropped = dropped
        self._clock = clock
        self._next_log_at: dict[str, float] = {}

    def drops_from(self, sender: str) -> bool:
        """Return True if what comes from a sender (a JID) is to be dropped, and count it."""
        return is_caller(sender) and self._drop(FROM_CALLER, sender)

    def drops_to(self, recipient: str) -> bool:
        """Return True if what goes to a recipient (a JID) is to be dropped, and count it."""
        return is_caller(recipient) and self._drop(TO_CALLER, recipient)

    def refuse_to_callers(self, messages: Sequence[OutboundMessage]) -> Sequence[OutboundMessage]:
        """Refuse the messages to callers, so that nothing waits for their delivery, and return the others."""
        kept = []
        for message in messages:
            if self.drops_to(message.recipient):
                message.refuse(_REFUSAL)
            else:
                kept.append(message)
        return kept

    def _drop(self, reason: str, address: str) -> bool:
        self._dropped[reason] += 1
        now = self._clock()
        if now >= self._next_log_at.get(reason, now):
            self._next_log_at[reason] = now + _LOG_INTERVAL_S
            log.warning("%s: dropped a stanza: %s, %s (%d so far)", self._jid, reason, address, self._dropped[reason])
        return True
