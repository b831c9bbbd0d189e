"""The messages of the rooms of an agent: requests, invitations, references to other messages, and refusals of its own."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from xml.etree.ElementTree import Element

from ...domain.access import AccessPolicy
from ...domain.jid import bare_jid
from ...domain.messages import Bounce, InboundRequest, Reaction, Retraction
from ..codec import (
    BODY,
    MUC_INVITE,
    ORIGIN_ID,
    SUBJECT,
    Receiver,
    RoomReference,
    decode,
    is_configuration_change,
    private_request,
    read_bounce,
    read_id,
    read_invitation,
    read_room_message,
    read_room_reference,
    room_request,
)
from ..connection.connection import Connection
from .membership import BounceDecision, RoomState, decide_after_bounce
from .room import Room
from .rooms import Rooms

log = logging.getLogger(__name__)

_REFUSAL_PAUSE_S = 5.0
_MAX_REASON_CHARACTERS = 200


class RoomMessages:
    """The messages that come from the rooms of one agent."""

    def __init__(self, connection: Connection, rooms: Rooms, access: AccessPolicy) -> None:
        self._connection = connection
        self._agent_jid = bare_jid(connection.jid)
        self._rooms = rooms
        self._access = access
        self.dropped: Counter[str] = Counter()
        """The number of questions that the agent could not answer, by the reason."""
        self.refusal_pause_s = _REFUSAL_PAUSE_S

    def is_from_room(self, message: Element) -> bool:
        """Return True if a message comes from a room or invites to one. Errors count only for messages that went to a room."""
        room = self._rooms.by_jid.get(bare_jid(message.get("from", "")))
        if message.get("type") == "error":
            bounce = read_bounce(message) if room is not None else None
            return room is not None and bounce is not None and self._receive_bounce(room, bounce)
        if room is not None:
            room.last_received_at = asyncio.get_running_loop().time()
            return True
        return read_invitation(message) is not None

    def read(self, message: Element) -> InboundRequest | Retraction | Reaction | None:
        """Return the request in a room's message, or its reference to another message.

        The `sender` of a reference is the owner of the conversation that it belongs to.
        """
        if message.get("type") == "error":
            return None
        invitation = read_invitation(message)
        if invitation is not None:
            is_from_room = message.find(f".//{MUC_INVITE}") is not None
            if is_from_room or self._access.is_allowed(invitation.sender):
                self._rooms.accept_invitation(invitation.room, invitation.password)
            return None
        room = self._rooms.by_jid[bare_jid(message.get("from", ""))]
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
            self._rooms.send_queue.confirm(room, room_message.stanza_id, read_id(message.find(ORIGIN_ID)))
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
            original = self._rooms.send_queue.take_refused_private(bounce.sender, bounce.stanza_id)
            if original is not None:
                self._rooms.send_queue.discard(room, [original], f"private message refused: {bounce.condition}")
            return original is not None
        refused = self._rooms.send_queue.take_refused(room, bounce.stanza_id)
        if refused is None:
            log.info("%s: the room %s refuses a message: %s", self._agent_jid, room.jid, reason)
            if bounce.condition == "not-acceptable" and room.is_present:
                self._rooms.lose(room, "the room says that it is not an occupant")
            return False
        original, attempts = refused
        decision = decide_after_bounce(bounce.condition, room.role, is_temporary=bounce.is_temporary, attempts=attempts)
        if decision is BounceDecision.DISCARD:
            self._rooms.send_queue.discard(room, [original], bounce.condition)
            return True
        self._rooms.send_queue.put_back(room, original)
        if decision is BounceDecision.WAIT_FOR_VOICE:
            room.is_silenced = True
            self._rooms.update_voice(room)
        elif decision is BounceDecision.SEND_LATER:
            if room.pause.handle is None:
                room.pause.start(self.refusal_pause_s, self._end_pause, room)
        elif room.is_present:
            self._rooms.lose(room, f"the room says that it is not an occupant ({reason})")
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

    async def _probe_voice(self, room: Room) -> None:
        await self._rooms.probe_features(room)
        room.is_silenced = False
        self._rooms.update_voice(room)

    def _end_pause(self, room: Room) -> None:
        """Send again to everybody in a room that has refused a message for a while."""
        if room.is_present and self._connection.state == "online":
            self._connection.send(self._rooms.send_queue.release(room))
