"""A queue that takes from each recipient in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping

from ...domain.jid import bare_jid
from ...runtime import OutboundMessage

SMALL_CHARACTERS = 16_384
"""The characters of smaller stanzas are not counted."""


class FairQueue:
    """Stanzas that wait, by recipient (a bare JID), in turn. Those of one recipient keep their order."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[OutboundMessage]] = {}
        self.recipients: Collection[str] = self._waiting
        """The recipients with stanzas that wait, in their order. It is empty if none waits."""

    def __len__(self) -> int:
        return sum(map(len, list(self._waiting.values())))

    def extend(self, stanzas: Iterable[OutboundMessage]) -> None:
        """Add stanzas, each behind the others of its recipient."""
        for stanza in stanzas:
            self._waiting.setdefault(bare_jid(stanza.recipient), deque()).append(stanza)

    def take(
        self, max_stanzas: int, max_characters: int, room_by_recipient: Mapping[str, int] | None = None
    ) -> list[OutboundMessage]:
        """Remove and return stanzas, one of each recipient in turn.

        `room_by_recipient` has the largest number of stanzas for some recipients (bare JIDs). Only stanzas of at least
        `SMALL_CHARACTERS` count for `max_characters`, and the last of them may exceed it. Small ones to other recipients pass
        those that have to wait.
        """
        taken: list[OutboundMessage] = []
        blocked: dict[str, deque[OutboundMessage]] = {}
        room = dict(room_by_recipient or {})
        while self._waiting and len(taken) < max_stanzas:
            recipient = next(iter(self._waiting))
            stanzas = self._waiting.pop(recipient)
            size = len(stanzas[0].content)
            if recipient in room:
                if room[recipient] <= 0:
                    blocked[recipient] = stanzas
                    continue
                room[recipient] -= 1
            if size >= SMALL_CHARACTERS:
                if max_characters <= 0:
                    blocked[recipient] = stanzas
                    continue
                max_characters -= size
            taken.append(stanzas.popleft())
            if stanzas:
                self._waiting[recipient] = stanzas  # now the last in turn
        if blocked:
            blocked.update(self._waiting)  # their turn is not lost
            self._waiting.clear()
            self._waiting.update(blocked)
        return taken

    def take_all(self) -> list[OutboundMessage]:
        """Remove and return all stanzas."""
        stanzas = [stanza for waiting in self._waiting.values() for stanza in waiting]
        self._waiting.clear()
        return stanzas
