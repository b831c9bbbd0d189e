"""The stanzas to chat rooms: they wait until the agent may speak, and count as sent when the room has passed them on."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ...concurrency import RateLimiter
from ...domain.jid import bare_jid
from ...runtime import Metrics, OutboundMessage
from ..codec import escape_attribute
from .membership import FINAL_STATES, RoomState
from .room import Room

log = logging.getLogger(__name__)

_MAX_QUEUED = 1000
_MAX_TRACKED = 1000
_ID = re.compile(r"<message\b[^>]* id='([^'>]+)'")


class RoomStanza(OutboundMessage):
    """A stanza to a room. `original` is the message that it was built from, if any.

    In a new session the original is routed again, after the agent has rejoined the room. The acknowledgement of the stanza
    acknowledges the original too, unless `is_tracked`: then only the room's copy of the message does.
    """

    __slots__ = ("original",)

    def __init__(
        self, recipient: str, content: str, original: OutboundMessage | None = None, *, is_tracked: bool = False
    ) -> None:
        super().__init__(recipient, content)
        self.original = original
        if original is not None:
            self.is_last = original.is_last
            self.on_acknowledged = None if is_tracked else original.acknowledge


class RoomSendQueue:
    """The outgoing stanzas to `rooms`.

    A room sends each message to everybody back to its author (XEP-0045, 7.4). Until then it may still be refused, and the
    request that it answers stays open.
    """

    def __init__(self, agent: str, rooms: Mapping[str, Room], metrics: Metrics) -> None:
        self._agent = agent
        self._rooms = rooms
        self._metrics = metrics
        self._unreflected: defaultdict[str, dict[str, RoomStanza]] = defaultdict(dict)
        self._private: dict[tuple[str, str], OutboundMessage] = {}
        self._attempts: Counter[str] = Counter()
        self._uncounted: set[str] = set()
        """The ids of answers that the metrics do not count, because the room has not taken them."""
        self._reflected = asyncio.Event()
        self._warning_limiter = RateLimiter()
        self.refused: Counter[str] = Counter()
        """The number of messages that rooms have refused for good, by the reason."""

    def route(self, stanzas: Sequence[OutboundMessage]) -> Sequence[OutboundMessage]:
        """Return the stanzas that may leave now, and queue the others. Stanzas to other addresses do not change."""
        if not self._rooms:
            return stanzas
        return [ready for stanza in stanzas if (ready := self._route_stanza(stanza)) is not None]

    def release(self, room: Room) -> Sequence[OutboundMessage]:
        """Return the queued stanzas that may leave now."""
        queued, room.queued_stanzas, room.returned_count = room.queued_stanzas, [], 0
        return self.route(queued)

    def discard_all(self, room: Room, reason: str) -> None:
        """Drop the stanzas that wait for a room which the agent will not join again, or that it has not passed on."""
        queued, room.queued_stanzas, room.returned_count = room.queued_stanzas, [], 0
        unreflected = self._unreflected.pop(room.jid, {}).values()
        self.discard(room, [*(stanza.original for stanza in unreflected if stanza.original is not None), *queued], reason)

    def discard(self, room: Room, originals: Iterable[OutboundMessage], reason: str) -> None:
        """Close the requests of messages that cannot be delivered. They do not count as answers, and the log says why."""
        originals = list(originals)
        if not originals:
            return
        self.refused[reason] += len(originals)
        for original in originals:
            if _ends_answer(original):
                self._uncount(original)
                self._metrics.record_failure(f"an answer was not delivered in the room {room.jid}: {reason}")
            original.refuse(reason)
            self._close(original)  # it must not be sent again
        if self._warning_limiter.allow(room.jid):
            text = "%s: not delivered in the room %s: %d message(s): %s; `spade-coreason status` counts further ones"
            log.warning(text, self._agent, room.jid, len(originals), reason)

    # What the room does with a stanza

    def confirm(self, room: Room, stanza_id: str, origin_id: str) -> None:
        """Record that the room has passed a message on. Some rooms give it another id, and leave its origin-id (XEP-0359)."""
        unreflected = self._unreflected[room.jid]
        if stanza_id not in unreflected:
            stanza_id = origin_id
        stanza = unreflected.pop(stanza_id, None)
        if stanza is not None and stanza.original is not None:
            self._count(stanza.original)
            self._reflected.set()

    def take_refused(self, room: Room, stanza_id: str) -> tuple[OutboundMessage, int] | None:
        """Return a message to everybody that the room has refused, and the number of its attempts. None if it is unknown."""
        stanza = self._unreflected[room.jid].pop(stanza_id, None)
        if stanza is None or stanza.original is None:
            return None
        self._attempts[stanza_id] += 1
        return stanza.original, self._attempts[stanza_id]

    def take_refused_private(self, occupant: str, stanza_id: str) -> OutboundMessage | None:
        """Return a private message that was refused. None if it is unknown."""
        return self._private.pop((occupant, stanza_id), None)

    def put_back(self, room: Room, original: OutboundMessage) -> None:
        """Queue a refused message again, before all that were not sent yet."""
        self._uncount(original)
        room.queued_stanzas.insert(room.returned_count, original)
        room.returned_count += 1
        self._limit_queue(room)

    async def wait_until_reflected(self, timeout_s: float) -> None:
        """Wait until the rooms have passed on all messages, at most `timeout_s` seconds. What the server has counts then."""
        try:
            async with asyncio.timeout(timeout_s):
                while any(self._unreflected.values()):
                    self._reflected.clear()
                    await self._reflected.wait()
        except TimeoutError:
            self.start_session()

    def start_session(self) -> None:
        """Forget the messages of the session before. Those that the server had are not sent again."""
        for stanzas in self._unreflected.values():
            for stanza in stanzas.values():
                if stanza.is_acknowledged and stanza.original is not None:
                    self._count(stanza.original)
        self._unreflected.clear()

    def _route_stanza(self, stanza: OutboundMessage) -> OutboundMessage | None:
        to = stanza.recipient
        room = self._rooms.get(bare_jid(to))
        if room is None:
            return stanza
        is_public = "/" not in to
        if not room.is_present or (is_public and (room.state is RoomState.VOICELESS or room.pause.handle is not None)):
            if room.state is RoomState.VOICELESS:
                self._uncount(stanza)
            room.queued_stanzas.append(stanza)
            self._limit_queue(room)
            return None
        if is_public:
            return self._track(room, stanza)
        nick = room.find_nick(to)
        if nick is None:
            log.info("the person has left the room %s; the private answer is not sent", room.jid)
            stanza.acknowledge()
            return None
        occupant = f"{room.jid}/{nick}"
        if stanza_id := _id_of(stanza):
            self._private[occupant, stanza_id] = stanza
            if len(self._private) > _MAX_TRACKED:
                del self._private[next(iter(self._private))]
        return RoomStanza(occupant, readdress(stanza.content, to, occupant), stanza)

    def _track(self, room: Room, original: OutboundMessage) -> RoomStanza:
        """Return the stanza of a message to everybody, which waits for the room's copy."""
        stanza_id = _id_of(original)
        stanza = RoomStanza(original.recipient, original.content, original, is_tracked=bool(stanza_id))
        if stanza_id:
            unreflected = self._unreflected[room.jid]
            unreflected[stanza_id] = stanza
            if len(unreflected) > _MAX_TRACKED and (oldest := unreflected.pop(next(iter(unreflected))).original) is not None:
                self._count(oldest)
        return stanza

    def _uncount(self, original: OutboundMessage) -> None:
        """Take an answer out of the count of those that were sent, until the room has it."""
        stanza_id = _id_of(original)
        if _ends_answer(original) and stanza_id not in self._uncounted:
            self._uncounted.add(stanza_id)
            self._metrics.record_undelivered(1)

    def _count(self, original: OutboundMessage) -> None:
        """Close the request of a message that the room has, or whose copy cannot be recognised any more."""
        if _id_of(original) in self._uncounted:
            self._metrics.record_undelivered(-1)
        self._close(original)

    def _close(self, original: OutboundMessage) -> None:
        self._uncounted.discard(_id_of(original))
        self._attempts.pop(_id_of(original), None)
        original.acknowledge()

    def _limit_queue(self, room: Room) -> None:
        if room.state in FINAL_STATES and room.timer.handle is None:
            self.discard_all(room, str(room.state))
        elif surplus := room.queued_stanzas[:-_MAX_QUEUED]:
            del room.queued_stanzas[:-_MAX_QUEUED]
            room.returned_count = max(room.returned_count - len(surplus), 0)
            self.discard(room, surplus, f"more than {_MAX_QUEUED:,} messages waited")


def _ends_answer(original: OutboundMessage) -> bool:
    return original.is_last or original.on_acknowledged is not None


def _id_of(stanza: OutboundMessage) -> str:
    found = _ID.match(stanza.content)
    return found[1] if found is not None else ""


def readdress(content: str, recipient: str, new_recipient: str) -> str:
    """Return the text of a `<message/>` to `recipient` as one to `new_recipient`."""
    opening = f"<message to='{escape_attribute(recipient)}'"
    return f"<message to='{escape_attribute(new_recipient)}'{content.removeprefix(opening)}"
