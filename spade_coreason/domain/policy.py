"""The policy of one agent as values: its limits, its retention and its waits. They have the defaults of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Literal

from ..contracts import ConversationState, MemoryConfig
from .conversation import Rules
from .initiative.notifications import NotificationPolicy
from .questions import ApprovalPolicy
from .quotas import Quotas

StartupMode = Literal["eager", "on_demand"]
RestartMode = Literal["rerun", "report"]
REQUESTS_PER_ROOT = 10_000
"""The number of requests between agents to which one request may lead, unless the settings say otherwise."""
EMBEDDING_BATCH = 64
"""The number of texts in one request for vectors, unless the settings say otherwise."""
MODEL_TIMEOUT_S = 30
"""The seconds that one request to a model may take, unless the settings say otherwise."""


@dataclass(frozen=True, slots=True)
class Keep:
    """The greatest age and number of the turns of a conversation; None for no limit."""

    age: timedelta | None = None
    turns: int | None = None


@dataclass(frozen=True, slots=True)
class Retention:
    """The limits of stored turns: `by_state` for conversations in some states, `default` for all others."""

    default: Keep = Keep()
    by_state: Mapping[ConversationState, Keep] = field(default_factory=lambda: MappingProxyType({}))
    interval: timedelta = timedelta(days=1)
    """Interval between two deletions."""
    batch_rows: int = 200
    """Largest number of rows that one transaction deletes. A turn that ends waits for one such transaction at most."""

    def for_state(self, state: ConversationState) -> Keep:
        """Return the limits for conversations in a state."""
        return self.by_state.get(state, self.default)

    @property
    def shortest_age(self) -> timedelta | None:
        """The shortest age limit of any state; None if no state has one.

        Incidents have this limit, so that none outlives its turn.
        """
        ages = [keep.age for keep in map(self.for_state, ConversationState) if keep.age is not None]
        return min(ages, default=None)

    @property
    def is_unlimited(self) -> bool:
        """True if nothing is ever deleted."""
        return all(self.for_state(state) == Keep() for state in ConversationState)


@dataclass(frozen=True, slots=True)
class RunnerTimings:
    """Waits that the configuration cannot set, in seconds. The defaults are for production; tests shorten them."""

    retry_s: float = 10.0
    """Delay after a failure of the store, before a turn runs again and idle conversations are searched again."""
    conversation_end_s: float = 10.0
    """Time limit of `on_conversation_end` of an agent or a program."""
    shutdown_s: float = 10.0
    """Time limit of `shutdown()` of an agent."""
    cancel_grace_s: float = 5.0
    """Time limit for cancelled turns of a person to end, before the person's data is deleted."""
    blocked_s: float = 1.0
    """Time after which the log warns of work that blocks the event loop."""
    buffer_s: float = 0.1
    """Time that a block is buffered for the next event, so that the only block of a quick turn is sent with its commit."""
    batch_s: float = 0.05
    """Time that events for a program are collected, to be sent in one message."""
    typing_after_s: float = 0.2
    """Time after which typing is shown."""
    typing_interval_s: float = 20.0
    """Interval at which typing is shown again, because clients stop showing it."""
    first_update_s: float = 0.015
    """Time to the first message of a stream, to show its first words within 50 ms. A shorter stream is one message."""
    update_interval_s: float = 1.0
    """Least interval between two corrections of a message."""


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Limits of an interaction memory, in bytes (UTF-8).

    - `entry_bytes`: the maximum for one piece of information, and for the id of a conversation.
    - `conversation_bytes`: the maximum for one conversation, timestamps included.
    - `journal_bytes`: a journal that is longer than this and longer than the memory file is folded into it.
    """

    entry_bytes: int = 65_536
    conversation_bytes: int = 16_777_216
    journal_bytes: int = 1_048_576


@dataclass(frozen=True, slots=True)
class Policy:
    """The limits and settings of one agent. `config/reference.yaml` explains the keys of the same names."""

    rules: Rules = field(default_factory=Rules)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    retention: Retention = field(default_factory=Retention)
    assist_timeout_s: float = 120
    lifecycle: StartupMode = "eager"
    idle_shutdown_s: float = 300
    on_restart: RestartMode = "rerun"
    concurrency: int = 256
    queue: int = 1000
    commands: bool = True
    command_prefixes: tuple[Literal["/", "!"], ...] = ("/",)
    operators: frozenset[str] = frozenset()
    thoughts: bool = False
    stanza_bytes: int = 65536
    file_over_bytes: int = 262144
    quotas: Quotas = field(default_factory=Quotas)
    notifications: NotificationPolicy = field(default_factory=NotificationPolicy)
    approvals: ApprovalPolicy = field(default_factory=ApprovalPolicy)
    has_page: bool = False
    job_timeout_s: float = 3600
    """Time limit of `assist` for work that `session.later` began."""
    remembered_turns: int = 256
    """Number of the newest turns whose threads are in memory. Replies to older turns are resolved by the database."""
    timings: RunnerTimings = field(default_factory=RunnerTimings)
