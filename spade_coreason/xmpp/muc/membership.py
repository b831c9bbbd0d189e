"""What becomes of an agent's place in a chat room (XEP-0045): pure decisions, as tables where the standard has one."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from ...codec import (
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
    """Where an agent stands with a room."""

    JOINING = "joining"
    JOINED = "joined"
    AWAY = "away"
    """It comes again after a while."""
    KICKED = "kicked"
    BANNED = "banned"
    DESTROYED = "destroyed"
    MEMBERS_ONLY = "members only"
    WRONG_PASSWORD = "wrong password"
    NICK_TAKEN = "nickname taken"
    NOT_ALLOWED = "not allowed"
    LEFT = "left"


FINAL_STATES = frozenset(RoomState) - {RoomState.JOINING, RoomState.JOINED, RoomState.AWAY}


class JoinDecision(NamedTuple):
    """What comes then: a state, and after which time the agent tries again (None: it does not)."""

    state: RoomState
    retry_after_s: float | None = None


# What no second attempt would change, by the condition of the error. Everything else may pass: a room that is full, locked
# until its owner has configured it (item-not-found), or on a server that is not there.
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
    """The nickname, then those for when somebody has it already."""
    return nick if number == 1 else f"{nick}-{number}"


def retry_later(attempt: int) -> JoinDecision:
    """Away, and back after a while that grows with each attempt in vain."""
    return JoinDecision(RoomState.AWAY, _BACK_OFF_S[min(attempt, len(_BACK_OFF_S) - 1)])


def decide_after_refusal(condition: str, attempt: int) -> JoinDecision:
    """After the room has refused to let the agent in."""
    state = _STATE_BY_FINAL_CONDITION.get(condition)
    return retry_later(attempt) if state is None else JoinDecision(state)


# What says nothing about the place, in answer to a self-ping (XEP-0410): the agent is there and its own client does not
# answer, or whoever would have to say cannot be reached.
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
    """Whether an agent is no occupant any more, by the condition of the error that its self-ping got."""
    return condition not in _INCONCLUSIVE_CONDITIONS


def decide_after_leaving(presence: RoomPresence, *, was_kicked: bool, kick_pause_s: float, attempt: int) -> JoinDecision:
    """After the room has said that the agent is not in it any more."""
    statuses = presence.statuses
    if presence.is_destroyed:
        return JoinDecision(RoomState.DESTROYED)
    if STATUS_BANNED in statuses:
        return JoinDecision(RoomState.BANNED)
    if statuses & {STATUS_AFFILIATION_LOST, STATUS_MEMBERS_ONLY}:
        return JoinDecision(RoomState.MEMBERS_ONLY)
    # Of a fault and of a shutdown servers say 307 as well.
    if STATUS_KICKED in statuses and not statuses & {STATUS_SHUTDOWN, STATUS_TECHNICAL_FAILURE}:
        return JoinDecision(RoomState.KICKED, None if was_kicked else kick_pause_s)
    return retry_later(attempt)
