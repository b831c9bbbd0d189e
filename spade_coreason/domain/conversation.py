"""The life of a conversation as a table of transitions: no clock, no I/O.

Who calls gives the time and the rules, and gets a new `Life`. `max_interactions` counts the turns of one episode; a message
after the end of an episode opens the next one with the same memory (seed: Memory API, Memory Lifecycle).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from ..contracts import ConversationState as State
from .value import replace, value


class Signal(Enum):
    """What can happen to a conversation."""

    MESSAGE = "a message from its owner"
    OVER_LIMIT = "a message more than max_interactions"
    ECHO = "the other side only repeats what we say"
    FAILURES = "several failed turns in a row"
    IDLE = "no message for the idle timeout"
    END = "the agent says that it is done"


# What is not in the table leaves the state as it is.
TRANSITIONS: dict[State, dict[Signal, State]] = {
    State.ACTIVE: {
        Signal.MESSAGE: State.ACTIVE,
        Signal.OVER_LIMIT: State.MAX_INTERACTIONS_REACHED,
        Signal.ECHO: State.MAX_INTERACTIONS_REACHED,
        Signal.FAILURES: State.ERROR,
        Signal.IDLE: State.TIMEOUT,
        Signal.END: State.COMPLETED,
    },
    State.COMPLETED: {Signal.MESSAGE: State.ACTIVE},
    State.TIMEOUT: {Signal.MESSAGE: State.ACTIVE},
    State.ERROR: {Signal.MESSAGE: State.ACTIVE},
    State.MAX_INTERACTIONS_REACHED: {Signal.MESSAGE: State.ACTIVE},  # once `quiet_until` has passed, or is none
}

ECHOES_UNTIL_PAUSE = 10

_ACTIVE = State.ACTIVE  # looked up once: a member of an Enum is slow to find in Python 3.11


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits of one agent's conversations. `max_interactions` 0 is no limit; `timeout` 0 is never."""

    max_interactions: int = 100
    cooldown: timedelta = timedelta(seconds=300)
    timeout: timedelta = timedelta(seconds=3600)
    max_failures: int = 3


@value
class Life:
    """Where a conversation is: the seed's record, and what the next decision needs."""

    state: State
    interaction_count: int
    created_at: datetime
    last_interaction: datetime
    failures: int = 0
    quiet_until: datetime | None = None

    @property
    def is_active(self) -> bool:
        """Whether the next message belongs to this episode."""
        return self.state is _ACTIVE


class Verdict(Enum):
    """What to do with a message."""

    RUN = "run the agent"
    NOTICE = "refuse, and say once when and how to go on"
    SILENCE = "refuse, and say nothing more to people"


RUN = Verdict.RUN
"""What nearly every message comes to."""


@value
class Received:
    """The decision on one message. `ended` is the state in which an episode ended by it or before it."""

    life: Life
    verdict: Verdict
    ended: State | None = None


def begin(now: datetime) -> Life:
    """A conversation before its first message."""
    return Life(State.ACTIVE, 0, now, now)


def receive(life: Life, now: datetime, rules: Rules) -> Received:
    """Decides on a message from the owner of the conversation."""
    before = life
    life = idle(life, now, rules)
    ended = life.state if life is not before else None
    if life.state is not _ACTIVE:
        if life.state is State.MAX_INTERACTIONS_REACHED and life.quiet_until is not None and now < life.quiet_until:
            return Received(life, Verdict.SILENCE)
        episode = Life(TRANSITIONS[life.state][Signal.MESSAGE], 1, life.created_at, now)
        return Received(episode, RUN, ended)
    if rules.max_interactions and life.interaction_count >= rules.max_interactions:
        return Received(_refuse(life, Signal.OVER_LIMIT, now, rules), Verdict.NOTICE, State.MAX_INTERACTIONS_REACHED)
    return Received(
        Life(life.state, life.interaction_count + 1, life.created_at, now, life.failures, life.quiet_until),
        RUN,
        ended,
    )


def pause(life: Life, now: datetime, rules: Rules) -> Received:
    """Refuses an echo: the other side repeats our own last answer again and again."""
    return Received(_refuse(life, Signal.ECHO, now, rules), Verdict.NOTICE, State.MAX_INTERACTIONS_REACHED)


def _refuse(life: Life, signal: Signal, now: datetime, rules: Rules) -> Life:
    state = TRANSITIONS[State.ACTIVE][signal]
    return replace(life, state=state, last_interaction=now, quiet_until=now + rules.cooldown)


def succeed(life: Life) -> Life:
    """After a turn that went well."""
    return life if life.failures == 0 else replace(life, failures=0)


def fail(life: Life, rules: Rules) -> Life:
    """After a turn that raised or took too long; `max_failures` of them in a row end the conversation."""
    failures = life.failures + 1
    if failures < rules.max_failures:
        return replace(life, failures=failures)
    return replace(life, failures=0, state=TRANSITIONS[State.ACTIVE][Signal.FAILURES])


def end(life: Life) -> Life:
    """After the agent ended the conversation itself."""
    return replace(life, failures=0, state=TRANSITIONS[life.state].get(Signal.END, life.state))


def renew(life: Life) -> Life:
    """After its owner has asked for a new conversation: their next message opens an episode, whatever held it back."""
    return end(life) if life.is_active else replace(life, quiet_until=None)


def reset(life: Life, now: datetime) -> Life:
    """A new episode before its first message, from any state: whoever runs the agent wants it so."""
    return Life(State.ACTIVE, 0, life.created_at, now)


def idle(life: Life, now: datetime, rules: Rules) -> Life:
    """The same object, or its timeout where nothing was said for long enough."""
    if life.state is not _ACTIVE or not rules.timeout or now - life.last_interaction < rules.timeout:
        return life
    return replace(life, state=TRANSITIONS[life.state][Signal.IDLE])
