"""The queue of stanzas to chat rooms: they wait until the agent has joined, and private replies get the current nickname."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from ...codec import escape_attribute
from ...domain.jid import bare_jid
from ...runtime import OutboundStanza
from .membership import FINAL_STATES, RoomState
from .room import Room

log = logging.getLogger(__name__)

_MAX_QUEUED = 1000
_TO = re.compile("<message to='([^']*)'")


class RoomStanza(OutboundStanza):
    """A stanza to a room, with the original that it was built from.

    In a new session the original is routed again, after the agent has rejoined the room.
    """

    original: str | None = None

    @classmethod
    def wrap(cls, text: str, original: str | None = None) -> RoomStanza:
        """Build a stanza from `text`. The acknowledgement of it acknowledges `original` too."""
        stanza = cls(text)
        stanza.original = original
        if isinstance(original, OutboundStanza):
            stanza.on_acknowledged = original.acknowledge
        return stanza


class RoomSendQueue:
    """The outgoing stanzas to `rooms`."""

    def __init__(self, rooms: Mapping[str, Room]) -> None:
        self._rooms = rooms

    def route(self, stanzas: list[str]) -> list[str]:
        """Return the stanzas that may leave now, and queue the others. Stanzas to other addresses do not change."""
        if not self._rooms:
            return stanzas
        return [ready for stanza in stanzas if (ready := self._route_stanza(stanza)) is not None]

    def discard_queued(self, room: Room) -> None:
        """Discard the stanzas that wait for a room which the agent will not join again."""
        queued, room.queued_stanzas = room.queued_stanzas, []
        for stanza in queued:
            _discard(stanza)

    def _route_stanza(self, stanza: str) -> str | None:
        found = _TO.match(stanza)
        to = found.group(1) if found is not None else ""
        room = self._rooms.get(bare_jid(to))
        if found is None or room is None:
            return stanza
        if room.state is not RoomState.JOINED:
            self._enqueue(room, stanza)
            return None
        if "/" not in to:
            return RoomStanza.wrap(stanza, stanza)
        nick = room.find_nick(to)
        if nick is None:
            log.info("whoever asked in private has left the room %s; the answer goes to nobody", room.jid)
            _discard(stanza)
            return None
        return RoomStanza.wrap(f"<message to='{escape_attribute(f'{room.jid}/{nick}')}'{stanza[found.end() :]}", stanza)

    def _enqueue(self, room: Room, stanza: str) -> None:
        room.queued_stanzas.append(stanza)
        if room.state in FINAL_STATES and room.timer is None:
            self.discard_queued(room)
        for old in room.queued_stanzas[:-_MAX_QUEUED]:
            _discard(old)
        del room.queued_stanzas[:-_MAX_QUEUED]


def _discard(stanza: str) -> None:
    """Acknowledge a stanza that cannot be delivered, so that it is not sent again."""
    if isinstance(stanza, OutboundStanza):
        stanza.acknowledge()
