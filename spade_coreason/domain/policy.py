"""The policy of one agent as values: sections of the configuration, and what that cannot set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ..contracts import ConversationState, MemoryConfig
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


def _reject_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"must be a number, not {str(value).lower()}")
    return value


NotBool = BeforeValidator(_reject_bool)
"""A validator that rejects YAML's yes and no for a number."""
Count = Annotated[int, NotBool, Field(ge=1)]
CountOrZero = Annotated[int, NotBool, Field(ge=0)]
Seconds = Annotated[float, NotBool, Field(ge=0, allow_inf_nan=False)]


class Section(BaseModel):
    """Base class of the sections. A key without a value counts as absent; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_unset(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        return {key: value for key, value in values.items() if value is not None or key not in section_keys(cls)}


def section_keys(model: type[BaseModel]) -> dict[str, Any]:
    """Return the keys of a section as they are written, each with its annotation."""
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _require_slash(prefixes: tuple[str, ...]) -> tuple[str, ...]:
    if "/" not in prefixes:
        raise ValueError('must contain "/", which messages of the platform use; to disable commands, write commands: false')
    return prefixes


class Keep(Section):
    """The limits for stored turns: their age in days, and their number in a conversation. 0 means no limit."""

    days: Annotated[float, NotBool, Field(ge=0, le=36500, allow_inf_nan=False)] = 0
    """Days after which a turn is deleted. A conversation without a message for that long is deleted with its variables and
    memories. The data of a person is deleted with their last conversation. Incidents are deleted after the shortest time of
    all limits. 0 means never.
    """
    turns: CountOrZero = 0
    """The number of turns to keep of each conversation, the newest. 0 means all."""

    @property
    def age(self) -> timedelta | None:
        """The greatest age of a turn; None for no limit."""
        return timedelta(days=self.days) if self.days else None

    @property
    def is_limited(self) -> bool:
        """True if there is a limit."""
        return bool(self.days or self.turns)


class RetentionStates(Section):
    """Other limits for conversations in one state, such as `timeout: {days: 30, turns: 100}`.

    null: the limits above apply. If an agent has `states` of its own, those of all agents do not apply to it.
    """

    active: Keep | None = None
    """The limits of active conversations."""
    completed: Keep | None = None
    """The limits of completed conversations."""
    error: Keep | None = None
    """The limits of conversations that failed."""
    timeout: Keep | None = None
    """The limits of conversations that timed out."""
    max_interactions_reached: Keep | None = None
    """The limits of conversations that reached `max_interactions`."""


class Retention(Keep):
    """The retention of turns. Turns beyond these limits are deleted for good, at the start and once a day.

    Turns that the memory strategy takes out of an agent's window stay stored until then.
    """

    states: RetentionStates = RetentionStates()

    def for_state(self, state: ConversationState) -> Keep:
        """Return the limits for conversations in a state."""
        keep: Keep | None = getattr(self.states, state.value)
        return self if keep is None else keep

    @property
    def shortest_age(self) -> timedelta | None:
        """The shortest age limit of any state; None if no state has one.

        Incidents have this limit, so that none outlives its turn.
        """
        return min(filter(None, (self.for_state(state).age for state in ConversationState)), default=None)


class Rules(Section):
    """The rules of conversations, for all agents or for one agent."""

    max_interactions: CountOrZero = 100
    """The number of turns after which a conversation pauses, unless a program asks without a thread. 0 means no limit."""
    cooldown_s: Seconds = 300
    """Seconds after which a conversation that reached `max_interactions` continues by itself."""
    timeout_s: Seconds = 3600
    """Seconds without a message after which a conversation times out. The next message starts a new episode. 0 means never."""
    assist_timeout_s: Annotated[Seconds, Field(gt=0)] = 120
    """Seconds that an agent may take for one answer, and for `startup()` with its first conversation."""
    job_timeout_s: Annotated[Seconds, Field(gt=0)] = 3600
    """Seconds that an agent may take for work that it began with `session.later`."""
    lifecycle: StartupMode = "eager"
    """The time at which `startup()` is called.

    - eager: before the agent goes online. If `startup()` raises, the agent stays offline and is started again later.
    - on_demand: with the first conversation. `shutdown()` follows when no conversation was active for `idle_shutdown_s`.
    """
    idle_shutdown_s: Seconds = 300
    """Seconds without an active conversation after which an `on_demand` agent shuts down."""
    on_restart: RestartMode = "rerun"
    """The treatment of a request whose turn was running when the platform was killed.

    - rerun: the agent gets the request again, with `redelivered` in its metadata
    - report: its sender is told that it was interrupted
    """
    max_failures: Count = 3
    """The number of failed turns in a row that ends a conversation."""
    commands: bool = True
    """Let the platform answer commands of people, such as `/help`, `/history` and `/forget me`. If false, the agent gets them
    as texts.
    """
    command_prefixes: Annotated[tuple[Literal["/", "!"], ...], AfterValidator(_require_slash)] = ("/",)
    """The characters with which a command begins: `/`, or `["/", "!"]` so that `!help` works too. Some clients run
    `/help` themselves. A space before the slash works in every client.
    """
    thoughts: bool = False
    """Show the thoughts of agents as separate messages. If false, people see only that the agent is typing. Each person can
    override this for themselves.
    """
    retention: Retention = Retention()

    @cached_property
    def timeout(self) -> timedelta:
        """`timeout_s`, which each message is compared with."""
        return timedelta(seconds=self.timeout_s)

    def __copy__(self) -> Self:
        copied = super().__copy__()
        copied.__dict__.pop("timeout", None)  # `model_copy` may change `timeout_s`
        return copied


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
    retention_s: float = 86_400.0
    """Interval between two deletions by the retention."""


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


_MEMORY = MemoryLimits()


class PlatformLimits(Section):
    """The limits of a platform. The keys `memory_…` limit interaction memories (`MemoryLimits`)."""

    stanza_bytes: Annotated[int, NotBool, Field(ge=10_000)] = 65536
    """The size in bytes of the largest message to send. Longer answers are sent in several. Most servers close a connection
    that sends more than 262,144 bytes at once.
    """
    file_over_bytes: CountOrZero = 262144
    """The size in bytes above which an answer to a person is sent as a summary and a file, if the server stores files
    (XEP-0363). 0 means never.

    If an external server does not, or its service is broken, the log has a warning at the start and at the first failed upload.
    """
    concurrency: Count = 256
    """The number of turns of one agent that run at once."""
    queue: Count = 1000
    """The number of messages that wait in one conversation."""
    grace_s: Seconds = 10
    """Seconds that running turns may take when the platform stops."""
    memory_entry_bytes: Count = _MEMORY.entry_bytes
    """The size in bytes of the largest entry of an interaction memory."""
    memory_conversation_bytes: Count = _MEMORY.conversation_bytes
    """The size in bytes of the interaction memory of one conversation."""
    memory_journal_bytes: Count = _MEMORY.journal_bytes
    """The size in bytes above which a journal is merged into its memory file. It must also be larger than that file."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The limits and settings of one agent."""

    rules: Rules = field(default_factory=Rules)
    limits: PlatformLimits = field(default_factory=PlatformLimits)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    operators: frozenset[str] = frozenset()
    quotas: Quotas = field(default_factory=Quotas)
    notifications: NotificationPolicy = field(default_factory=NotificationPolicy)
    approvals: ApprovalPolicy = field(default_factory=ApprovalPolicy)
    has_page: bool = False
    remembered_turns: int = 256
    """Number of the newest turns whose threads are in memory. Replies to older turns are resolved by the database."""
    retention_rows: int = 200
    """Largest number of rows that one transaction of the retention deletes. A turn that ends waits for one at most."""
    timings: RunnerTimings = field(default_factory=RunnerTimings)
