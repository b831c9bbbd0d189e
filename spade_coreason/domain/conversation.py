"""The life cycle of a conversation as a table of transitions: no clock, no I/O.

The caller passes the time and the rules, and gets a new `ConversationStatus`. `max_interactions` counts the turns of one
episode. A message after the end of an episode opens the next episode with the same memory (seed: Memory API, Memory
Lifecycle).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from enum import Enum

from ..contracts import ConversationState as State
from .policy import Rules
from .value import value


class Trigger(Enum):
    """An event that may change the state of a conversation."""

    MESSAGE = "a message from its owner"
    OVER_LIMIT = "a message more than max_interactions"
    ECHO = "the other side only repeats what we say"
    FAILURES = "several failed turns in a row"
    IDLE = "no message for the idle timeout"
    END = "the agent says that it is done"


# A trigger that is missing for a state leaves the state unchanged.
TRANSITIONS: dict[State, dict[Trigger, State]] = {
    State.ACTIVE: {
        Trigger.MESSAGE: State.ACTIVE,
        Trigger.OVER_LIMIT: State.MAX_INTERACTIONS_REACHED,
        Trigger.ECHO: State.MAX_INTERACTIONS_REACHED,
        Trigger.FAILURES: State.ERROR,
        Trigger.IDLE: State.TIMEOUT,
        Trigger.END: State.COMPLETED,
    },
    State.COMPLETED: {Trigger.MESSAGE: State.ACTIVE},
    State.TIMEOUT: {Trigger.MESSAGE: State.ACTIVE},
    State.ERROR: {Trigger.MESSAGE: State.ACTIVE},
    State.MAX_INTERACTIONS_REACHED: {Trigger.MESSAGE: State.ACTIVE},  # once `quiet_until` has passed, or is None
}

ECHOES_UNTIL_PAUSE = 10

_ACTIVE = State.ACTIVE  # looked up once: a member of an Enum is slow to find in Python 3.11


@value
class ConversationStatus:
    """The status of a conversation: the fields of the seed's record, and those that the next decision needs."""

    state: State
    interaction_count: int
    created_at: datetime
    last_interaction: datetime
    failures: int = 0
    quiet_until: datetime | None = None

    @property
    def is_active(self) -> bool:
        """True if the next message belongs to this episode."""
        return self.state is _ACTIVE


class Outcome(Enum):
    """The treatment of a message."""

    RUN = "run the agent"
    NOTICE = "refuse, and say once when and how to go on"
    SILENCE = "refuse, and say nothing more to people"


RUN = Outcome.RUN
"""The outcome for nearly every message, looked up once."""


@value
class Decision:
    """The decision on one message. `ended_state` is the final state of an episode that ended with or before this message."""

    status: ConversationStatus
    outcome: Outcome
    ended_state: State | None = None


def new_status(now: datetime) -> ConversationStatus:
    """Return the status of a conversation before its first message."""
    return ConversationStatus(State.ACTIVE, 0, now, now)


def decide_on_message(status: ConversationStatus, now: datetime, rules: Rules) -> Decision:
    """Decide on a message from the owner of the conversation."""
    before = status
    status = apply_idle_timeout(status, now, rules)
    ended = status.state if status is not before else None
    if status.state is not _ACTIVE:
        if status.state is State.MAX_INTERACTIONS_REACHED and status.quiet_until is not None and now < status.quiet_until:
            return Decision(status, Outcome.SILENCE)
        episode = ConversationStatus(TRANSITIONS[status.state][Trigger.MESSAGE], 1, status.created_at, now)
        return Decision(episode, RUN, ended)
    limit = rules.max_interactions
    if limit and status.interaction_count >= limit:
        return Decision(
            _refuse_until_cooldown(status, Trigger.OVER_LIMIT, now, rules), Outcome.NOTICE, State.MAX_INTERACTIONS_REACHED
        )
    return Decision(
        ConversationStatus(
            status.state, status.interaction_count + 1, status.created_at, now, status.failures, status.quiet_until
        ),
        RUN,
        ended,
    )


def refuse_echo(status: ConversationStatus, now: datetime, rules: Rules) -> Decision:
    """Refuse an echo: the sender keeps repeating our own last reply."""
    return Decision(_refuse_until_cooldown(status, Trigger.ECHO, now, rules), Outcome.NOTICE, State.MAX_INTERACTIONS_REACHED)


def _refuse_until_cooldown(status: ConversationStatus, trigger: Trigger, now: datetime, rules: Rules) -> ConversationStatus:
    state = TRANSITIONS[State.ACTIVE][trigger]
    return replace(status, state=state, last_interaction=now, quiet_until=now + timedelta(seconds=rules.cooldown_s))


def record_success(status: ConversationStatus) -> ConversationStatus:
    """Return the status after a successful turn."""
    return status if status.failures == 0 else replace(status, failures=0)


def record_failure(status: ConversationStatus, rules: Rules) -> ConversationStatus:
    """Return the status after a turn that raised or timed out. `max_failures` of them in a row end the conversation."""
    failures = status.failures + 1
    if failures < rules.max_failures:
        return replace(status, failures=failures)
    return replace(status, failures=0, state=TRANSITIONS[State.ACTIVE][Trigger.FAILURES])


def complete(status: ConversationStatus) -> ConversationStatus:
    """Return the status after the agent ended the conversation."""
    return replace(status, failures=0, state=TRANSITIONS[status.state].get(Trigger.END, status.state))


def allow_new_episode(status: ConversationStatus) -> ConversationStatus:
    """Return the status after the owner asked for a new conversation: the next message opens an episode in any case."""
    return complete(status) if status.is_active else replace(status, quiet_until=None)


def restart_episode(status: ConversationStatus, now: datetime) -> ConversationStatus:
    """Return the status of a new episode before its first message. It applies to any state, at an operator's request."""
    return ConversationStatus(State.ACTIVE, 0, status.created_at, now)


def apply_idle_timeout(status: ConversationStatus, now: datetime, rules: Rules) -> ConversationStatus:
    """Return the status after its timeout if no message came for that long, else the same object."""
    timeout = rules.timeout
    if status.state is not _ACTIVE or not timeout or now - status.last_interaction < timeout:
        return status
    return replace(status, state=TRANSITIONS[status.state][Trigger.IDLE])
