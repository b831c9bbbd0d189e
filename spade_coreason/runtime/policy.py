"""How one agent is run, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Literal

from ..contracts import ConversationState, MemoryConfig
from ..domain.conversation import Rules
from .agent_lifecycle import StartupMode


@dataclass(frozen=True, slots=True)
class Keep:
    """For how long a turn is kept, and how many of a conversation; None is for ever, and all."""

    age: timedelta | None = None
    turns: int | None = None


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept: `default`, and for conversations in some states otherwise; and how the rest is deleted."""

    default: Keep = Keep()
    by_state: Mapping[ConversationState, Keep] = field(default_factory=lambda: MappingProxyType({}))
    every: timedelta = timedelta(days=1)
    """The interval between two purges."""
    batch: int = 200
    """The most rows that one transaction deletes. Turns that end meanwhile wait for one of these at most."""

    def for_state(self, state: ConversationState) -> Keep:
        """What is kept of a conversation in this state."""
        return self.by_state.get(state, self.default)

    @property
    def is_unlimited(self) -> bool:
        """Whether nothing is ever deleted."""
        return all(self.for_state(state) == Keep() for state in ConversationState)


@dataclass(frozen=True, slots=True)
class Timings:
    """Waits that no configuration sets, all in seconds; the defaults are right in production, and tests shorten them."""

    retry_s: float = 10.0
    """After the store failed, a turn runs again, and idle conversations are looked for again."""
    conversation_end_s: float = 10.0
    """`on_conversation_end` of an agent or a program may take this long."""
    shutdown_s: float = 10.0
    """`shutdown()` of an agent may take this long."""
    stop_s: float = 5.0
    """Before a person is forgotten, their turns that were cancelled may take this long to end."""
    blocked_s: float = 1.0
    """The log names work that keeps the event loop for longer than this."""
    hold_s: float = 0.1
    """A block waits this long for the next event, so that a quick turn's only answer leaves with its commit."""
    typing_after_s: float = 0.2
    """Typing is shown for work that lasts longer than this."""
    typing_again_s: float = 20.0
    """Typing is shown again at this interval, because clients forget it."""
    first_words_s: float = 0.015
    """A stream that is whole within this time is one message. Its first words are shown within 50 ms."""
    growth_s: float = 1.0
    """A message is corrected once in this time at most."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How one agent is run; the configuration's keys of the same names say more."""

    rules: Rules = field(default_factory=Rules)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    retention: Retention = field(default_factory=Retention)
    assist_timeout_s: float = 120.0
    lifecycle: StartupMode = "eager"
    idle_shutdown_s: float = 300.0
    on_restart: Literal["rerun", "report"] = "rerun"
    concurrency: int = 256
    queue: int = 1000
    commands: bool = True
    operators: frozenset[str] = frozenset()
    thoughts: bool = False
    stanza_bytes: int = 65536
    file_over_bytes: int = 262144
    remembered_turns: int = 256
    """Replies to the newest turns find their conversation in memory; replies to older ones in the database."""
    timings: Timings = field(default_factory=Timings)
