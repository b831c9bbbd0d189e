"""The status of a running platform: each agent, its connection and its work.

The platform answers each query at a socket in its data directory, to all who may read that. A file would keep the last
status of a platform that was killed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

from ..contracts.base import format_rfc3339
from .metrics import MetricsSnapshot

AgentCondition: TypeAlias = Literal["offline", "connecting", "starting", "online", "reconnecting", "stopping"]


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """The status of one agent."""

    jid: str
    state: AgentCondition
    since: datetime | None = None
    """Start of the present session; None without one."""
    why: str | None = None
    """Reason why the agent is not online; None if it is."""
    cannot_store: str | None = None
    """Reason why the agent cannot store anything; None if it can."""
    resumed: int = 0
    """Number of lost connections after which the session was resumed."""
    sessions: int = 0
    """Number of sessions that were started."""
    conversations: int | None = 0
    """Number of active conversations; None if the database does not answer."""
    conversations_kept: int | None = 0
    """Number of all stored conversations; None if the database does not answer."""
    in_flight: int = 0
    """Number of conversations with a turn that runs or waits."""
    is_paused: bool = False
    """True while an operator has paused the agent: it stores requests and answers none."""
    rooms: dict[str, str] = field(default_factory=dict)
    """States of its chat rooms, by JID."""
    recent: MetricsSnapshot = field(default_factory=MetricsSnapshot)
    """Metrics of the last 24 hours."""

    @property
    def is_healthy(self) -> bool:
        """True if the agent is online and can store requests."""
        return self.state == "online" and self.cannot_store is None


@dataclass(frozen=True, slots=True)
class PlatformStatus:
    """The status of a platform: its process id, a description of its server, and its agents."""

    pid: int
    server: str
    agents: tuple[AgentStatus, ...]

    @property
    def is_healthy(self) -> bool:
        """True if all agents are online and can store requests."""
        return all(agent.is_healthy for agent in self.agents)

    def to_json(self) -> str:
        """Return the status as JSON, for the socket and for programs. Times are in ISO 8601."""
        return json.dumps(asdict(self), default=format_rfc3339)

    @classmethod
    def from_json(cls, text: str | bytes) -> PlatformStatus:
        """Read the JSON of `to_json`."""
        read = json.loads(text)
        agents = [
            AgentStatus(**agent | {"since": _parse_time(agent["since"]), "recent": MetricsSnapshot(**agent.get("recent", {}))})
            for agent in read["agents"]
        ]
        return cls(read["pid"], read["server"], tuple(agents))


def _parse_time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
