"""The status of a running platform as values: its process, its server, and each agent with its connection and work."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

from ...contracts.base import format_rfc3339
from ...domain.cards import AgentCard, load_card
from ..intake.quota_limit import QuotaUsage
from .metrics import MetricsSnapshot

AgentCondition: TypeAlias = Literal["offline", "connecting", "starting", "online", "reconnecting", "stopping"]


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """The status of an agent's own process (`isolation: process`)."""

    pid: int | None
    """The process id; None while it is being started again."""
    restarts: int = 0
    """The number of times it was started again."""
    last_end: str | None = None
    """The cause of its last end; None if it never ended."""


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """The status of one agent. "Session" means its XMPP session here."""

    jid: str
    state: AgentCondition
    since: datetime | None = None
    """The start of the current session; None while the agent is not connected."""
    security: str | None = None
    """The protection of the current session: address, TLS version, certificate and login; None while there is no session."""
    security_problem: str | None = None
    """The setting that leaves the current session unprotected; None over verified TLS."""
    connection_problem: str | None = None
    """The reason why the agent is not connected to its server; None if there is none."""
    start_problem: str | None = None
    """The reason why the agent has not started, for example a `startup()` that raises; None if there is none."""
    storage_problem: str | None = None
    """The reason why the agent cannot store anything; None if there is none."""
    resumed: int = 0
    """The number of lost connections after which a session was resumed."""
    sessions: int = 0
    """The number of sessions since the platform started."""
    conversations: int | None = 0
    """The number of active conversations; None if the database does not answer."""
    conversations_stored: int | None = 0
    """The number of all conversations; None if the database does not answer."""
    in_flight: int = 0
    """The number of conversations with a running or waiting turn."""
    is_paused: bool = False
    """True while an operator has paused the agent: it stores requests and answers none."""
    rooms: dict[str, str] = field(default_factory=dict)
    """The states of its chat rooms, by JID."""
    refused_by_rooms: dict[str, int] = field(default_factory=dict)
    """The number of messages since the platform started that its chat rooms have refused for good, by the reason."""
    dropped: dict[str, int] = field(default_factory=dict)
    """The number of messages since the platform started that were no request or not taken, by the reason."""
    rejected: dict[str, int] = field(default_factory=dict)
    """The number of stanzas since the platform started that exceed a limit, or at which a handler failed, by the reason."""
    without_channel: dict[str, int] = field(default_factory=dict)
    """The number of stored requests and replies that wait for a channel which is not installed, by its name."""
    quotas: tuple[QuotaUsage, ...] = ()
    """The use of its quotas today (UTC): the total first, then the domains, rooms and people with most messages."""
    process: ProcessStatus | None = None
    """Its own process; None if it runs in the platform's."""
    recent: MetricsSnapshot = field(default_factory=MetricsSnapshot)
    """The metrics of the last 24 hours."""
    card: AgentCard | None = None
    """The card of the agent, as other agents find it."""

    @property
    def is_healthy(self) -> bool:
        """True if the agent is online and can store requests."""
        return self.state == "online" and self.storage_problem is None


@dataclass(frozen=True, slots=True)
class PlatformStatus:
    """The status of a platform: its process id, a description of its server, and its agents."""

    pid: int
    server: str
    agents: tuple[AgentStatus, ...]

    @property
    def is_healthy(self) -> bool:
        """True if every agent is healthy."""
        return all(agent.is_healthy for agent in self.agents)

    def to_json(self) -> str:
        """Return the form for the status socket and for programs. Times are in the format of RFC 3339."""
        return json.dumps(asdict(self), default=format_rfc3339)

    @classmethod
    def from_json(cls, text: str | bytes) -> PlatformStatus:
        """Read the result of `to_json`."""
        fields = json.loads(text)
        return cls(fields["pid"], fields["server"], tuple(map(_parse_agent, fields["agents"])))


def _parse_agent(fields: dict[str, Any]) -> AgentStatus:
    values = {
        "since": _parse_time(fields["since"]),
        "recent": MetricsSnapshot(**fields.get("recent", {})),
        "process": ProcessStatus(**process) if (process := fields.get("process")) else None,
        "card": load_card(fields.get("card")),
        "quotas": tuple(QuotaUsage(**usage) for usage in fields.get("quotas", ())),
    }
    return AgentStatus(**fields | values)


def _parse_time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
