"""A chat room as an agent sees it: its membership, the occupants, and the messages that are meant for it."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from typing import NamedTuple

from ...concurrency import Timer
from ...domain.jid import bare_jid, jid_domain
from ...domain.rooms import RoomConfig
from ...runtime import OutboundMessage
from ..codec import STATUS_RENAMED, RoomMessage, RoomPresence, extract_question
from .membership import PRESENT_STATES, RoomState

_MAX_OWN_IDS = 1000
_MAX_ROOM_IDS = 1000


class Occupant(NamedTuple):
    """An occupant of a room. `jid` and `occupant_id` come from the presence; a visit lasts as long as the presence."""

    nick: str
    jid: str | None
    occupant_id: str | None
    visit_id: str


class OccupantIdentity(NamedTuple):
    """The owner of a private conversation, and its address, which does not change if another occupant takes the nickname."""

    owner: str
    address: str
    is_ephemeral: bool
    """True if the occupant cannot be recognised after leaving."""


class Room:
    """The state of one room, for the agent with the bare JID `agent`. Only `Rooms` changes it."""

    def __init__(self, config: RoomConfig, agent: str = "") -> None:
        self.config = config
        self._agent = agent
        self.jid = config.jid
        self.nick = config.nick
        self.state = RoomState.JOINING
        self.tried_nick_count = 1
        self.failed_attempts = 0
        """The number of failures in a row. A stay that ends soon counts as a failure too."""
        self.joined_at = 0.0
        self.last_received_at = 0.0
        """The time of the last stanza from the room, by the clock of the event loop."""
        self.was_kicked = False
        self.role = ""
        """The agent's own role, as in `RoomPresence`."""
        self.is_moderated = False
        self.is_silenced = False
        """True if the room has refused a message because of the role that the agent still has."""
        self.has_warned_of_voice = False
        self.pause = Timer()
        """The timer after which messages to everybody may be sent again."""
        self.timer = Timer()
        self.task: asyncio.Task[None] | None = None
        self.has_occupant_ids = False
        """True if the room sets the ids itself (XEP-0421). Otherwise any occupant could use another's id."""
        self.is_trusted = False
        """True if the room is trusted about the JIDs of its occupants."""
        self.occupants: dict[str, Occupant] = {}
        self.queued_stanzas: list[OutboundMessage] = []
        self.returned_count = 0
        """The number of queued stanzas that were sent before, and that the room has refused."""
        self._nick_by_address: dict[str, str] = {}
        self._is_current = False
        self._own_ids: dict[str, str] = {}
        self._room_ids: dict[tuple[str, str], str] = {}
        self._consecutive_agent_turns = 0

    @property
    def is_present(self) -> bool:
        """True if the agent is an occupant."""
        return self.state in PRESENT_STATES

    @property
    def has_voice(self) -> bool:
        """True if the agent may speak to everybody, as far as it knows."""
        return not self.is_silenced and not (self.is_moderated and self.role == "visitor")

    def reset_occupants(self) -> list[OccupantIdentity]:
        """Clear the occupants, because the room is about to send the current ones.

        Return the ephemeral identities that had private conversations: they will never be recognised again.
        """
        identities = [self._identify(self.occupants[nick]) for nick in self._nick_by_address.values() if nick in self.occupants]
        self.occupants.clear()
        self._nick_by_address.clear()
        self._is_current = False
        return [identity for identity in identities if identity.is_ephemeral]

    # The occupants

    def handle_presence(self, presence: RoomPresence) -> OccupantIdentity | None:
        """Update the occupants after another occupant's presence.

        Return the occupant's identity if it is ephemeral, had a private conversation, and will never be recognised again.
        """
        previous = self.occupants.get(presence.nick)
        if presence.kind == "available":
            visit_id = previous.visit_id if previous is not None else secrets.token_hex(16)
            self.occupants[presence.nick] = Occupant(presence.nick, presence.jid, presence.occupant_id, visit_id)
            return None
        if previous is None:
            return None
        del self.occupants[presence.nick]
        if STATUS_RENAMED in presence.statuses and presence.new_nick:
            self.occupants[presence.new_nick] = previous._replace(nick=presence.new_nick)
            for address, nick in self._nick_by_address.items():
                if nick == presence.nick:
                    self._nick_by_address[address] = presence.new_nick
            return None
        addresses = [address for address, nick in self._nick_by_address.items() if nick == presence.nick]
        for address in addresses:
            del self._nick_by_address[address]
        identity = self._identify(previous)
        return identity if addresses and identity.is_ephemeral else None

    def jid_of(self, nick: str) -> str | None:
        """Return the bare JID of an occupant if the room shows it and is trusted."""
        occupant = self.occupants.get(nick)
        return bare_jid(occupant.jid) if occupant is not None and occupant.jid and self.is_trusted else None

    def register_private_sender(self, nick: str) -> OccupantIdentity | None:
        """Return the identity of the sender of a private message, and record it, so that a reply reaches the same occupant."""
        occupant = self.occupants.get(nick)
        if occupant is None:
            return None
        identity = self._identify(occupant)
        self._nick_by_address[identity.address] = nick
        return identity

    def find_nick(self, address: str) -> str | None:
        """Return the current nickname of the occupant with a conversation address, also after both have rejoined."""
        nick = self._nick_by_address.get(address)
        if nick is None and not is_ephemeral_owner(address):
            nick = next((o.nick for o in self.occupants.values() if self._identify(o).address == address), None)
        return nick

    def _identify(self, occupant: Occupant) -> OccupantIdentity:
        if (jid := self.jid_of(occupant.nick)) is None and occupant.jid and self.is_trusted:
            jid = bare_jid(occupant.jid)  # the occupant has just left
        if jid is not None:
            return OccupantIdentity(jid, f"{self.jid}/jid-{_digest(jid)}", False)
        if occupant.occupant_id and self.has_occupant_ids:
            address = f"{self.jid}/occupant-{_digest(occupant.occupant_id)}"
            return OccupantIdentity(address, address, False)
        address = f"{self.jid}/visit-{occupant.visit_id}"
        return OccupantIdentity(address, address, True)

    # The messages

    def mark_current(self) -> None:
        """Record the end of the history, which the room's subject marks."""
        self._is_current = True

    def is_history(self, delay_source: str | None) -> bool:
        """Return True if a message was sent before the agent joined.

        `delay_source` is the sender of its delay stamp. Other senders' stamps come from the delay of a resumed session.
        """
        if delay_source is None:
            return False
        return not self._is_current or delay_source in ("", self.jid, jid_domain(self.jid))

    def find_own_id(self, message_id: str) -> str:
        """Return the agent's own id of a message that it sent here, by that id or by the room's; empty if it is unknown."""
        return self._own_ids.get(message_id, "")

    def author_of(self, nick: str) -> str:
        """Return the address of an occupant: only they correct or retract their messages. Empty if they are not known."""
        occupant = self.occupants.get(nick)
        return self._identify(occupant).address if occupant is not None else ""

    def record_ids(self, message: RoomMessage) -> None:
        """Record the id that the room gave a message: a correction names the sender's id, a retraction the room's."""
        if message.stanza_id and message.room_id:
            self._room_ids[message.nick, message.stanza_id] = message.room_id
            if len(self._room_ids) > _MAX_ROOM_IDS:
                del self._room_ids[next(iter(self._room_ids))]

    def find_replaced_ids(self, message: RoomMessage) -> tuple[str, ...]:
        """Return the ids of the message that a correction replaces: its sender's, and the room's if that is known."""
        return tuple(filter(None, (message.replaced_id, self._room_ids.get((message.nick, message.replaced_id)))))

    def extract_question(self, message: RoomMessage) -> str | None:
        """Return the question that a message asks the agent, or None. Count consecutive questions from other agents."""
        if message.nick == self.nick:
            for message_id in filter(None, (message.stanza_id, message.room_id)):
                self._own_ids[message_id] = message.stanza_id
            while len(self._own_ids) > _MAX_OWN_IDS:
                del self._own_ids[next(iter(self._own_ids))]
            return None
        if self.is_history(message.delay_source):
            return None
        if not message.is_by_agent:
            self._consecutive_agent_turns = 0
        question = extract_question(self.nick, message.text, self.occupants, message.mentions, room=self.jid, agent=self._agent)
        if question is None and not message.is_by_agent:
            is_reply = message.reply_to_id in self._own_ids or message.reply_to_author == f"{self.jid}/{self.nick}"
            is_command = self.config.answers == "command" and message.text.lstrip().startswith(self.config.command_prefixes)
            question = message.text.strip() if is_reply or is_command or self.config.answers == "all" else None
        if question == "" and message.files is not None:
            question = message.files.text
        if not question:
            return None
        if message.is_by_agent:
            if self._consecutive_agent_turns >= self.config.agent_turns:
                return None
            self._consecutive_agent_turns += 1
        return question


def is_ephemeral_owner(owner: str) -> bool:
    """Return True if an owner is an occupant who cannot be recognised after leaving."""
    return owner.partition("/")[2].startswith("visit-")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
