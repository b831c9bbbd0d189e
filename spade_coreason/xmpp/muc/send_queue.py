"""What an agent says in its chat rooms, on its way: it waits until the agent is there, and finds whoever asked in private."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from ...codec import attribute
from ...domain.jid import bare
from ...runtime import Tracked
from .membership import ENDED, RoomState
from .room import Room

log = logging.getLogger(__name__)

_HELD = 1000
_TO = re.compile("<message to='([^']*)'")


class ToRoom(Tracked):
    """A stanza to a room, with what it was made of: with a new session that is sent again, once the agent is there again."""

    original: str | None = None

    @classmethod
    def made_of(cls, sent: str, original: str | None = None) -> ToRoom:
        """`sent`, which leaves for `original`; that is acknowledged with it."""
        made = cls(sent)
        made.original = original
        if isinstance(original, Tracked):
            made.on_acknowledged = original.acknowledge
        return made


class RoomMail:
    """What leaves for `rooms`."""

    def __init__(self, rooms: Mapping[str, Room]) -> None:
        self._rooms = rooms

    def address(self, stanzas: list[str]) -> list[str]:
        """What may leave now. Stanzas to others than the rooms go through as they are."""
        if not self._rooms:
            return stanzas
        return [ready for stanza in stanzas if (ready := self._ready(stanza)) is not None]

    def give_up(self, room: Room) -> None:
        """What waits for a room into which the agent does not come any more will never be said."""
        held, room.held = room.held, []
        for stanza in held:
            _done_with(stanza)

    def _ready(self, stanza: str) -> str | None:
        found = _TO.match(stanza)
        to = found.group(1) if found is not None else ""
        room = self._rooms.get(bare(to))
        if found is None or room is None:
            return stanza
        if room.state is not RoomState.JOINED:
            self._hold(room, stanza)
            return None
        if "/" not in to:
            return ToRoom.made_of(stanza, stanza)
        nick = room.nick_at(to)
        if nick is None:
            log.info("whoever asked in private has left the room %s; the answer goes to nobody", room.jid)
            _done_with(stanza)
            return None
        return ToRoom.made_of(f"<message to='{attribute(f'{room.jid}/{nick}')}'{stanza[found.end() :]}", stanza)

    def _hold(self, room: Room, stanza: str) -> None:
        room.held.append(stanza)
        if room.state in ENDED and room.timer is None:
            self.give_up(room)
        for old in room.held[:-_HELD]:
            _done_with(old)
        del room.held[:-_HELD]


def _done_with(stanza: str) -> None:
    """Nobody will ever get it; it is not to be tried again."""
    if isinstance(stanza, Tracked):
        stanza.acknowledge()
