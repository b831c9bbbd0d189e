"""What one agent says: an answer is kept, and sent again after a restart, until the server has acknowledged it."""

from __future__ import annotations

from functools import partial
from uuid import UUID

from ..codec import voice_for
from ..concurrency import Notices
from ..domain.messages import Failed, Incoming, Refused, TurnEvent, owner_of
from ..exceptions import CoReasonError
from ..storage import Inbox
from .outbound import Send, Tracked


class Outbox:
    """The way out for the agent `jid`. `send` gets stanzas in order and never fails."""

    def __init__(self, jid: str, inbox: Inbox, stanza_bytes: int) -> None:
        self.send: Send = _nowhere
        self._jid = jid
        self._inbox = inbox
        self._stanza_bytes = stanza_bytes
        self._notices = Notices()
        self._unsent: list[tuple[int, list[str]]] = []

    def words(self, incoming: Incoming, key: UUID, *events: TurnEvent) -> list[str]:
        """What the platform itself answers to a request, as stanzas."""
        voice = voice_for(incoming, key, self._jid, self._stanza_bytes)
        return [stanza for event in events for stanza in voice.say(event)]

    def tell(self, incoming: Incoming, key: UUID, problem: Refused | Failed) -> None:
        """Says that a request cannot be taken: to a program each time, to everybody else once a minute.

        What sends everything back, and so asks again with our own words, is not answered for ever.
        """
        if incoming.language == "program" or self._notices.may_tell(owner_of(incoming)):
            self.send(self.words(incoming, key, problem))

    def send_final(self, row: int, stanzas: list[str]) -> None:
        """Sends the answer of a request, which is closed when the last of it is acknowledged."""
        last = Tracked(stanzas[-1])
        last.is_last = True
        last.on_acknowledged = partial(self._inbox.close, row)
        self.send([*stanzas[:-1], last])

    def close_when_acknowledged(self, row: int, last: Tracked | None) -> None:
        """Closes a request whose whole answer has left: `last` is the last of it."""
        if last is None or last.acknowledged:
            self._inbox.close(row)
        else:
            last.on_acknowledged = partial(self._inbox.close, row)

    def keep(self, row: int, stanzas: list[str]) -> None:
        """Keeps an answer until `send_unsent`."""
        self._unsent.append((row, stanzas))

    def send_unsent(self) -> None:
        """Sends what was kept; with the same ids as before."""
        unsent, self._unsent = self._unsent, []
        for row, stanzas in unsent:
            self.send_final(row, stanzas)


def _nowhere(stanzas: list[str]) -> None:
    raise CoReasonError("the runner is not open")
