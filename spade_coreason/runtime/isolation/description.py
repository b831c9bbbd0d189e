"""The settings of an agent's process, and what the process tells of its agent."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from pydantic import TypeAdapter

from ...contracts import AgentDefinition
from ...domain.forms.fields import Field
from ...domain.initiative.schedules import CronTimes
from ...domain.messages import CHAIN, DEADLINE, HIDES_PERSON, ROOT_SENDER
from ..commands.decorator import commands_of
from ..commands.model import Audience
from ..initiative.decorator import EveryMark, every_of
from ..topics.decorator import subscriptions_of

HOOKS = ("startup", "shutdown", "feedback", "on_conversation_end")
"""The optional methods of an agent that the platform calls."""

_MAX_NAME_CHARACTERS = 200

REQUEST_FIELDS = (
    "request_id",
    "session_id",
    "root_request_id",
    "parent_request_id",
    "created_at",
    "payload",
    "capabilities",
    "metadata",
)
"""The fields of a request, in the order in which they cross."""

ORIGIN_METADATA = ("sender", ROOT_SENDER, HIDES_PERSON, "hops", CHAIN, DEADLINE)
"""The metadata of a request that its agent passes on with requests of its own."""


@dataclass(frozen=True, slots=True)
class IsolationTimings:
    """Times in seconds. The defaults are for production; tests shorten them."""

    build_s: float = 60.0
    """The time that the import and the constructor may take."""
    check_s: float = 1.0
    """The interval at which the process is asked to react, and its memory is measured."""
    blocked_s: float = 10.0
    """The time after which a process that does not react is ended."""
    cancel_grace_s: float = 2.0
    """The time that a cancelled turn has to end, before the process is ended."""
    exit_s: float = 2.0
    """The time that the process has to end by itself when the platform stops."""
    first_delay_s: float = 0.5
    """The delay before the first restart. It doubles with each further one."""
    max_delay_s: float = 30.0
    """The longest delay before a restart."""
    healthy_s: float = 60.0
    """The time after which the delay begins anew."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """The settings of an agent's process."""

    memory_mb: int | None = None
    """The memory in MiB (resident) above which the process is ended; None for any."""
    timings: IsolationTimings = field(default_factory=IsolationTimings)
    popen: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen
    """Starts the process."""


@dataclass(frozen=True, slots=True)
class CommandDescription:
    """A command that the agent adds."""

    name: str
    description: str
    fields: tuple[Field, ...]
    audience: Audience = "everybody"


@dataclass(frozen=True, slots=True)
class AgentDescription:
    """The description of an agent in another process."""

    type_name: str
    manifest: AgentDefinition
    hooks: tuple[str, ...]
    commands: tuple[CommandDescription, ...]
    patterns: tuple[str, ...] = ()
    """The patterns of the topics to which it subscribes."""
    every: tuple[EveryMark, ...] = ()
    """The times of its methods, each with the name of its method."""

    def __post_init__(self) -> None:
        for mark in self.every:
            if not mark.name.isidentifier() or len(mark.name) > _MAX_NAME_CHARACTERS:
                raise ValueError(f"{mark.name[:_MAX_NAME_CHARACTERS]!r} is not the name of a method")
            CronTimes(mark.cron, mark.zone or "UTC")

    @classmethod
    def of(cls, agent: Any) -> AgentDescription:
        """Describe an agent."""
        return cls(
            type(agent).__name__,
            agent.manifest,
            tuple(name for name in HOOKS if callable(getattr(agent, name, None))),
            tuple(
                CommandDescription(command.name, command.description, command.fields, command.audience)
                for command in commands_of(agent)
            ),
            tuple(subscription.pattern for subscription in subscriptions_of(agent)),
            tuple(replace(handler.mark, name=handler.name) for handler in every_of(agent)),
        )

    def dump(self) -> dict[str, Any]:
        """Return the description as JSON."""
        dumped: dict[str, Any] = _ADAPTER.dump_python(self, mode="json", by_alias=True)
        return dumped

    @classmethod
    def load(cls, data: object) -> AgentDescription:
        """Read the result of `dump`. ValueError if it is none."""
        return _ADAPTER.validate_python(data)


_ADAPTER = TypeAdapter(AgentDescription)


def dump_when(when: datetime | timedelta | str) -> list[Any]:
    """Return the time of a reminder as JSON. ValueError if it is none."""
    if not isinstance(when, datetime | timedelta | str):
        raise ValueError(
            f"a reminder is due at a datetime, after a timedelta, or at the times of a cron text, not {when!r:.200}"
        )
    if isinstance(when, timedelta):
        return ["after", when.days, when.seconds, when.microseconds]
    return ["at", when.isoformat()] if isinstance(when, datetime) else ["cron", when]


def load_when(data: object) -> datetime | timedelta | str:
    """Read the result of `dump_when`. ValueError or OverflowError if it is none."""
    match data:
        case ["after", int(days), int(seconds), int(microseconds)]:
            return timedelta(days, seconds, microseconds)
        case ["at", str(text)]:
            return datetime.fromisoformat(text)
        case ["cron", str(text)]:
            return text
    raise ValueError(f"this does not say when a reminder is due: {data!r:.200}")
