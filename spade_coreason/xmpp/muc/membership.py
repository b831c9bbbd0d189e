"""An agent's membership in a chat room (XEP-0045): pure decisions, as tables where the standard has one."""

from __future__ import annotations

from enum import StrEnum, auto
from typing import NamedTuple

from ..codec import (
    STATUS_AFFILIATION_LOST,
    STATUS_BANNED,
    STATUS_KICKED,
    STATUS_MEMBERS_ONLY,
    STATUS_SHUTDOWN,
    STATUS_TECHNICAL_FAILURE,
    RoomPresence,
)

MAX_NICKS = 9
_BACK_OFF_S = (1.0, 5.0, 30.0, 120.0, 600.0)


class RoomState(StrEnum):
    """The state of an agent's membership in a room."""

    JOINING = "joining"
    JOINED = "joined"
    VOICELESS = "without voice"
    """The agent is in the room and reads it, but may not speak there."""
    AWAY = "away"
    """The agent is not in the room, and tries again later."""
    KICKED = "kicked"
    BANNED = "banned"
    DESTROYED = "destroyed"
    MEMBERS_ONLY = "members only"
    WRONG_PASSWORD = "wrong password"
    NICK_TAKEN = "nickname taken"
    NOT_ALLOWED = "not allowed"
    LEFT = "left"


PRESENT_STATES = frozenset({RoomState.JOINED, RoomState.VOICELESS})

FINAL_STATES = frozenset(RoomState) - {RoomState.JOINING, RoomState.AWAY, *PRESENT_STATES}


class JoinDecision(NamedTuple):
    """The next state, and the delay until the agent tries to join again (None: it does not)."""

    state: RoomState
    retry_after_s: float | None = None


# The permanent refusals, by the condition of the error: a second attempt would not help. All others may be temporary: a room
# that is full, locked until its owner has configured it (item-not-found), or on a server that is unreachable.
_STATE_BY_FINAL_CONDITION = {
    "not-authorized": RoomState.WRONG_PASSWORD,
    "forbidden": RoomState.BANNED,
    "registration-required": RoomState.MEMBERS_ONLY,
    "gone": RoomState.DESTROYED,
    "not-allowed": RoomState.NOT_ALLOWED,
    "jid-malformed": RoomState.NOT_ALLOWED,
    "not-acceptable": RoomState.NOT_ALLOWED,
}


def numbered_nick(nick: str, number: int) -> str:
    """Return the nickname for attempt `number`: the plain one first, then variants for when it is taken."""
    return nick if number == 1 else f"{nick}-{number}"


def retry_later(attempt: int) -> JoinDecision:
    """Decide to join again after a delay that grows with each failed attempt."""
    return JoinDecision(RoomState.AWAY, _BACK_OFF_S[min(attempt, len(_BACK_OFF_S) - 1)])


def decide_after_refusal(condition: str, attempt: int) -> JoinDecision:
    """Decide after the room has refused a join."""
    state = _STATE_BY_FINAL_CONDITION.get(condition)
    return retry_later(attempt) if state is None else JoinDecision(state)


# The errors of a self-ping (XEP-0410) that say nothing about the membership: the agent is an occupant but its own client does
# not answer, or the room's server cannot be reached.
_INCONCLUSIVE_CONDITIONS = frozenset(
    {
        "service-unavailable",
        "feature-not-implemented",
        "remote-server-not-found",
        "remote-server-timeout",
        "resource-constraint",
        "internal-server-error",
    }
)


def is_membership_lost(condition: str) -> bool:
    """Return True if the error of a self-ping, given by its condition, means that the agent is no longer an occupant."""
    return condition not in _INCONCLUSIVE_CONDITIONS


def decide_after_leaving(presence: RoomPresence, *, was_kicked: bool, kick_pause_s: float, attempt: int) -> JoinDecision:
    """Decide after the room has announced that the agent is no longer in it."""
    statuses = presence.statuses
    if presence.is_destroyed:
        return JoinDecision(RoomState.DESTROYED)
    if STATUS_BANNED in statuses:
        return JoinDecision(RoomState.BANNED)
    if statuses & {STATUS_AFFILIATION_LOST, STATUS_MEMBERS_ONLY}:
        return JoinDecision(RoomState.MEMBERS_ONLY)
    # Servers send 307 also for a technical failure and for a shutdown.
    if STATUS_KICKED in statuses and not statuses & {STATUS_SHUTDOWN, STATUS_TECHNICAL_FAILURE}:
        return JoinDecision(RoomState.KICKED, None if was_kicked else kick_pause_s)
    return retry_later(attempt)


class BounceDecision(StrEnum):
    """The consequence of a message to everybody that the room has refused."""

    WAIT_FOR_VOICE = auto()
    JOIN_AGAIN = auto()
    SEND_LATER = auto()
    DISCARD = auto()


_MAX_ATTEMPTS = 3
# Servers use all of them for an agent that is not in the room, or for a room that is not there any more.
_CONDITIONS_OF_STRANGERS = frozenset({"not-acceptable", "item-not-found", "recipient-unavailable", "gone"})


def decide_after_bounce(condition: str, role: str, *, is_temporary: bool, attempts: int) -> BounceDecision:
    """Decide about a message that the room has refused `attempts` times, now with this condition.

    `role` is the agent's own, as in `RoomPresence`: participants and moderators have voice, so that they lack something else.
    `is_temporary`: the room asks to try again later, for example because of too many messages within a minute.
    """
    if condition == "forbidden" and role not in ("participant", "moderator"):
        return BounceDecision.WAIT_FOR_VOICE
    if attempts >= _MAX_ATTEMPTS:
        return BounceDecision.DISCARD
    if condition in _CONDITIONS_OF_STRANGERS:
        return BounceDecision.JOIN_AGAIN
    return BounceDecision.SEND_LATER if is_temporary else BounceDecision.DISCARD
