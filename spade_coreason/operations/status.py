"""The status of a running platform as values: its process, its server, and each agent with its connection and work."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

from ..domain.cards import AgentCard
from ..domain.quotas import QuotaUsage

AgentCondition: TypeAlias = Literal["offline", "connecting", "starting", "online", "reconnecting", "stopping"]


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """The metrics of the last 24 hours (give or take a quarter of an hour), or since the start.

    `answers` leaves out those that a chat room does not take. `errors` counts failures: one request may fail more than once.
    Durations run from the arrival of a request to its whole reply. They are in milliseconds and exact to a tenth of their
    value; None without any reply.
    """

    answers: int = 0
    p50_ms: float | None = None
    p99_ms: float | None = None
    errors: int = 0
    last_error: str | None = None


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
    waiting: int = 0
    """The number of stored requests that wait for their turn, or for the end of a pause."""
    notifications: dict[str, int] = field(default_factory=dict)
    """The number of notifications by state: those that wait, and the others for seven days after their last change."""
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
    recent: MetricsSnapshot = field(default_factory=MetricsSnapshot)
    """The metrics of the last 24 hours."""
    card: AgentCard | None = None
    """The card of the agent, as other agents find it."""
    worker: str | None = None
    """The name of the worker that serves it, if several may share the agents; None if none does."""

    @property
    def is_healthy(self) -> bool:
        """True if the agent is online and can store requests."""
        return self.state == "online" and self.storage_problem is None


@dataclass(frozen=True, slots=True)
class RunningTurn:
    """A turn that runs: of which person (a bare JID), in which conversation, and since when.

    `last_step` is the name of its last durable step, or empty. `waits_in` is the place in the code where it waits.
    """

    agent: str
    person: str
    conversation_id: str
    since: datetime
    last_step: str
    waits_in: str


@dataclass(frozen=True, slots=True)
class WebStatus:
    """The status of the HTTP server."""

    url: str
    """Its public address."""
    doors: tuple[str, ...]
    """The doors that agents are behind."""
    connections: int = 0
    """The number of open connections."""
    full_webhooks: tuple[str, ...] = ()
    """The webhooks that refuse events until their secrets are rotated."""

    def __str__(self) -> str:
        return f"{self.url} ({', '.join(self.doors) or 'no agent lists doors; add doors: [openai] to one'})"


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The status of one of several workers that share the agents."""

    name: str
    """Its machine and its process id."""
    agents: int
    """The number of agents that it serves."""
    since: datetime
    """The time of its start, by the clock of the database."""
    is_this: bool
    """True for the worker that tells the status."""
    is_leaving: bool
    """True while it gives its agents back, because it stops."""
    lease_left_s: float
    """The time in seconds until its lease ends, unless it renews that. Others take its agents over then."""
    is_answering: bool
    """False if it has not told the states of its agents in time."""


@dataclass(frozen=True, slots=True)
class TakeoverStatus:
    """The last time that agents were taken over from a worker that was lost or has stopped: its name, why, and when."""

    worker: str
    reason: str
    at: datetime
    agents: int
    """The number of agents."""


@dataclass(frozen=True, slots=True)
class PlatformStatus:
    """The status of a platform: its process id, a description of its server, its agents, and its HTTP server.

    The process id is 0 if it was asked of all workers by a command on another machine.
    """

    pid: int
    server: str
    agents: tuple[AgentStatus, ...]
    web: WebStatus | None = None
    """None without a section `web` in the configuration."""
    workers: tuple[WorkerStatus, ...] = ()
    """All workers, if several may share the agents: on PostgreSQL, with an external XMPP server."""
    last_takeover: TakeoverStatus | None = None
    """The last takeover among them; None without one."""

    @property
    def is_healthy(self) -> bool:
        """True if every agent is healthy."""
        return all(agent.is_healthy for agent in self.agents)
