"""The chat rooms of an agent (XEP-0045): it joins them, rejoins after a cut, accepts invitations, and exchanges messages."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from xml.etree.ElementTree import Element

from slixmpp.exceptions import IqError, IqTimeout, XMPPError

from ...domain.access import AccessPolicy
from ...domain.callers import is_caller
from ...domain.jid import bare_jid, local_part
from ...domain.messages import Bounce, InboundRequest, Reaction, Retraction
from ...domain.rooms import RoomConfig
from ...runtime import Metrics
from ..codec import (
    BODY,
    MUC_INVITE,
    OCCUPANT_ID_NAMESPACE,
    ORIGIN_ID,
    STATUS_CREATED,
    STATUS_RENAMED,
    STATUS_SELF,
    SUBJECT,
    Receiver,
    RoomPresence,
    RoomReference,
    decode,
    encode_join,
    encode_leave,
    is_configuration_change,
    private_request,
    read_bounce,
    read_id,
    read_invitation,
    read_presence,
    read_room_message,
    read_room_reference,
    room_request,
    unlock_query,
)
from ..connection.connection import Connection
from .membership import (
    FINAL_STATES,
    MAX_NICKS,
    BounceDecision,
    JoinDecision,
    RoomState,
    decide_after_bounce,
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
_REFUSAL_PAUSE_S = 5.0
_MAX_REASON_CHARACTERS = 200
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
        self._send_queue = RoomSendQueue(self._agent_jid, self.by_jid, metrics)
        self.route = self._send_queue.route
        """Return the stanzas that may leave now: queue those to rooms not joined yet, and address private replies."""
        self._is_closed = False
        self._access = access
        self.refused = self._send_queue.refused
        self.dropped: Counter[str] = Counter()
        """The number of questions that the agent could not answer, by the reason."""
        self.wait_until_reflected = self._send_queue.wait_until_reflected
        self.kick_pause_s = KICK_PAUSE_S
        self.refusal_pause_s = _REFUSAL_PAUSE_S
        self.max_invited_rooms = _MAX_INVITED_ROOMS
        self.ping = RoomPing(connection, self.by_jid, self._on_lost)
        self._store_rooms: Callable[[list[list[str | None]]], None] = lambda rooms: None
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

    def restore_invited(self, rooms: list[list[str | None]], store: Callable[[list[list[str | None]]], None]) -> None:
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
            self._store_rooms(rooms)

    def _invited_room(self, jid: str, password: str | None) -> Room:
        return Room(RoomConfig(jid, local_part(self._agent_jid), password, is_invited=True), self._agent_jid)

    def join_all(self) -> None:
        """Join every room in a new session, except those that are lost permanently."""
        self.ping.start()
        self._send_queue.start_session()
        unsent = self._connection.withdraw_unsent(RoomStanza)
        for room in self.by_jid.values():
            if room.state not in FINAL_STATES:
                self._join(room)
        self._connection.send(self.route([s.original for s in unsent if s.original is not None]))

    async def close(self) -> None:
        """Leave all rooms and end their tasks."""
        self._is_closed = True
        for room in self.by_jid.values():
            if room.is_present:
                self._send(room, encode_leave(room.jid, room.nick))
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
        await self._probe_features(room)
        self._request_join(room)

    async def _probe_features(self, room: Room) -> None:
        """Find out if the room sets the ids of its occupants itself (XEP-0421), and if it is moderated."""
        try:
            plugin = self._connection.client.plugin["xep_0030"]
            info = await plugin.get_info(room.jid, timeout=min(10.0, RESPONSE_TIMEOUT_S))
            features = info["disco_info"]["features"]
        except (IqError, IqTimeout, XMPPError):
            features = ()
        room.has_occupant_ids, room.is_moderated = OCCUPANT_ID_NAMESPACE in features, "muc_moderated" in features

    def _request_join(self, room: Room) -> None:
        self._set_timer(room, RESPONSE_TIMEOUT_S, self._on_join_timeout)
        self._send(room, encode_join(room.jid, room.nick, room.config.password))

    def _on_join_timeout(self, room: Room) -> None:
        self._apply_decision(room, retry_later(room.failed_attempts), "the room does not answer")

    def _on_lost(self, room: Room, reason: str) -> None:
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
            self._send_queue.discard_all(room, str(room.state))
            if room.config.is_invited:
                del self.by_jid[room.jid]
        self._store_invited()

    def _reset_occupants(self, room: Room) -> None:
        for identity in room.reset_occupants():
            self._on_occupant_left(identity.owner)

    def _set_timer(self, room: Room, after_s: float, action: Callable[[Room], None]) -> None:
        def on_timer() -> None:
            room.timer = None
            if self._is_closed:
                return
            if self._connection.state == "online":
                action(room)
            else:
                room.state = RoomState.AWAY  # the agent joins again in the next session

        self._stop_timer(room)
        room.timer = asyncio.get_running_loop().call_later(after_s, on_timer)

    def _stop_timer(self, room: Room) -> None:
        if room.timer is not None:
            room.timer.cancel()
            room.timer = None

    def _cancel_pending(self, room: Room) -> None:
        self._stop_timer(room)
        self._stop_pause(room)
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
            self._update_voice(room)
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
        await self._probe_features(room)  # earlier the room did not exist
        if room.state is RoomState.JOINING:
            self._mark_joined(room)

    def _mark_joined(self, room: Room) -> None:
        room.state, room.joined_at = RoomState.JOINED, asyncio.get_running_loop().time()
        log.info("%s: in the room %s as %s", self._agent_jid, room.jid, room.nick)
        self._update_voice(room)
        self._store_invited()
        self._connection.send(self._send_queue.release(room))

    def _update_voice(self, room: Room) -> None:
        """Send what waits if the room has given the agent voice. Warn once if it has taken it."""
        if not room.is_present or room.has_voice is (room.state is RoomState.JOINED):
            return
        if room.has_voice:
            room.state, room.has_warned_of_voice = RoomState.JOINED, False
            log.info("%s: may speak in the room %s", self._agent_jid, room.jid)
            self._connection.send(self._send_queue.release(room))
            return
        room.state = RoomState.VOICELESS
        if not room.has_warned_of_voice:
            room.has_warned_of_voice = True
            text = "%s: may not speak in the room %s, so it does not answer there; a moderator can grant voice to %s"
            log.warning(text, self._agent_jid, room.jid, room.nick)

    async def _probe_voice(self, room: Room) -> None:
        await self._probe_features(room)
        room.is_silenced = False
        self._update_voice(room)

    def _pause(self, room: Room) -> None:
        """Send nothing to everybody in a room for a while."""

        def on_end() -> None:
            room.pause = None
            if room.is_present and self._connection.state == "online":
                self._connection.send(self._send_queue.release(room))

        if room.pause is None:
            room.pause = asyncio.get_running_loop().call_later(self.refusal_pause_s, on_end)

    def _stop_pause(self, room: Room) -> None:
        if room.pause is not None:
            room.pause.cancel()
            room.pause = None

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

    # Messages of a room

    def is_room_message(self, message: Element) -> bool:
        """Return True if a message comes from a room or invites to one. Errors count only for messages that went to a room."""
        room = self.by_jid.get(bare_jid(message.get("from", ""))) if self.by_jid else None
        if message.get("type") == "error":
            bounce = read_bounce(message) if room is not None else None
            return room is not None and bounce is not None and self._receive_bounce(room, bounce)
        if room is not None:
            room.last_received_at = asyncio.get_running_loop().time()
            return True
        return read_invitation(message) is not None

    def read_message(self, message: Element) -> InboundRequest | Retraction | Reaction | None:
        """Return the request in a room's message, or its reference to another message.

        The `sender` of a reference is the owner of the conversation that it belongs to.
        """
        if message.get("type") == "error":
            return None
        invitation = read_invitation(message)
        if invitation is not None:
            is_from_room = message.find(f".//{MUC_INVITE}") is not None
            if is_from_room or self._access.is_allowed(invitation.sender):
                self._accept_invitation(invitation.room, invitation.password)
            return None
        room = self.by_jid[bare_jid(message.get("from", ""))]
        if not room.is_present:
            return None
        if message.get("type") != "groupchat":
            return self._read_private(room, message)
        if message.find(SUBJECT) is not None and message.find(BODY) is None:
            room.mark_current()
            return None
        if (reference := read_room_reference(message)) is not None:
            return self._resolve_reference(room, reference)
        room_message = read_room_message(message)
        if room_message is None:
            if room.role == "visitor" and is_configuration_change(message):
                room.task = asyncio.create_task(self._probe_voice(room))
            return None
        if room_message.nick == room.nick:
            self._send_queue.confirm(room, room_message.stanza_id, read_id(message.find(ORIGIN_ID)))
        room.record_ids(room_message)
        question, nick = room.extract_question(room_message), room_message.nick
        if question is None:
            # The latest version of the message is not for the agent. An earlier one may have been.
            retraction = Retraction(f"{room.jid}/{nick}", room_message.replaced_id)
            reference = RoomReference(retraction, nick, room_message.delay_source)
            return self._resolve_reference(room, reference) if room_message.replaced_id else None
        if not self._is_allowed(room, nick):
            return None
        if room.state is RoomState.VOICELESS:
            self.dropped["no voice in the room"] += 1
            return None
        author = room.author_of(nick)
        replaces = room.find_replaced_ids(room_message) if author else ()
        jid, reply_to_id = room.jid_of(nick), room.find_own_id(room_message.reply_to_id)
        return room_request(room.jid, room_message, question, jid, reply_to_id=reply_to_id, replaces=replaces, author=author)

    def _receive_bounce(self, room: Room, bounce: Bounce) -> bool:
        """Receive the error for a message that went to the room. Return False if that was not sent by this queue."""
        reason = f"{bounce.condition}: {bounce.text[:_MAX_REASON_CHARACTERS]}" if bounce.text else bounce.condition
        if "/" in bounce.sender:  # an occupant: other people's words say nothing about messages to everybody
            original = self._send_queue.take_refused_private(bounce.sender, bounce.stanza_id)
            if original is not None:
                self._send_queue.discard(room, [original], f"private message refused: {bounce.condition}")
            return original is not None
        refused = self._send_queue.take_refused(room, bounce.stanza_id)
        if refused is None:
            log.info("%s: the room %s refuses a message: %s", self._agent_jid, room.jid, reason)
            if bounce.condition == "not-acceptable" and room.is_present:
                self._on_lost(room, "the room says that it is not an occupant")
            return False
        original, attempts = refused
        decision = decide_after_bounce(bounce.condition, room.role, is_temporary=bounce.is_temporary, attempts=attempts)
        if decision is BounceDecision.DISCARD:
            self._send_queue.discard(room, [original], bounce.condition)
            return True
        self._send_queue.put_back(room, original)
        if decision is BounceDecision.WAIT_FOR_VOICE:
            room.is_silenced = True
            self._update_voice(room)
        elif decision is BounceDecision.SEND_LATER:
            self._pause(room)
        elif room.is_present:
            self._on_lost(room, f"the room says that it is not an occupant ({reason})")
        return True

    def _resolve_reference(self, room: Room, room_reference: RoomReference) -> Retraction | Reaction | None:
        """Return the reference with the ids that the agent knows. None if the sender may not refer to that message.

        Every occupant may refer to the agent's messages, and otherwise only to their own.
        """
        reference, nick = room_reference.reference, room_reference.nick
        if room.is_history(room_reference.delay_source) or nick == room.nick or not self._is_allowed(room, nick):
            return None
        if isinstance(reference, Reaction):
            own_id = room.find_own_id(reference.stanza_id)
            return reference._replace(sender=room.jid, stanza_id=own_id, nickname=nick) if nick else None
        author = room.author_of(nick) if nick else None
        return reference._replace(sender=room.jid, author=author) if author != "" else None

    def _read_private(self, room: Room, message: Element) -> InboundRequest | Retraction | Reaction | None:
        decoded = decode(message, Receiver(self._agent_jid), in_room=True)
        nick = message.get("from", "").partition("/")[2]
        if (
            not isinstance(decoded, InboundRequest | Retraction | Reaction)
            or nick == room.nick
            or not self._is_allowed(room, nick)
        ):
            return None
        if isinstance(decoded, InboundRequest) and not decoded.kind.has_commands:
            return None
        identity = room.register_private_sender(nick)
        if identity is None:
            return None
        if isinstance(decoded, InboundRequest):
            return private_request(decoded, identity.owner, identity.address, room.jid_of(nick))
        return decoded._replace(sender=identity.owner)

    def _is_allowed(self, room: Room, nick: str) -> bool:
        jid = room.jid_of(nick)
        if jid is not None and self._connection.client.caller_filter.drops_from(jid):
            return False
        return jid is None or (jid != self._agent_jid and self._access.is_allowed(jid))

    def _accept_invitation(self, jid: str, password: str | None) -> None:
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

    # Stanzas to a room

    def _send(self, room: Room, stanza: str) -> None:
        self._connection.send([RoomStanza(room.jid, stanza)])
