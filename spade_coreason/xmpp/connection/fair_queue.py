"""A queue that takes from each recipient in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ...domain.jid import bare_jid
from ...runtime import OutboundMessage


class FairQueue:
    """Stanzas that wait, by recipient (a bare JID). Those of one recipient keep their order."""

    def __init__(self) -> None:
        self._by_recipient: dict[str, deque[OutboundMessage]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_recipient)

    def extend(self, stanzas: Iterable[OutboundMessage]) -> None:
        """Add stanzas, each behind the others of its recipient."""
        for stanza in stanzas:
            self._by_recipient.setdefault(bare_jid(stanza.recipient), deque()).append(stanza)

    def take(self, max_stanzas: int, max_characters: int) -> list[OutboundMessage]:
        """Remove and return stanzas, one of each recipient in turn. The last of them may exceed `max_characters`."""
        taken: list[OutboundMessage] = []
        by_recipient = self._by_recipient
        while by_recipient and len(taken) < max_stanzas and max_characters > 0:
            recipient = next(iter(by_recipient))
            stanzas = by_recipient.pop(recipient)
            stanza = stanzas.popleft()
            taken.append(stanza)
            max_characters -= len(stanza.content)
            if stanzas:
                by_recipient[recipient] = stanzas  # now the last in turn
        return taken

    def take_all(self) -> list[OutboundMessage]:
        """Remove and return all stanzas."""
        stanzas = [stanza for waiting in self._by_recipient.values() for stanza in waiting]
        self._by_recipient = {}
        return stanzas
