"""The chat rooms of an agent (XEP-0045): it joins them, comes again after a cut, follows invitations, and is heard there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any
from xml.etree.ElementTree import Element

from slixmpp.exceptions import IqError, IqTimeout, XMPPError

from ...codec import (
    BODY,
    MUC_INVITE,
    OCCUPANT_ID_NAMESPACE,
    STATUS_CREATED,
    STATUS_RENAMED,
    STATUS_SELF,
    SUBJECT,
    RoomPresence,
    RoomReference,
    decode,
    encode_join,
    encode_leave,
    private_request,
    read_invitation,
    read_presence,
    read_room_message,
    read_room_reference,
    room_request,
    unlock_query,
)
from ...domain.access import AccessPolicy
from ...domain.jid import bare_jid, local_part
from ...domain.messages import InboundRequest, Reaction, Retraction
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
from .room import Room, RoomConfig
from .send_queue import RoomSendQueue, RoomStanza

log = logging.getLogger(__name__)

KICK_PAUSE_S = 60.0
_STABLE_STAY_S = 60.0
_MAX_INVITED_ROOMS = 100

INVITED_ROOMS_KEY = "rooms"
"""Under which name the rooms are kept into which the agent was invited."""


class Rooms:
    """All rooms of one agent. `on_occupant_left` hears who has left and will never be known again."""

    def __init__(
        self,
        connection: Connection,
        configs: Iterable[RoomConfig] = (),
        on_occupant_left: Callable[[str], None] = lambda owner: None,
    ) -> None:
        self._connection = connection
        self._rooms = {plan.jid: Room(plan) for plan in configs}
        self._on_occupant_left = on_occupant_left
        self._send_queue = RoomSendQueue(self._rooms)
        self.route = self._send_queue.route
        """What may leave now of stanzas: those to rooms that the agent is not in yet wait, private ones find their seat."""
        self._agent_jid = bare_jid(connection.jid)
        self._is_closed = False
        self.access = AccessPolicy(self._agent_jid)
        self.kick_pause_s = KICK_PAUSE_S
        self.ping = RoomPing(connection, self._rooms, self._on_lost)
        self._store_rooms: Callable[[list[list[str | None]]], None] = lambda rooms: None
        self._stored_rooms: list[list[str | None]] = []

    @property
    def states(self) -> dict[str, RoomState]:
        """How it stands with each room."""
        return {jid: room.state for jid, room in self._rooms.items()}

    @property
    def may_join_any(self) -> bool:
        """Whether the agent may be in a room at all."""
        return bool(self._rooms) or self.access.accepts_invitations

    @property
    def is_in_any(self) -> bool:
        """Whether the agent is in a room now."""
        return any(room.state is RoomState.JOINED for room in self._rooms.values())

    def nick_in(self, room: str) -> str:
        """What the agent is called in a room."""
        return self._rooms[room].nick

    # Coming and going

    def restore_invited(self, rooms: list[list[str | None]], store: Callable[[list[list[str | None]]], None]) -> None:
        """Takes up the rooms into which the agent was invited, and tells `store` when there are others: JID and password each.

        Those that may not invite it any more are forgotten.
        """
        self._store_rooms, self._stored_rooms = store, rooms
        for jid, password in rooms:
            if jid is not None and jid not in self._rooms and self.access.is_room_allowed(jid):
                self._rooms[jid] = self._invited_room(jid, password)
        self._store_invited()

    def _store_invited(self) -> None:
        stays = (RoomState.JOINING, RoomState.JOINED, RoomState.AWAY)
        invited = [room for room in self._rooms.values() if room.config.is_invited and room.state in stays]
        now: list[list[str | None]] = [[room.jid, room.config.password] for room in invited]
        if now != self._stored_rooms and not self._is_closed:
            self._stored_rooms = now
            self._store_rooms(now)

    def _invited_room(self, jid: str, password: str | None) -> Room:
        return Room(RoomConfig(jid, local_part(self._agent_jid), password, is_invited=True))

    def join_all(self) -> None:
        """With a new session: joins every room that it has not lost for good."""
        self.ping.start()
        held = self._connection.withdraw_unsent(RoomStanza)
        for room in self._rooms.values():
            if room.state not in FINAL_STATES:
                self._join(room)
        self._connection.send(self.route([s.original for s in held if s.original is not None]))

    async def close(self) -> None:
        """Says goodbye to all of them."""
        self._is_closed = True
        for room in self._rooms.values():
            if room.state is RoomState.JOINED:
                self._send(encode_leave(room.jid, room.nick))
            self._cancel_pending(room)
            room.state = RoomState.LEFT
        tasks = (room.task for room in self._rooms.values() if room.task is not None)
        await asyncio.gather(*tasks, self.ping.stop(), return_exceptions=True)

    def _join(self, room: Room) -> None:
        self._cancel_pending(room)
        self._reset_occupants(room)
        room.state, room.tried_nick_count, room.nick = RoomState.JOINING, 1, room.config.nick
        room.is_trusted = not room.config.is_invited or self.access.is_room_trusted(room.jid)
        room.task = asyncio.create_task(self._probe_and_join(room))

    async def _probe_and_join(self, room: Room) -> None:
        await self._probe_features(room)
        self._request_join(room)

    async def _probe_features(self, room: Room) -> None:
        """Whether the ids of its occupants are of its own making."""
        try:
            plugin = self._connection.client.plugin["xep_0030"]
            info = await plugin.get_info(room.jid, timeout=min(10.0, RESPONSE_TIMEOUT_S))
            room.has_occupant_ids = OCCUPANT_ID_NAMESPACE in info["disco_info"]["features"]
        except (IqError, IqTimeout, XMPPError):
            room.has_occupant_ids = False

    def _request_join(self, room: Room) -> None:
        self._set_timer(room, RESPONSE_TIMEOUT_S, self._on_join_timeout)
        self._send(encode_join(room.jid, room.nick, room.config.password))

    def _on_join_timeout(self, room: Room) -> None:
        self._apply_decision(room, retry_later(room.failed_attempts), "the room does not answer")

    def _on_lost(self, room: Room, reason: str) -> None:
        self._apply_decision(room, retry_later(room.failed_attempts), reason)

    def _apply_decision(self, room: Room, decision: JoinDecision, reason: str) -> None:
        """What becomes of a place that the agent has not got, or has lost. One line in the log for each."""
        again = (
            "it does not come again" if decision.retry_after_s is None else f"it tries again in {decision.retry_after_s:g} s"
        )
        if room.state is RoomState.JOINED and asyncio.get_running_loop().time() - room.joined_at > _STABLE_STAY_S:
            room.failed_attempts = 0
        level = logging.INFO if room.failed_attempts and decision.retry_after_s is not None else logging.WARNING
        log.log(level, "%s: not in the room %s: %s (%s); %s", self._agent_jid, room.jid, decision.state, reason, again)
        self._cancel_pending(room)
        self._reset_occupants(room)
        room.state = decision.state
        room.failed_attempts += 1
        if decision.retry_after_s is not None:
            self._set_timer(room, decision.retry_after_s, self._join)
        else:
            self._send_queue.discard_queued(room)
        self._store_invited()

    def _reset_occupants(self, room: Room) -> None:
        for seat in room.reset_occupants():
            self._on_occupant_left(seat.owner)

    def _set_timer(self, room: Room, after_s: float, action: Callable[[Room], None]) -> None:
        def ring() -> None:
            room.timer = None
            if self._is_closed:
                return
            if self._connection.state == "online":
                action(room)
            else:
                room.state = RoomState.AWAY  # the next session joins

        self._stop_timer(room)
        room.timer = asyncio.get_running_loop().call_later(after_s, ring)

    def _stop_timer(self, room: Room) -> None:
        if room.timer is not None:
            room.timer.cancel()
            room.timer = None

    def _cancel_pending(self, room: Room) -> None:
        self._stop_timer(room)
        if room.task is not None and room.task is not asyncio.current_task():
            room.task.cancel()

    # What the room says

    def handle_presence(self, presence: Element) -> bool:
        """Takes a presence; whether it is of a room."""
        room = self._rooms.get(bare_jid(presence.get("from", "")))
        if room is None:
            return False
        room.last_received_at = asyncio.get_running_loop().time()
        seen = read_presence(presence)
        if seen is None or self._is_closed:
            return True
        is_own = seen.nick == room.nick or STATUS_SELF in seen.statuses
        if seen.kind == "error":
            if room.state is RoomState.JOINING:
                self._on_join_refused(room, seen.condition)
        elif not is_own:
            gone = room.handle_presence(seen)
            if gone is not None:
                self._on_occupant_left(gone.owner)
        elif seen.kind == "unavailable":
            self._on_left(room, seen)
        elif room.state is RoomState.JOINING:
            self._on_join_accepted(room, seen)
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
        self._stop_timer(room)
        room.nick = presence.nick
        if STATUS_CREATED in presence.statuses:
            room.task = asyncio.create_task(self._configure_new_room(room))
        else:
            self._mark_joined(room)

    async def _configure_new_room(self, room: Room) -> None:
        iq = self._connection.client.make_iq_set(sub=unlock_query(), ito=room.jid)
        try:
            await iq.send(timeout=RESPONSE_TIMEOUT_S)
        except (IqError, IqTimeout) as error:
            log.warning("%s: the room %s, which is new, stays locked: %s", self._agent_jid, room.jid, type(error).__name__)
        await self._probe_features(room)  # before, there was nothing to look at
        if room.state is RoomState.JOINING:
            self._mark_joined(room)

    def _mark_joined(self, room: Room) -> None:
        room.state, room.joined_at = RoomState.JOINED, asyncio.get_running_loop().time()
        log.info("%s: in the room %s as %s", self._agent_jid, room.jid, room.nick)
        self._store_invited()
        held, room.queued_stanzas = room.queued_stanzas, []
        self._connection.send(self.route(held))

    def _on_left(self, room: Room, presence: RoomPresence) -> None:
        if room.state is not RoomState.JOINED:
            return
        if STATUS_RENAMED in presence.statuses and presence.new_nick:
            room.nick = presence.new_nick
            return
        then = decide_after_leaving(
            presence, was_kicked=room.was_kicked, kick_pause_s=self.kick_pause_s, attempt=room.failed_attempts
        )
        room.was_kicked = room.was_kicked or then.state is RoomState.KICKED
        statuses = ", ".join(map(str, sorted(presence.statuses - {STATUS_SELF})))
        self._apply_decision(room, then, f"status {statuses}" if statuses else "it is not an occupant any more")

    # What is said there

    def is_room_message(self, message: Element) -> bool:
        """Whether a message is one of a room, or about one."""
        room = self._rooms.get(bare_jid(message.get("from", ""))) if self._rooms else None
        if message.get("type") == "error":
            if room is not None and room.state is RoomState.JOINED and _is_not_acceptable(message):
                self._on_lost(room, "the room says that it is not an occupant")
            return False
        if room is not None:
            room.last_received_at = asyncio.get_running_loop().time()
            return True
        return read_invitation(message) is not None

    def read_message(self, message: Element) -> InboundRequest | Retraction | Reaction | None:
        """What a message of a room asks, or says about another; the sender of the latter is whose conversation it concerns."""
        invitation = read_invitation(message)
        if invitation is not None:
            is_of_room = message.find(f".//{MUC_INVITE}") is not None
            if is_of_room or self.access.is_allowed(invitation.sender):
                self._follow_invitation(invitation.room, invitation.password)
            return None
        room = self._rooms[bare_jid(message.get("from", ""))]
        if room.state is not RoomState.JOINED:
            return None
        if message.get("type") != "groupchat":
            return self._read_private(room, message)
        if message.find(SUBJECT) is not None and message.find(BODY) is None:
            room.mark_current()
            return None
        if (reference := read_room_reference(message)) is not None:
            return self._resolve_reference(room, reference)
        said = read_room_message(message)
        question = room.extract_question(said) if said is not None else None
        if said is None or question is None or not self._is_allowed(room, said.nick):
            return None
        replaces = room.find_question_id(said.nick, said.replaces)
        room.record_question(said)
        jid = room.jid_of(said.nick)
        return room_request(room.jid, said, question, jid, reply_to_id=room.find_own_id(said.reply_to_id), replaces=replaces)

    def _resolve_reference(self, room: Room, reference: RoomReference) -> Retraction | Reaction | None:
        """What somebody says about a message in a room: everybody about the agent's, and else only about their own."""
        said, nick = reference.reference, reference.nick
        if room.is_history(reference.delay_source) or nick == room.nick or not self._is_allowed(room, nick):
            return None
        if isinstance(said, Reaction):
            return said._replace(sender=room.jid, stanza_id=room.find_own_id(said.stanza_id), nickname=nick) if nick else None
        question = room.find_question_id(nick, said.stanza_id) if nick else said.stanza_id
        return said._replace(sender=room.jid, stanza_id=question) if question else None

    def _read_private(self, room: Room, message: Element) -> InboundRequest | Retraction | Reaction | None:
        said = decode(message, in_room=True)
        nick = message.get("from", "").partition("/")[2]
        if (
            not isinstance(said, InboundRequest | Retraction | Reaction)
            or nick == room.nick
            or not self._is_allowed(room, nick)
        ):
            return None
        if isinstance(said, InboundRequest) and said.channel != "person":
            return None
        seat = room.register_private_sender(nick)
        if seat is None:
            return None
        if isinstance(said, InboundRequest):
            return private_request(said, seat.owner, seat.address, room.jid_of(nick))
        return said._replace(sender=seat.owner)

    def _is_allowed(self, room: Room, nick: str) -> bool:
        jid = room.jid_of(nick)
        return jid is None or (jid != self._agent_jid and self.access.is_allowed(jid))

    def _follow_invitation(self, jid: str, password: str | None) -> None:
        room = self._rooms.get(jid)
        if room is None:
            if "@" not in jid or not self.access.is_room_allowed(jid):
                log.info("%s: does not follow an invitation into %s (access.rooms)", self._agent_jid, jid)
                return
            if sum(known.config.is_invited for known in self._rooms.values()) >= _MAX_INVITED_ROOMS:
                log.warning(
                    "%s: does not follow an invitation into %s: it is in %d rooms", self._agent_jid, jid, _MAX_INVITED_ROOMS
                )
                return
            room = self._rooms[jid] = self._invited_room(jid, password)
        elif room.state in (RoomState.JOINING, RoomState.JOINED):
            return
        if self._connection.state == "online":
            self._join(room)
        self._store_invited()

    # What the agent says there

    def _send(self, stanza: str) -> None:
        self._connection.send([RoomStanza.wrap(stanza)])


def _is_not_acceptable(message: Any) -> bool:
    return any(child.tag.endswith("}not-acceptable") for error in message for child in error)
