"""How much may wait for an agent, how far a request may have come, and who takes one back."""

from __future__ import annotations

import asyncio
from datetime import datetime

from ..concurrency import AGAIN_S
from ..contracts import ErrorCode
from ..domain import conversation
from ..domain.conversation import RUN, Received, Rules
from ..domain.messages import Incoming, Refused, owner_of
from ..domain.value import replace
from ..memory import Memory
from ..storage import Inbox
from .mailbox import Lanes, Waiting
from .threads import Places


def decide(memory: Memory, incoming: Incoming, now: datetime, rules: Rules) -> Received:
    """What a request does to its conversation. Echoes of our own last answer are counted in `memory`, but a program's."""
    received = conversation.receive(memory.row.life, now, rules)
    if incoming.language == "program":
        return received
    text = str(incoming.payload.get("query", ""))
    is_echo = bool(memory.last_answer) and memory.last_answer in text and received.ended is None
    memory.echoes = memory.echoes + 1 if is_echo else 0
    if memory.echoes >= conversation.ECHOES_UNTIL_PAUSE and received.verdict is RUN:
        uncounted = replace(received.life, interaction_count=received.life.interaction_count - 1)  # it gets no turn
        return conversation.pause(uncounted, now, rules)
    return received


def notice(memory: Memory, incoming: Incoming, now: datetime, rules: Rules, *, has_commands: bool) -> Refused:
    """Why a conversation pauses, and how to go on: a person hears it once, a program, which waits, each time."""
    life, most = memory.row.life, rules.max_interactions
    quiet_until = life.quiet_until
    rest_s = rules.cooldown.total_seconds() if quiet_until is None else (quiet_until - now).total_seconds()
    text = (
        f"That is all for now: {'1 message is' if most == 1 else f'{most} messages are'} the limit of a conversation."
        if most and life.interaction_count >= most
        else "I pause here: this conversation goes round in circles."
    )
    text += f" Write again in {_duration(rest_s)}, or begin another thread"
    text += " (or say /new)." if has_commands and incoming.may_command else "."
    return Refused(text, ErrorCode.TOO_MANY_REQUESTS, rest_s)


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


MOST_HOPS = 16

"""Through so many agents a request may go. Each asks in a conversation of its own, so nothing else would end a circle."""

_QUEUES = 10  # of full length; more may not wait of one person, on all threads together

_LOOK_AGAIN_S = 1.0


class WaitingRoom:
    """For one agent; `most` requests of one conversation may wait."""

    def __init__(self, lanes: Lanes, places: Places, inbox: Inbox, most: int) -> None:
        self._lanes = lanes
        self._places = places
        self._inbox = inbox
        self._most = most

    def refusal(self, incoming: Incoming, sender: str) -> Refused | None:
        """What the sender of a request hears that is not kept; None for one that is."""
        if self.is_full(sender, incoming.thread):
            text = f"{self._most} messages of this conversation wait already; until some are answered no more are kept."
            if not self._is_full_lane(sender, incoming.thread):
                text = f"{self._most * _QUEUES} messages of yours wait already; until some are answered no more are kept."
            return Refused(text, ErrorCode.TOO_MANY_REQUESTS, AGAIN_S)
        if incoming.hops > MOST_HOPS:
            text = f"This was asked through {incoming.hops} agents one after the other: they seem to ask in a circle."
            return Refused(text, ErrorCode.TOO_MANY_REQUESTS)
        return None

    async def has_room(self, incoming: Incoming) -> None:
        """Waits until a request is not refused because too many wait."""
        sender = owner_of(incoming)
        while self.is_full(sender, incoming.thread):
            workers = [lane.worker for lane in self._lanes.of(sender) if lane.worker is not None]
            if workers:
                await asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(_LOOK_AGAIN_S)  # a pause keeps them back, and tells nobody here when it ends

    def take_back(self, sender: str, message_id: str) -> bool:
        """Takes a request of a sender out, or stops its answer; whether there was one."""
        for lane in self._lanes.of(sender):
            if lane.current is not None and lane.current.is_named(message_id):
                return lane.stop()
            for waiting in lane.queue:
                if isinstance(waiting, Waiting) and waiting.is_named(message_id):
                    lane.remove(waiting)
                    self._inbox.close(waiting.row)
                    return True
        if (unplaced := self._places.take_back(sender, message_id)) is not None:
            self._inbox.close(unplaced.row)
            return True
        return False

    def is_full(self, sender: str, thread: str | None) -> bool:
        """Whether no more of somebody (a bare JID) may wait on a thread."""
        waiting = self._lanes.waiting(sender) + self._places.waiting(sender)
        return waiting >= self._most and (waiting >= self._most * _QUEUES or self._is_full_lane(sender, thread))

    def _is_full_lane(self, sender: str, thread: str | None) -> bool:
        lane = self._lanes.get(sender, thread)
        return lane is not None and len(lane.queue) >= self._most
