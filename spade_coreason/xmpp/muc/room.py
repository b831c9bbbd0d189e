"""One chat room as an agent sees it: its place there, who is in it, and what of what is said there is for it."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ...codec import RENAMED, Seen, Utterance, question_to
from ...domain.jid import bare, domain
from .membership import RoomState

_OWN_MESSAGES = 1000
_QUESTIONS = 1000

Answers = Literal["mention", "command", "all"]


@dataclass(frozen=True, slots=True)
class RoomPlan:
    """A room to join, and what to answer there; the configuration's keys of the same names say more."""

    jid: str
    nick: str
    password: str | None = field(default=None, repr=False)
    answers: Answers = "mention"
    agent_turns: int = 6
    is_invited: bool = False
    """Whether nobody has configured it."""


class Occupant(NamedTuple):
    """Somebody in a room. `jid` and `occupant_id` are what stands in their presence; a visit lasts as long as that."""

    nick: str
    jid: str | None
    occupant_id: str | None
    visit: str


class Seat(NamedTuple):
    """Whose a private conversation is, and the address of it, which stays when the nickname goes to somebody else."""

    owner: str
    address: str
    is_visit: bool
    """Whether nobody will know them again when they have left."""


class Room:
    """The state of one room; `Rooms` changes it."""

    def __init__(self, plan: RoomPlan) -> None:
        self.plan = plan
        self.jid = plan.jid
        self.nick = plan.nick
        self.state = RoomState.JOINING
        self.nicks_tried = 1
        self.attempt = 0
        """How often in a row it was in vain; a stay that ends soon is no success."""
        self.joined_at = 0.0
        self.heard_at = 0.0
        """When something came from the room last."""
        self.was_kicked = False
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None
        self.has_occupant_ids = False
        """Whether the room makes the ids itself (XEP-0421); else anybody could wear another's."""
        self.is_trusted = False
        """Whether the room is believed about who its occupants are."""
        self.occupants: dict[str, Occupant] = {}
        self.held: list[str] = []
        self._speakers: dict[str, str] = {}
        self._is_current = False
        self._own: dict[str, str] = {}
        self._asked: dict[tuple[str, str], str] = {}
        self._agents_in_a_row = 0

    def enter(self) -> list[Seat]:
        """Forgets who was there: the room is about to say who is. The seats that are free for ever by it."""
        seats = [self._seat(self.occupants[nick]) for nick in self._speakers.values() if nick in self.occupants]
        self.occupants.clear()
        self._speakers.clear()
        self._is_current = False
        return [seat for seat in seats if seat.is_visit]

    # Who is there

    def see(self, seen: Seen) -> Seat | None:
        """Takes the presence of another; the seat that is free for ever by it, if there is one."""
        before = self.occupants.get(seen.nick)
        if seen.kind == "available":
            visit = before.visit if before is not None else secrets.token_hex(16)
            self.occupants[seen.nick] = Occupant(seen.nick, seen.jid, seen.occupant_id, visit)
            return None
        if before is None:
            return None
        del self.occupants[seen.nick]
        if RENAMED in seen.statuses and seen.new_nick:
            self.occupants[seen.new_nick] = before._replace(nick=seen.new_nick)
            for address, nick in self._speakers.items():
                if nick == seen.nick:
                    self._speakers[address] = seen.new_nick
            return None
        gone = [address for address, nick in self._speakers.items() if nick == seen.nick]
        for address in gone:
            del self._speakers[address]
        seat = self._seat(before)
        return seat if gone and seat.is_visit else None

    def jid_of(self, nick: str) -> str | None:
        """The bare JID of an occupant, where the room shows it and is believed."""
        occupant = self.occupants.get(nick)
        return bare(occupant.jid) if occupant is not None and occupant.jid and self.is_trusted else None

    def seat(self, nick: str) -> Seat | None:
        """Whose a private message is that `nick` sends now; an answer finds them as long as they stay."""
        occupant = self.occupants.get(nick)
        if occupant is None:
            return None
        seat = self._seat(occupant)
        self._speakers[seat.address] = nick
        return seat

    def nick_at(self, address: str) -> str | None:
        """Under which nickname whoever had a seat is to be found, also after both were away."""
        nick = self._speakers.get(address)
        if nick is None and not is_visit(address):
            nick = next((o.nick for o in self.occupants.values() if self._seat(o).address == address), None)
        return nick

    def _seat(self, occupant: Occupant) -> Seat:
        if (jid := self.jid_of(occupant.nick)) is None and occupant.jid and self.is_trusted:
            jid = bare(occupant.jid)  # who has just left
        if jid is not None:
            return Seat(jid, f"{self.jid}/jid-{_digest(jid)}", False)
        if occupant.occupant_id and self.has_occupant_ids:
            address = f"{self.jid}/occupant-{_digest(occupant.occupant_id)}"
            return Seat(address, address, False)
        address = f"{self.jid}/visit-{occupant.visit}"
        return Seat(address, address, True)

    # What is said

    def becomes_current(self) -> None:
        """The subject has come, and with it the end of the history."""
        self._is_current = True

    def is_history(self, stamped_by: str | None) -> bool:
        """Whether it was said before the agent came. A stamp of somebody else is the delay of a resumed session."""
        if stamped_by is None:
            return False
        return not self._is_current or stamped_by in ("", self.jid, domain(self.jid))

    def own_id(self, ident: str) -> str:
        """The agent's own id of what it said here, by that or by the room's; empty where nothing is known of it."""
        return self._own.get(ident, "")

    def asks(self, said: Utterance) -> None:
        """Keeps whose question it is: only they may take it back, or correct it."""
        occupant = self.occupants.get(said.nick)
        if occupant is None:
            return
        for ident in filter(None, (said.stanza_id, said.room_id)):
            self._asked[self._seat(occupant).address, ident] = said.room_id or said.stanza_id
        while len(self._asked) > _QUESTIONS:
            del self._asked[next(iter(self._asked))]

    def question_of(self, nick: str, ident: str) -> str | None:
        """How a question is called that whoever is `nick` now has asked, by its own id or by the room's."""
        occupant = self.occupants.get(nick)
        return self._asked.get((self._seat(occupant).address, ident)) if occupant is not None else None

    def question_in(self, said: Utterance) -> str | None:
        """What an utterance asks of the agent, None for nothing. Counts who speaks."""
        if said.nick == self.nick:
            for ident in filter(None, (said.stanza_id, said.room_id)):
                self._own[ident] = said.stanza_id
            while len(self._own) > _OWN_MESSAGES:
                del self._own[next(iter(self._own))]
            return None
        if self.is_history(said.stamped_by):
            return None
        if not said.is_by_agent:
            self._agents_in_a_row = 0
        question = question_to(self.nick, said.text, self.occupants)
        if question is None and not said.is_by_agent:
            is_reply = said.replied_to in self._own or said.replied_author == f"{self.jid}/{self.nick}"
            is_command = self.plan.answers == "command" and said.text.lstrip().startswith("/")
            question = said.text.strip() if is_reply or is_command or self.plan.answers == "all" else None
        if not question:
            return None
        if said.is_by_agent:
            if self._agents_in_a_row >= self.plan.agent_turns:
                return None
            self._agents_in_a_row += 1
        return question


def is_visit(owner: str) -> bool:
    """Whether an owner is an occupant who is known as long as they stay, and no longer."""
    return owner.partition("/")[2].startswith("visit-")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
