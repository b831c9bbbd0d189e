"""Whether the agent still is in its rooms, which can lose it without a word: they are asked (XEP-0410)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from slixmpp.exceptions import IqError, IqTimeout

from ...codec import self_ping
from ..connection.connection import Connection
from .membership import RoomState, is_membership_lost
from .room import Room

RESPONSE_TIMEOUT_S = 30.0
"""In which a room has to answer."""
_SILENCE_S = 600.0


class RoomPing:
    """Asks each room of which nothing is heard for `silence_s`; `on_lost` hears of one that the agent is not in, and why."""

    def __init__(self, connection: Connection, rooms: Mapping[str, Room], on_lost: Callable[[Room, str], None]) -> None:
        self.silence_s = _SILENCE_S
        self._connection = connection
        self._rooms = rooms
        self._on_lost = on_lost
        self._timer: asyncio.TimerHandle | None = None
        self._pings: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Watches from now on; begun again, with the `silence_s` of now."""
        self._cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(self.silence_s / 2, self._check_silent_rooms)

    async def stop(self) -> None:
        """Watches no more."""
        self._cancel_timer()
        for ping in self._pings:
            ping.cancel()
        await asyncio.gather(*self._pings, return_exceptions=True)

    def check(self, silent_s: float = 0.0) -> None:
        """Asks the rooms of which nothing was heard for so long whether the agent is in them."""
        before = asyncio.get_running_loop().time() - silent_s
        for room in self._rooms.values():
            if room.state is RoomState.JOINED and room.last_received_at <= before:
                ping = asyncio.create_task(self._ping(room, room.joined_at))
                self._pings.add(ping)
                ping.add_done_callback(self._pings.discard)

    async def _ping(self, room: Room, joined_at: float) -> None:
        iq = self._connection.client.make_iq_get(ito=f"{room.jid}/{room.nick}")
        iq.append(self_ping())
        try:
            await iq.send(timeout=RESPONSE_TIMEOUT_S)
        except IqTimeout:
            return
        except IqError as error:
            if is_membership_lost(error.condition) and room.state is RoomState.JOINED and room.joined_at == joined_at:
                self._on_lost(room, f"the room says that it is not an occupant ({error.condition})")
            return
        room.last_received_at = asyncio.get_running_loop().time()

    def _check_silent_rooms(self) -> None:
        self.start()
        if self._connection.state == "online":
            self.check(self.silence_s)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
