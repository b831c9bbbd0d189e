"""Whether a request gets a turn, and what its sender hears if not: pure decisions."""

from __future__ import annotations

from datetime import datetime

from . import conversation
from .codec import Incoming, Refused
from .contracts import ErrorCode
from .conversation import RUN, Received, Rules
from .lane import Memory
from .values import replace


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
