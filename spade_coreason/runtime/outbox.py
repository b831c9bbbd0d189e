"""What one agent says: an answer is kept, and sent again after a restart, until the server has acknowledged it."""

from __future__ import annotations

from functools import partial
from uuid import UUID

from ..codec import encoder_for
from ..concurrency import RateLimiter
from ..domain.messages import Failed, InboundRequest, Refused, TurnEvent, owner_of
from ..exceptions import CoReasonError
from ..storage import Inbox
from .outbound import OutboundStanza, SendStanzas


class Outbox:
    """The way out for the agent `jid`. `send` gets stanzas in order and never fails."""

    def __init__(self, jid: str, inbox: Inbox, stanza_bytes: int) -> None:
        self.send: SendStanzas = _raise_not_open
        self._jid = jid
        self._inbox = inbox
        self._stanza_bytes = stanza_bytes
        self._rate_limiter = RateLimiter()
        self._unsent: list[tuple[int, list[str]]] = []

    def encode(self, incoming: InboundRequest, key: UUID, *events: TurnEvent) -> list[str]:
        """What the platform itself answers to a request, as stanzas."""
        voice = encoder_for(incoming, key, self._jid, self._stanza_bytes)
        return [stanza for event in events for stanza in voice.encode(event)]

    def send_problem(self, incoming: InboundRequest, key: UUID, problem: Refused | Failed) -> None:
        """Says that a request cannot be taken: to a program each time, to everybody else once a minute.

        What sends everything back, and so asks again with our own words, is not answered for ever.
        """
        if incoming.channel == "program" or self._rate_limiter.allow(owner_of(incoming)):
            self.send(self.encode(incoming, key, problem))

    def send_final(self, inbox_row: int, stanzas: list[str]) -> None:
        """Sends the answer of a request, which is closed when the last of it is acknowledged."""
        last = OutboundStanza(stanzas[-1])
        last.is_last = True
        last.on_acknowledged = partial(self._inbox.close, inbox_row)
        self.send([*stanzas[:-1], last])

    def close_when_acknowledged(self, inbox_row: int, last: OutboundStanza | None) -> None:
        """Closes a request whose whole answer has left: `last` is the last of it."""
        if last is None or last.is_acknowledged:
            self._inbox.close(inbox_row)
        else:
            last.on_acknowledged = partial(self._inbox.close, inbox_row)

    def add_unsent(self, inbox_row: int, stanzas: list[str]) -> None:
        """Keeps an answer until `send_unsent`."""
        self._unsent.append((inbox_row, stanzas))

    def send_unsent(self) -> None:
        """Sends what was kept; with the same ids as before."""
        unsent, self._unsent = self._unsent, []
        for row, stanzas in unsent:
            self.send_final(row, stanzas)


def _raise_not_open(stanzas: list[str]) -> None:
    raise CoReasonError("the runner is not open")
