"""The end of access: requests of people who have lost theirs are cancelled or refused."""

from __future__ import annotations

import logging
import math
import time

from ...contracts import ErrorCode
from ...domain.access import NO_ACCESS
from ...domain.messages import InboundRequest, Refused
from ...domain.texts.translation import translate
from ..mailboxes.mailbox import QueuedRequest
from ..mailboxes.mailboxes import Mailboxes
from ..replies.outbox import Outbox
from .access_requests import AccessRequests

log = logging.getLogger(__name__)


class AccessRevocation:
    """The requests of one agent whose senders lose their access: running turns are cancelled, the others are refused."""

    def __init__(self, jid: str, access_requests: AccessRequests, mailboxes: Mailboxes, outbox: Outbox) -> None:
        self._jid = jid
        self._access = access_requests.access
        self._mailboxes = mailboxes
        self._outbox = outbox
        self.changed_at_s = math.inf
        """The last change of access, in seconds of `time.monotonic`. What the last run has left was received before it."""
        access_requests.decided.subscribe(lambda person, is_admitted: self._cancel_turns())
        access_requests.contacts_changed.subscribe(self._cancel_turns)
        access_requests.access_lost.subscribe(self._cancel_turns)

    def open(self) -> None:
        """Trust from now on that a request which is received has access. Call it once what the last run left is queued."""
        self.changed_at_s = time.monotonic()

    def has_lost_access(self, incoming: InboundRequest) -> bool:
        """Return True if the sender had access when the request was received, and has none any more.

        In a room, the sender is the occupant whose JID it has shown. Items come from the configured broker.
        """
        access = self._access
        sender = incoming.metadata.get("occupant") if incoming.is_from_room else incoming.sender
        if sender is None or access.is_allowed(sender):
            return False
        return access.is_known and not incoming.is_topic_item

    def refuse(self, queued: QueuedRequest) -> None:
        """Tell the sender of a request who has lost access. As in `Rooms`, an occupant of a room is told nothing.

        Without access, a silent agent tells no sender anything.
        """
        if not (queued.incoming.is_from_room or self._access.is_silent):
            self._outbox.send_problem(queued.incoming, Refused(translate(NO_ACCESS), ErrorCode.FORBIDDEN), queued.key)

    def _cancel_turns(self) -> None:
        """Cancel the running turns whose senders have lost access. Those that wait are checked before they start."""
        self.changed_at_s = time.monotonic()
        for mailbox in self._mailboxes:
            current = mailbox.current
            if current is not None and current.is_for_agent and self.has_lost_access(current.incoming):
                log.info("%s: stops a turn of %s, who has no access any more", self._jid, mailbox.sender)
                mailbox.cancel_current()
