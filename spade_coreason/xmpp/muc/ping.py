"""Self-pings (XEP-0410): they check that the agent is still in its rooms, because a room can lose it without notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from slixmpp.exceptions import IqError, IqTimeout

from ...concurrency import Tasks, Timer
from ..codec import self_ping_query
from ..connection.connection import Connection
from .membership import is_membership_lost
from .room import Room

RESPONSE_TIMEOUT_S = 30.0
"""The time in which a room must answer."""
_SILENCE_S = 600.0


class RoomPing:
    """The self-pings of one agent. They go to each room from which nothing came for `silence_s` seconds.

    `on_lost` is called with a room that the agent is not in, and the reason.
    """

    def __init__(self, connection: Connection, rooms: Mapping[str, Room], on_lost: Callable[[Room, str], None]) -> None:
        self.silence_s = _SILENCE_S
        self._connection = connection
        self._rooms = rooms
        self._on_lost = on_lost
        self._timer = Timer()
        self._pings = Tasks()

    def start(self) -> None:
        """Start the checks, or restart them with the current `silence_s`."""
        self._timer.start(self.silence_s / 2, self._check_silent_rooms)

    async def stop(self) -> None:
        """Stop the checks."""
        self._timer.cancel()
        await self._pings.cancel()

    def check(self, silent_s: float = 0.0) -> None:
        """Ping the rooms from which nothing came for `silent_s` seconds."""
        deadline = asyncio.get_running_loop().time() - silent_s
        for room in self._rooms.values():
            if room.is_present and room.last_received_at <= deadline:
                self._pings.start(self._ping(room, room.joined_at))

    async def _ping(self, room: Room, joined_at: float) -> None:
        iq = self._connection.client.make_iq_get(ito=f"{room.jid}/{room.nick}")
        iq.append(self_ping_query())
        try:
            await iq.send(timeout=RESPONSE_TIMEOUT_S)
        except IqTimeout:
            return
        except IqError as error:
            if is_membership_lost(error.condition) and room.is_present and room.joined_at == joined_at:
                self._on_lost(room, f"the room says that it is not an occupant ({error.condition})")
            return
        room.last_received_at = asyncio.get_running_loop().time()

    def _check_silent_rooms(self) -> None:
        self.start()
        if self._connection.state == "online":
            self.check(self.silence_s)
