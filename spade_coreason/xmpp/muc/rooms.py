"""The chat rooms of an agent (XEP-0045): it joins them, rejoins after a cut, accepts invitations, and exchanges messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any
from xml.etree.ElementTree import Element

from slixmpp.exceptions import IqError, IqTimeout, XMPPError

from ...domain.access import AccessPolicy
from ...domain.callers import is_caller
from ...domain.jid import bare_jid, local_part
from ...domain.rooms import RoomConfig
from ...runtime import Metrics
from ...storage import Commit
from ..codec import (
    OCCUPANT_ID_NAMESPACE,
    STATUS_CREATED,
    STATUS_RENAMED,
    STATUS_SELF,
    RoomPresence,
    encode_join,
    encode_leave,
    read_presence,
    unlock_query,
)
from ..connection.connection import Connection
from .membership import (
    FINAL_STATES,
    MAX_NICKS,
    JoinDecision,
    RoomState,
    decide_after_leaving,
    decide_after_refusal,
    numbered_nick,
    retry_later,
)
from .ping import RESPONSE_TIMEOUT_S, RoomPing
from .room import Room
from .send_queue import RoomSendQueue, RoomStanza

log = logging.getLogger(__name__)

KICK_PAUSE_S = 60.0
_STABLE_STAY_S = 60.0
_MAX_INVITED_ROOMS = 100

INVITED_ROOMS_KEY = "rooms"
"""The key of the stored list of rooms to which the agent was invited."""


class Rooms:
    """All rooms of one agent. `on_occupant_left` is called with the owner of an ephemeral identity that has left."""

    def __init__(
        self,
        connection: Connection,
        configs: Iterable[RoomConfig],
        access: AccessPolicy,
        on_occupant_left: Callable[[str], None],
        metrics: Metrics,
    ) -> None:
        self._connection = connection
        self._agent_jid = bare_jid(connection.jid)
        self.by_jid = {config.jid: Room(config, self._agent_jid) for config in configs}
        self._on_occupant_left = on_occupant_left
        self.send_queue = RoomSendQueue(self._agent_jid, self.by_jid, metrics)
        self.route = self.send_queue.route
        """Return the stanzas that may leave now: queue those to rooms not joined yet, and address private replies."""
        self._is_closed = False
        self._access = access
        self.refused = self.send_queue.refused
        self.wait_until_reflected = self.send_queue.wait_until_reflected
        self.kick_pause_s = KICK_PAUSE_S
        self.max_invited_rooms = _MAX_INVITED_ROOMS
        self.ping = RoomPing(connection, self.by_jid, self.lose)
        self._store_rooms: Callable[[list[list[str | None]]], Commit[Any] | None] = lambda rooms: None
        self._stored_rooms: list[list[str | None]] = []

    @property
    def states(self) -> dict[str, RoomState]:
        """The state of each room, by its JID."""
        return {jid: room.state for jid, room in self.by_jid.items()}

    @property
    def may_join_any(self) -> bool:
        """True if the agent has rooms or may accept invitations."""
        return bool(self.by_jid) or self._access.accepts_invitations

    @property
    def is_in_any(self) -> bool:
        """True if the agent is in a room now."""
        return any(room.is_present for room in self.by_jid.values())

    # Joining and leaving

    def restore_invited(self, rooms: list[list[str | None]], store: Callable[[list[list[str | None]]], Commit[Any]]) -> None:
        """Restore the rooms to which the agent was invited, each with JID and password. Call `store` when they change.

        Rooms that may no longer invite the agent are dropped.
        """
        self._store_rooms, self._stored_rooms = store, rooms
        for jid, password in rooms:
            if jid is not None and jid not in self.by_jid and self._access.is_room_allowed(jid):
                self.by_jid[jid] = self._invited_room(jid, password)
        self._store_invited()

    def _store_invited(self) -> None:
        invited = [room for room in self.by_jid.values() if room.config.is_invited and room.state not in FINAL_STATES]
        rooms: list[list[str | None]] = [[room.jid, room.config.password] for room in invited]
        if rooms != self._stored_rooms and not self._is_closed:
            self._stored_rooms = rooms
            if (stored := self._store_rooms(rooms)) is not None:
                text = "%s: cannot store the rooms it was invited to: %s"
                stored.on_failed(lambda error: log.warning(text, self._agent_jid, error))

    def _invited_room(self, jid: str, password: str | None) -> Room:
        return Room(RoomConfig(jid, local_part(self._agent_jid), password, is_invited=True), self._agent_jid)

    def join_all(self) -> None:
        """Join every room in a new session, except those that are lost permanently."""
        self.ping.start()
        self.send_queue.start_session()
        unsent = self._connection.send_queue.withdraw_unsent(RoomStanza)
        for room in self.by_jid.values():
            if room.state not in FINAL_STATES:
                self._join(room)
        self._connection.send(self.route([s.original for s in unsent if s.original is not None]))

    async def close(self) -> None:
        """Leave all rooms and end their tasks."""
        self._is_closed = True
        for room in self.by_jid.values():
            if room.is_present:
                self._connection.send([RoomStanza(room.jid, encode_leave(room.jid, room.nick))])
            self._cancel_pending(room)
            room.state = RoomState.LEFT
        tasks = (room.task for room in self.by_jid.values() if room.task is not None)
        await asyncio.gather(*tasks, self.ping.stop(), return_exceptions=True)

    def _join(self, room: Room) -> None:
        self._cancel_pending(room)
        self._reset_occupants(room)
        room.state, room.tried_nick_count, room.nick = RoomState.JOINING, 1, room.config.nick
        room.is_trusted = not room.config.is_invited or self._access.is_room_trusted(room.jid)
        room.task = asyncio.create_task(self._probe_and_join(room))

    async def _probe_and_join(self, room: Room) -> None:
        await self.probe_features(room)
        self._request_join(room)

    async def probe_features(self, room: Room) -> None:
        """Find out if the room sets the ids of its occupants itself (XEP-0421), and if it is moderated."""
        try:
            plugin = self._connection.client.plugin["xep_0030"]
            info = await plugin.get_info(room.jid, timeout=min(10.0, RESPONSE_TIMEOUT_S))
            features = info["disco_info"]["features"]
        except (IqError, IqTimeout, XMPPError):
            features = ()
        room.has_occupant_ids, room.is_moderated = OCCUPANT_ID_NAMESPACE in features, "muc_moderated" in features

    def _request_join(self, room: Room) -> None:
        self._set_timer(room, RESPONSE_TIMEOUT_S, lambda room: self.lose(room, "the room does not answer"))
        self._connection.send([RoomStanza(room.jid, encode_join(room.jid, room.nick, room.config.password))])

    def lose(self, room: Room, reason: str) -> None:
        """Leave a room that does not answer or has lost the agent, and join it later."""
        self._apply_decision(room, retry_later(room.failed_attempts), reason)

    def _apply_decision(self, room: Room, decision: JoinDecision, reason: str) -> None:
        """Apply the decision about a room that the agent could not join, or has lost. Log one line."""
        outlook = "it does not retry" if decision.retry_after_s is None else f"it retries in {decision.retry_after_s:g} s"
        if room.is_present and asyncio.get_running_loop().time() - room.joined_at > _STABLE_STAY_S:
            room.failed_attempts = 0
        level = logging.INFO if room.failed_attempts and decision.retry_after_s is not None else logging.WARNING
        log.log(level, "%s: not in the room %s: %s (%s); %s", self._agent_jid, room.jid, decision.state, reason, outlook)
        self._cancel_pending(room)
        self._reset_occupants(room)
        room.state = decision.state
        room.failed_attempts += 1
        if decision.retry_after_s is not None:
            self._set_timer(room, decision.retry_after_s, self._join)
        else:
            self.send_queue.discard_all(room, str(room.state))
            if room.config.is_invited:
                del self.by_jid[room.jid]
        self._store_invited()

    def _reset_occupants(self, room: Room) -> None:
        for identity in room.reset_occupants():
            self._on_occupant_left(identity.owner)

    def _set_timer(self, room: Room, after_s: float, action: Callable[[Room], None]) -> None:
        def on_timer() -> None:
            if self._is_closed:
                return
            if self._connection.state == "online":
                action(room)
            else:
                room.state = RoomState.AWAY  # the agent joins again in the next session

        room.timer.start(after_s, on_timer)

    def _cancel_pending(self, room: Room) -> None:
        room.timer.cancel()
        room.pause.cancel()
        if room.task is not None and room.task is not asyncio.current_task():
            room.task.cancel()

    # Presences of a room

    def handle_presence(self, stanza: Element) -> bool:
        """Handle a presence. Return True if it comes from a room."""
        room = self.by_jid.get(bare_jid(stanza.get("from", "")))
        if room is None:
            return False
        room.last_received_at = asyncio.get_running_loop().time()
        presence = read_presence(stanza)
        if presence is None or self._is_closed:
            return True
        is_own = presence.nick == room.nick or STATUS_SELF in presence.statuses
        if presence.kind == "error":
            if room.state is RoomState.JOINING:
                self._on_join_refused(room, presence.condition)
        elif not is_own:
            departed = room.handle_presence(presence)
            if departed is not None:
                self._on_occupant_left(departed.owner)
        elif presence.kind == "unavailable":
            self._on_left(room, presence)
        elif room.state is RoomState.JOINING:
            self._on_join_accepted(room, presence)
        elif room.is_present and presence.role and presence.role != room.role:
            room.role, room.is_silenced = presence.role, False
            self.update_voice(room)
        return True

    def _on_join_refused(self, room: Room, condition: str) -> None:
        if condition != "conflict":
            self._apply_decision(room, decide_after_refusal(condition, room.failed_attempts), condition)
        elif room.tried_nick_count >= MAX_NICKS:
            self._apply_decision(room, JoinDecision(RoomState.NICK_TAKEN), f"{room.nick} and all before it")
        else:
            room.tried_nick_count += 1
            room.nick = numbered_nick(room.config.nick, room.tried_nick_count)
            self._request_join(room)

    def _on_join_accepted(self, room: Room, presence: RoomPresence) -> None:
        room.timer.cancel()
        room.nick, room.role, room.is_silenced = presence.nick, presence.role, False
        if STATUS_CREATED in presence.statuses:
            room.task = asyncio.create_task(self._configure_new_room(room))
        else:
            self._mark_joined(room)

    async def _configure_new_room(self, room: Room) -> None:
        iq = self._connection.client.make_iq_set(sub=unlock_query(), ito=room.jid)
        try:
            await iq.send(timeout=RESPONSE_TIMEOUT_S)
        except (IqError, IqTimeout) as error:
            log.warning("%s: the new room %s stays locked: %s", self._agent_jid, room.jid, type(error).__name__)
        await self.probe_features(room)  # earlier the room did not exist
        if room.state is RoomState.JOINING:
            self._mark_joined(room)

    def _mark_joined(self, room: Room) -> None:
        room.state, room.joined_at = RoomState.JOINED, asyncio.get_running_loop().time()
        log.info("%s: in the room %s as %s", self._agent_jid, room.jid, room.nick)
        self.update_voice(room)
        self._store_invited()
        self._connection.send(self.send_queue.release(room))

    def update_voice(self, room: Room) -> None:
        """Send what waits if the room has given the agent voice. Warn once if it has taken it."""
        if not room.is_present or room.has_voice is (room.state is RoomState.JOINED):
            return
        if room.has_voice:
            room.state, room.has_warned_of_voice = RoomState.JOINED, False
            log.info("%s: may speak in the room %s", self._agent_jid, room.jid)
            self._connection.send(self.send_queue.release(room))
            return
        room.state = RoomState.VOICELESS
        if not room.has_warned_of_voice:
            room.has_warned_of_voice = True
            text = "%s: may not speak in the room %s, so it does not answer there; a moderator can grant voice to %s"
            log.warning(text, self._agent_jid, room.jid, room.nick)

    def _on_left(self, room: Room, presence: RoomPresence) -> None:
        if not room.is_present:
            return
        if STATUS_RENAMED in presence.statuses and presence.new_nick:
            room.nick = presence.new_nick
            return
        decision = decide_after_leaving(
            presence, was_kicked=room.was_kicked, kick_pause_s=self.kick_pause_s, attempt=room.failed_attempts
        )
        room.was_kicked = room.was_kicked or decision.state is RoomState.KICKED
        statuses = ", ".join(map(str, sorted(presence.statuses - {STATUS_SELF})))
        self._apply_decision(room, decision, f"status {statuses}" if statuses else "it is no longer an occupant")

    def accept_invitation(self, jid: str, password: str | None) -> None:
        """Join a room to which the agent was invited, if that is allowed."""
        room = self.by_jid.get(jid)
        if room is None:
            if "@" not in jid or is_caller(jid) or not self._access.is_room_allowed(jid):
                log.info("%s: ignored an invitation to %s, which access.rooms does not allow", self._agent_jid, jid)
                return
            if sum(room.config.is_invited for room in self.by_jid.values()) >= self.max_invited_rooms:
                log.warning(
                    "%s: ignored an invitation to %s: invitations have brought it into %d rooms, the limit; remove it from one",
                    self._agent_jid,
                    jid,
                    self.max_invited_rooms,
                )
                return
            room = self.by_jid[jid] = self._invited_room(jid, password)
        elif room.state is RoomState.JOINING or room.is_present:
            return
        if self._connection.state == "online":
            self._join(room)
        self._store_invited()
