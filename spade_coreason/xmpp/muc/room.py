"""One chat room as an agent sees it: its place there, who is in it, and what of what is said there is for it."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ...codec import STATUS_RENAMED, RoomMessage, RoomPresence, extract_question
from ...domain.jid import bare_jid, jid_domain
from .membership import RoomState

_MAX_OWN_IDS = 1000
_MAX_QUESTION_IDS = 1000

RoomAnswers = Literal["mention", "command", "all"]


@dataclass(frozen=True, slots=True)
class RoomConfig:
    """A room to join, and what to answer there; the configuration's keys of the same names say more."""

    jid: str
    nick: str
    password: str | None = field(default=None, repr=False)
    answers: RoomAnswers = "mention"
    agent_turns: int = 6
    is_invited: bool = False
    """Whether nobody has configured it."""


class Occupant(NamedTuple):
    """Somebody in a room. `jid` and `occupant_id` are what stands in their presence; a visit lasts as long as that."""

    nick: str
    jid: str | None
    occupant_id: str | None
    visit_id: str


class OccupantIdentity(NamedTuple):
    """Whose a private conversation is, and the address of it, which stays when the nickname goes to somebody else."""

    owner: str
    address: str
    is_ephemeral: bool
    """Whether nobody will know them again when they have left."""


class Room:
    """The state of one room; `Rooms` changes it."""

    def __init__(self, config: RoomConfig) -> None:
        self.config = config
        self.jid = config.jid
        self.nick = config.nick
        self.state = RoomState.JOINING
        self.tried_nick_count = 1
        self.failed_attempts = 0
        """How often in a row it was in vain; a stay that ends soon is no success."""
        self.joined_at = 0.0
        self.last_received_at = 0.0
        """When something came from the room last."""
        self.was_kicked = False
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None
        self.has_occupant_ids = False
        """Whether the room makes the ids itself (XEP-0421); else anybody could wear another's."""
        self.is_trusted = False
        """Whether the room is believed about who its occupants are."""
        self.occupants: dict[str, Occupant] = {}
        self.queued_stanzas: list[str] = []
        self._nick_by_address: dict[str, str] = {}
        self._is_current = False
        self._own_ids: dict[str, str] = {}
        self._question_ids: dict[tuple[str, str], str] = {}
        self._consecutive_agent_turns = 0

    def reset_occupants(self) -> list[OccupantIdentity]:
        """Forgets who was there: the room is about to say who is. The seats that are free for ever by it."""
        seats = [self._identify(self.occupants[nick]) for nick in self._nick_by_address.values() if nick in self.occupants]
        self.occupants.clear()
        self._nick_by_address.clear()
        self._is_current = False
        return [seat for seat in seats if seat.is_ephemeral]

    # Who is there

    def handle_presence(self, presence: RoomPresence) -> OccupantIdentity | None:
        """Takes the presence of another; the seat that is free for ever by it, if there is one."""
        before = self.occupants.get(presence.nick)
        if presence.kind == "available":
            visit = before.visit_id if before is not None else secrets.token_hex(16)
            self.occupants[presence.nick] = Occupant(presence.nick, presence.jid, presence.occupant_id, visit)
            return None
        if before is None:
            return None
        del self.occupants[presence.nick]
        if STATUS_RENAMED in presence.statuses and presence.new_nick:
            self.occupants[presence.new_nick] = before._replace(nick=presence.new_nick)
            for address, nick in self._nick_by_address.items():
                if nick == presence.nick:
                    self._nick_by_address[address] = presence.new_nick
            return None
        gone = [address for address, nick in self._nick_by_address.items() if nick == presence.nick]
        for address in gone:
            del self._nick_by_address[address]
        seat = self._identify(before)
        return seat if gone and seat.is_ephemeral else None

    def jid_of(self, nick: str) -> str | None:
        """The bare JID of an occupant, where the room shows it and is believed."""
        occupant = self.occupants.get(nick)
        return bare_jid(occupant.jid) if occupant is not None and occupant.jid and self.is_trusted else None

    def register_private_sender(self, nick: str) -> OccupantIdentity | None:
        """Whose a private message is that `nick` sends now; an answer finds them as long as they stay."""
        occupant = self.occupants.get(nick)
        if occupant is None:
            return None
        seat = self._identify(occupant)
        self._nick_by_address[seat.address] = nick
        return seat

    def find_nick(self, address: str) -> str | None:
        """Under which nickname whoever had a seat is to be found, also after both were away."""
        nick = self._nick_by_address.get(address)
        if nick is None and not is_ephemeral_owner(address):
            nick = next((o.nick for o in self.occupants.values() if self._identify(o).address == address), None)
        return nick

    def _identify(self, occupant: Occupant) -> OccupantIdentity:
        if (jid := self.jid_of(occupant.nick)) is None and occupant.jid and self.is_trusted:
            jid = bare_jid(occupant.jid)  # who has just left
        if jid is not None:
            return OccupantIdentity(jid, f"{self.jid}/jid-{_digest(jid)}", False)
        if occupant.occupant_id and self.has_occupant_ids:
            address = f"{self.jid}/occupant-{_digest(occupant.occupant_id)}"
            return OccupantIdentity(address, address, False)
        address = f"{self.jid}/visit-{occupant.visit_id}"
        return OccupantIdentity(address, address, True)

    # What is said

    def mark_current(self) -> None:
        """The subject has come, and with it the end of the history."""
        self._is_current = True

    def is_history(self, stamped_by: str | None) -> bool:
        """Whether it was said before the agent came. A stamp of somebody else is the delay of a resumed session."""
        if stamped_by is None:
            return False
        return not self._is_current or stamped_by in ("", self.jid, jid_domain(self.jid))

    def find_own_id(self, message_id: str) -> str:
        """The agent's own id of what it said here, by that or by the room's; empty where nothing is known of it."""
        return self._own_ids.get(message_id, "")

    def record_question(self, message: RoomMessage) -> None:
        """Keeps whose question it is: only they may take it back, or correct it."""
        occupant = self.occupants.get(message.nick)
        if occupant is None:
            return
        for ident in filter(None, (message.stanza_id, message.room_id)):
            self._question_ids[self._identify(occupant).address, ident] = message.room_id or message.stanza_id
        while len(self._question_ids) > _MAX_QUESTION_IDS:
            del self._question_ids[next(iter(self._question_ids))]

    def find_question_id(self, nick: str, message_id: str) -> str | None:
        """How a question is called that whoever is `nick` now has asked, by its own id or by the room's."""
        occupant = self.occupants.get(nick)
        return self._question_ids.get((self._identify(occupant).address, message_id)) if occupant is not None else None

    def extract_question(self, message: RoomMessage) -> str | None:
        """What an utterance asks of the agent, None for nothing. Counts who speaks."""
        if message.nick == self.nick:
            for ident in filter(None, (message.stanza_id, message.room_id)):
                self._own_ids[ident] = message.stanza_id
            while len(self._own_ids) > _MAX_OWN_IDS:
                del self._own_ids[next(iter(self._own_ids))]
            return None
        if self.is_history(message.delay_source):
            return None
        if not message.is_by_agent:
            self._consecutive_agent_turns = 0
        question = extract_question(self.nick, message.text, self.occupants)
        if question is None and not message.is_by_agent:
            is_reply = message.reply_to_id in self._own_ids or message.reply_to_author == f"{self.jid}/{self.nick}"
            is_command = self.config.answers == "command" and message.text.lstrip().startswith("/")
            question = message.text.strip() if is_reply or is_command or self.config.answers == "all" else None
        if not question:
            return None
        if message.is_by_agent:
            if self._consecutive_agent_turns >= self.config.agent_turns:
                return None
            self._consecutive_agent_turns += 1
        return question


def is_ephemeral_owner(owner: str) -> bool:
    """Whether an owner is an occupant who is known as long as they stay, and no longer."""
    return owner.partition("/")[2].startswith("visit-")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
