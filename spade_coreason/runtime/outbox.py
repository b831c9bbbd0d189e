"""The outbox: final replies are stored until the server has acknowledged them, and sent again after a restart."""

from __future__ import annotations

from functools import partial
from uuid import UUID

from ..codec import encoder_for
from ..concurrency import RateLimiter
from ..domain.messages import Failed, InboundRequest, Refused, TurnEvent, conversation_owner
from ..exceptions import CoReasonError
from ..storage import Inbox
from .outbound_stanza import OutboundStanza, SendStanzas


class Outbox:
    """The outbox of the agent `jid`: it sends replies, and closes their requests in the inbox when the server has them.

    `send` gets stanzas in order and never fails; the runner sets it when it opens.
    """

    def __init__(self, jid: str, inbox: Inbox, stanza_bytes: int) -> None:
        self.send: SendStanzas = _raise_not_open
        self._jid = jid
        self._inbox = inbox
        self._stanza_bytes = stanza_bytes
        self._rate_limiter = RateLimiter()
        self._unsent: list[tuple[int, list[str]]] = []

    def encode(self, incoming: InboundRequest, key: UUID, *events: TurnEvent) -> list[str]:
        """Encode events of the platform itself as the stanzas of a reply to a request."""
        encoder = encoder_for(incoming, key, self._jid, self._stanza_bytes)
        return [stanza for event in events for stanza in encoder.encode(event)]

    def send_problem(self, incoming: InboundRequest, key: UUID, problem: Refused | Failed) -> None:
        """Tell a sender that a request cannot be accepted: a program each time, all others at most once a minute.

        The limit ends an exchange with a sender that echoes our own text as its next request.
        """
        if incoming.channel == "program" or self._rate_limiter.allow(conversation_owner(incoming)):
            self.send(self.encode(incoming, key, problem))

    def send_final(self, inbox_row: int, stanzas: list[str]) -> None:
        """Send the final stanzas of a reply. The request is closed when the last one is acknowledged."""
        last = OutboundStanza(stanzas[-1])
        last.is_last = True
        last.on_acknowledged = partial(self._inbox.close, inbox_row)
        self.send([*stanzas[:-1], last])

    def close_when_acknowledged(self, inbox_row: int, last_stanza: OutboundStanza | None) -> None:
        """Close a request whose whole reply was sent, once its last stanza is acknowledged."""
        if last_stanza is None or last_stanza.is_acknowledged:
            self._inbox.close(inbox_row)
        else:
            last_stanza.on_acknowledged = partial(self._inbox.close, inbox_row)

    def add_unsent(self, inbox_row: int, stanzas: list[str]) -> None:
        """Hold a stored reply until `send_unsent`."""
        self._unsent.append((inbox_row, stanzas))

    def send_unsent(self) -> None:
        """Send the held replies, with the same ids as before."""
        unsent, self._unsent = self._unsent, []
        for inbox_row, stanzas in unsent:
            self.send_final(inbox_row, stanzas)


def _raise_not_open(stanzas: list[str]) -> None:
    raise CoReasonError("the runner is not open")
