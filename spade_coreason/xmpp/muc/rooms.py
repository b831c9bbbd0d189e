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
    CREATED,
    MUC_INVITE,
    OCCUPANT_ID_NAMESPACE,
    RENAMED,
    SELF,
    SUBJECT,
    Reference,
    Seen,
    decode,
    joining,
    leaving,
    private_request,
    read_invitation,
    read_presence,
    read_reference,
    read_utterance,
    room_request,
    unlocking,
)
from ...domain.access import Access
from ...domain.jid import bare, local_part
from ...domain.messages import Incoming, Reaction, Retraction
from ..connection.connection import Connection
from .membership import ENDED, MOST_NICKS, Next, RoomState, after_leaving, after_refusal, later, nick_number
from .ping import ANSWER_WITHIN_S, RoomWatch
from .room import Room, RoomPlan
from .send_queue import RoomMail, ToRoom

log = logging.getLogger(__name__)

KICK_PAUSE_S = 60.0
_STEADY_S = 60.0
_INVITED = 100

REMEMBERED = "rooms"
"""Under which name the rooms are kept into which the agent was invited."""


class Rooms:
    """All rooms of one agent. `on_gone` hears who has left and will never be known again."""

    def __init__(
        self, connection: Connection, plans: Iterable[RoomPlan] = (), on_gone: Callable[[str], None] = lambda owner: None
    ) -> None:
        self._connection = connection
        self._rooms = {plan.jid: Room(plan) for plan in plans}
        self._on_gone = on_gone
        self._mail = RoomMail(self._rooms)
        self.address = self._mail.address
        """What may leave now of stanzas: those to rooms that the agent is not in yet wait, private ones find their seat."""
        self._agent = bare(connection.jid)
        self._is_closed = False
        self.access = Access(self._agent)
        self.kick_pause_s = KICK_PAUSE_S
        self.watch = RoomWatch(connection, self._rooms, self._lost)
        self._keep: Callable[[list[list[str | None]]], None] = lambda rooms: None
        self._kept: list[list[str | None]] = []

    @property
    def states(self) -> dict[str, RoomState]:
        """How it stands with each room."""
        return {jid: room.state for jid, room in self._rooms.items()}

    @property
    def may_be(self) -> bool:
        """Whether the agent may be in a room at all."""
        return bool(self._rooms) or self.access.follows_invitations

    @property
    def is_in_any(self) -> bool:
        """Whether the agent is in a room now."""
        return any(room.state is RoomState.JOINED for room in self._rooms.values())

    def nick_in(self, room: str) -> str:
        """What the agent is called in a room."""
        return self._rooms[room].nick

    # Coming and going

    def remember(self, rooms: list[list[str | None]], keep: Callable[[list[list[str | None]]], None]) -> None:
        """Takes up the rooms into which the agent was invited, and tells `keep` when there are others: JID and password each.

        Those that may not invite it any more are forgotten.
        """
        self._keep, self._kept = keep, rooms
        for jid, password in rooms:
            if jid is not None and jid not in self._rooms and self.access.admits_room(jid):
                self._rooms[jid] = self._invited_room(jid, password)
        self._tell()

    def _tell(self) -> None:
        stays = (RoomState.JOINING, RoomState.JOINED, RoomState.AWAY)
        invited = [room for room in self._rooms.values() if room.plan.is_invited and room.state in stays]
        now: list[list[str | None]] = [[room.jid, room.plan.password] for room in invited]
        if now != self._kept and not self._is_closed:
            self._kept = now
            self._keep(now)

    def _invited_room(self, jid: str, password: str | None) -> Room:
        return Room(RoomPlan(jid, local_part(self._agent), password, is_invited=True))

    def enter(self) -> None:
        """With a new session: joins every room that it has not lost for good."""
        self.watch.begin()
        held = self._connection.recall(ToRoom)
        for room in self._rooms.values():
            if room.state not in ENDED:
                self._join(room)
        self._connection.send(self.address([s.original for s in held if s.original is not None]))

    async def close(self) -> None:
        """Says goodbye to all of them."""
        self._is_closed = True
        for room in self._rooms.values():
            if room.state is RoomState.JOINED:
                self._say(leaving(room.jid, room.nick))
            self._stop_waiting(room)
            room.state = RoomState.LEFT
        tasks = (room.task for room in self._rooms.values() if room.task is not None)
        await asyncio.gather(*tasks, self.watch.end(), return_exceptions=True)

    def _join(self, room: Room) -> None:
        self._stop_waiting(room)
        self._forget_who_was_there(room)
        room.state, room.nicks_tried, room.nick = RoomState.JOINING, 1, room.plan.nick
        room.is_trusted = not room.plan.is_invited or self.access.trusts_room(room.jid)
        room.task = asyncio.create_task(self._ask_and_join(room))

    async def _ask_and_join(self, room: Room) -> None:
        await self._look_at(room)
        self._knock(room)

    async def _look_at(self, room: Room) -> None:
        """Whether the ids of its occupants are of its own making."""
        try:
            plugin = self._connection.client.plugin["xep_0030"]
            info = await plugin.get_info(room.jid, timeout=min(10.0, ANSWER_WITHIN_S))
            room.has_occupant_ids = OCCUPANT_ID_NAMESPACE in info["disco_info"]["features"]
        except (IqError, IqTimeout, XMPPError):
            room.has_occupant_ids = False

    def _knock(self, room: Room) -> None:
        self._set_timer(room, ANSWER_WITHIN_S, self._unanswered)
        self._say(joining(room.jid, room.nick, room.plan.password))

    def _unanswered(self, room: Room) -> None:
        self._turn(room, later(room.attempt), "the room does not answer")

    def _lost(self, room: Room, why: str) -> None:
        self._turn(room, later(room.attempt), why)

    def _turn(self, room: Room, then: Next, why: str) -> None:
        """What becomes of a place that the agent has not got, or has lost. One line in the log for each."""
        again = "it does not come again" if then.again_s is None else f"it tries again in {then.again_s:g} s"
        if room.state is RoomState.JOINED and asyncio.get_running_loop().time() - room.joined_at > _STEADY_S:
            room.attempt = 0
        level = logging.INFO if room.attempt and then.again_s is not None else logging.WARNING
        log.log(level, "%s: not in the room %s: %s (%s); %s", self._agent, room.jid, then.state, why, again)
        self._stop_waiting(room)
        self._forget_who_was_there(room)
        room.state = then.state
        room.attempt += 1
        if then.again_s is not None:
            self._set_timer(room, then.again_s, self._join)
        else:
            self._mail.give_up(room)
        self._tell()

    def _forget_who_was_there(self, room: Room) -> None:
        for seat in room.enter():
            self._on_gone(seat.owner)

    def _set_timer(self, room: Room, after_s: float, what: Callable[[Room], None]) -> None:
        def ring() -> None:
            room.timer = None
            if self._is_closed:
                return
            if self._connection.state == "online":
                what(room)
            else:
                room.state = RoomState.AWAY  # the next session joins

        self._stop_timer(room)
        room.timer = asyncio.get_running_loop().call_later(after_s, ring)

    def _stop_timer(self, room: Room) -> None:
        if room.timer is not None:
            room.timer.cancel()
            room.timer = None

    def _stop_waiting(self, room: Room) -> None:
        self._stop_timer(room)
        if room.task is not None and room.task is not asyncio.current_task():
            room.task.cancel()

    # What the room says

    def see(self, presence: Element) -> bool:
        """Takes a presence; whether it is of a room."""
        room = self._rooms.get(bare(presence.get("from", "")))
        if room is None:
            return False
        room.heard_at = asyncio.get_running_loop().time()
        seen = read_presence(presence)
        if seen is None or self._is_closed:
            return True
        is_own = seen.nick == room.nick or SELF in seen.statuses
        if seen.kind == "error":
            if room.state is RoomState.JOINING:
                self._refused(room, seen.condition)
        elif not is_own:
            gone = room.see(seen)
            if gone is not None:
                self._on_gone(gone.owner)
        elif seen.kind == "unavailable":
            self._left(room, seen)
        elif room.state is RoomState.JOINING:
            self._joined(room, seen)
        return True

    def _refused(self, room: Room, condition: str) -> None:
        if condition != "conflict":
            self._turn(room, after_refusal(condition, room.attempt), condition)
        elif room.nicks_tried >= MOST_NICKS:
            self._turn(room, Next(RoomState.NICK_TAKEN), f"{room.nick} and all before it")
        else:
            room.nicks_tried += 1
            room.nick = nick_number(room.plan.nick, room.nicks_tried)
            self._knock(room)

    def _joined(self, room: Room, seen: Seen) -> None:
        self._stop_timer(room)
        room.nick = seen.nick
        if CREATED in seen.statuses:
            room.task = asyncio.create_task(self._unlock(room))
        else:
            self._settled(room)

    async def _unlock(self, room: Room) -> None:
        iq = self._connection.client.make_iq_set(sub=unlocking(), ito=room.jid)
        try:
            await iq.send(timeout=ANSWER_WITHIN_S)
        except (IqError, IqTimeout) as error:
            log.warning("%s: the room %s, which is new, stays locked: %s", self._agent, room.jid, type(error).__name__)
        await self._look_at(room)  # before, there was nothing to look at
        if room.state is RoomState.JOINING:
            self._settled(room)

    def _settled(self, room: Room) -> None:
        room.state, room.joined_at = RoomState.JOINED, asyncio.get_running_loop().time()
        log.info("%s: in the room %s as %s", self._agent, room.jid, room.nick)
        self._tell()
        held, room.held = room.held, []
        self._connection.send(self.address(held))

    def _left(self, room: Room, seen: Seen) -> None:
        if room.state is not RoomState.JOINED:
            return
        if RENAMED in seen.statuses and seen.new_nick:
            room.nick = seen.new_nick
            return
        then = after_leaving(seen, was_kicked=room.was_kicked, kick_pause_s=self.kick_pause_s, attempt=room.attempt)
        room.was_kicked = room.was_kicked or then.state is RoomState.KICKED
        statuses = ", ".join(map(str, sorted(seen.statuses - {SELF})))
        self._turn(room, then, f"status {statuses}" if statuses else "it is not an occupant any more")

    # What is said there

    def concerns(self, message: Element) -> bool:
        """Whether a message is one of a room, or about one."""
        room = self._rooms.get(bare(message.get("from", ""))) if self._rooms else None
        if message.get("type") == "error":
            if room is not None and room.state is RoomState.JOINED and _is_not_in_it(message):
                self._lost(room, "the room says that it is not an occupant")
            return False
        if room is not None:
            room.heard_at = asyncio.get_running_loop().time()
            return True
        return read_invitation(message) is not None

    def read(self, message: Element) -> Incoming | Retraction | Reaction | None:
        """What a message of a room asks, or says about another; the sender of the latter is whose conversation it concerns."""
        invitation = read_invitation(message)
        if invitation is not None:
            is_of_room = message.find(f".//{MUC_INVITE}") is not None
            if is_of_room or self.access.admits(invitation.sender):
                self._invited(invitation.room, invitation.password)
            return None
        room = self._rooms[bare(message.get("from", ""))]
        if room.state is not RoomState.JOINED:
            return None
        if message.get("type") != "groupchat":
            return self._private(room, message)
        if message.find(SUBJECT) is not None and message.find(BODY) is None:
            room.becomes_current()
            return None
        if (reference := read_reference(message)) is not None:
            return self._refers(room, reference)
        said = read_utterance(message)
        question = room.question_in(said) if said is not None else None
        if said is None or question is None or not self._admits(room, said.nick):
            return None
        replaces = room.question_of(said.nick, said.replaces)
        room.asks(said)
        jid = room.jid_of(said.nick)
        return room_request(room.jid, said, question, jid, replied_to=room.own_id(said.replied_to), replaces=replaces)

    def _refers(self, room: Room, reference: Reference) -> Retraction | Reaction | None:
        """What somebody says about a message in a room: everybody about the agent's, and else only about their own."""
        said, nick = reference.said, reference.nick
        if room.is_history(reference.stamped_by) or nick == room.nick or not self._admits(room, nick):
            return None
        if isinstance(said, Reaction):
            return said._replace(sender=room.jid, stanza_id=room.own_id(said.stanza_id), nickname=nick) if nick else None
        question = room.question_of(nick, said.stanza_id) if nick else said.stanza_id
        return said._replace(sender=room.jid, stanza_id=question) if question else None

    def _private(self, room: Room, message: Element) -> Incoming | Retraction | Reaction | None:
        said = decode(message, in_room=True)
        nick = message.get("from", "").partition("/")[2]
        if not isinstance(said, Incoming | Retraction | Reaction) or nick == room.nick or not self._admits(room, nick):
            return None
        if isinstance(said, Incoming) and said.language != "person":
            return None
        seat = room.seat(nick)
        if seat is None:
            return None
        if isinstance(said, Incoming):
            return private_request(said, seat.owner, seat.address, room.jid_of(nick))
        return said._replace(sender=seat.owner)

    def _admits(self, room: Room, nick: str) -> bool:
        jid = room.jid_of(nick)
        return jid is None or (jid != self._agent and self.access.admits(jid))

    def _invited(self, jid: str, password: str | None) -> None:
        room = self._rooms.get(jid)
        if room is None:
            if "@" not in jid or not self.access.admits_room(jid):
                log.info("%s: does not follow an invitation into %s (access.rooms)", self._agent, jid)
                return
            if sum(known.plan.is_invited for known in self._rooms.values()) >= _INVITED:
                log.warning("%s: does not follow an invitation into %s: it is in %d rooms", self._agent, jid, _INVITED)
                return
            room = self._rooms[jid] = self._invited_room(jid, password)
        elif room.state in (RoomState.JOINING, RoomState.JOINED):
            return
        if self._connection.state == "online":
            self._join(room)
        self._tell()

    # What the agent says there

    def _say(self, stanza: str) -> None:
        self._connection.send([ToRoom.made_of(stanza)])


def _is_not_in_it(message: Any) -> bool:
    return any(child.tag.endswith("}not-acceptable") for error in message for child in error)
