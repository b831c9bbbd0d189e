"""How a running platform is, told to whoever may read its data directory: each agent, its connection, its work.

The platform answers at a socket there at the moment it is asked. A file would say of one that was killed what was true before.
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
    """One agent. `since` is when its present session began, `why` what keeps it from its server, `cannot_store` what keeps it
    from storing anything; None where there is none.

    `conversations` are the active ones and `conversations_kept` all (None where the database does not say), `in_flight` those
    with a turn that runs or waits; `resumed` counts the cuts after which a session went on, `sessions` those that began. One
    that `is_paused` by an operator keeps requests and answers none. `recent` is what it did in the last 24 hours.
    `rooms` are the states of its chat rooms, by JID.
    """

    jid: str
    state: AgentCondition
    since: datetime | None = None
    why: str | None = None
    cannot_store: str | None = None
    resumed: int = 0
    sessions: int = 0
    conversations: int | None = 0
    conversations_kept: int | None = 0
    in_flight: int = 0
    is_paused: bool = False
    rooms: dict[str, str] = field(default_factory=dict)
    recent: MetricsSnapshot = field(default_factory=MetricsSnapshot)

    @property
    def is_healthy(self) -> bool:
        """Whether it is online, and can store what it is told."""
        return self.state == "online" and self.cannot_store is None


@dataclass(frozen=True, slots=True)
class PlatformStatus:
    """A platform: its process, its server in words, its agents."""

    pid: int
    server: str
    agents: tuple[AgentStatus, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether every agent is online, and can store what it is told."""
        return all(agent.is_healthy for agent in self.agents)

    def to_json(self) -> str:
        """For the socket, and for programs; moments are in ISO 8601."""
        return json.dumps(asdict(self), default=format_rfc3339)

    @classmethod
    def from_json(cls, text: str | bytes) -> PlatformStatus:
        """What `to_json` wrote."""
        read = json.loads(text)
        agents = [
            AgentStatus(**agent | {"since": _parse_time(agent["since"]), "recent": MetricsSnapshot(**agent.get("recent", {}))})
            for agent in read["agents"]
        ]
        return cls(read["pid"], read["server"], tuple(agents))


def _parse_time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
