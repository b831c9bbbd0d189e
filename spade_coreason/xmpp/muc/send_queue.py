"""The queue of stanzas to chat rooms: they wait until the agent has joined, and private replies get the current nickname."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from ...domain.jid import bare_jid
from ...runtime import OutboundMessage
from ..codec import escape_attribute
from .membership import FINAL_STATES, RoomState
from .room import Room

log = logging.getLogger(__name__)

_MAX_QUEUED = 1000


class RoomStanza(OutboundMessage):
    """A stanza to a room. `original` is the message that it was built from, if any.

    In a new session the original is routed again, after the agent has rejoined the room. The acknowledgement of the stanza
    acknowledges the original too.
    """

    __slots__ = ("original",)

    def __init__(self, recipient: str, content: str, original: OutboundMessage | None = None) -> None:
        super().__init__(recipient, content)
        self.original = original
        if original is not None:
            self.is_last = original.is_last
            self.on_acknowledged = original.acknowledge


class RoomSendQueue:
    """The outgoing stanzas to `rooms`."""

    def __init__(self, rooms: Mapping[str, Room]) -> None:
        self._rooms = rooms

    def route(self, stanzas: Sequence[OutboundMessage]) -> Sequence[OutboundMessage]:
        """Return the stanzas that may leave now, and queue the others. Stanzas to other addresses do not change."""
        if not self._rooms:
            return stanzas
        return [ready for stanza in stanzas if (ready := self._route_stanza(stanza)) is not None]

    def discard_queued(self, room: Room) -> None:
        """Discard the stanzas that wait for a room which the agent will not join again."""
        queued, room.queued_stanzas = room.queued_stanzas, []
        for stanza in queued:
            stanza.acknowledge()  # it cannot be delivered, and must not be sent again

    def _route_stanza(self, stanza: OutboundMessage) -> OutboundMessage | None:
        to = stanza.recipient
        room = self._rooms.get(bare_jid(to))
        if room is None:
            return stanza
        if room.state is not RoomState.JOINED:
            self._enqueue(room, stanza)
            return None
        if "/" not in to:
            return RoomStanza(to, stanza.content, stanza)
        nick = room.find_nick(to)
        if nick is None:
            log.info("the person has left the room %s; the private answer is not sent", room.jid)
            stanza.acknowledge()
            return None
        occupant = f"{room.jid}/{nick}"
        return RoomStanza(occupant, readdress(stanza.content, to, occupant), stanza)

    def _enqueue(self, room: Room, stanza: OutboundMessage) -> None:
        room.queued_stanzas.append(stanza)
        if room.state in FINAL_STATES and room.timer is None:
            self.discard_queued(room)
        for old in room.queued_stanzas[:-_MAX_QUEUED]:
            old.acknowledge()
        del room.queued_stanzas[:-_MAX_QUEUED]


def readdress(content: str, recipient: str, new_recipient: str) -> str:
    """Return the text of a `<message/>` to `recipient` as one to `new_recipient`."""
    opening = f"<message to='{escape_attribute(recipient)}'"
    return f"<message to='{escape_attribute(new_recipient)}'{content.removeprefix(opening)}"
