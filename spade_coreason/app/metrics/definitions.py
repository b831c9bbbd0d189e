"""The names, labels and meanings of all metrics. The page `docs/reference/metrics.md` is made of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

MetricKind: TypeAlias = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """A metric: its name without suffixes of series, its kind, its meaning, and the names of its labels."""

    name: str
    kind: MetricKind
    meaning: str
    labels: tuple[str, ...] = ()

    @property
    def shown_name(self) -> str:
        """The name of its series; of a histogram, the name that its series begin with."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _define(kind: MetricKind, name: str, meaning: str, *labels: str) -> MetricDefinition:
    return MetricDefinition(f"spade_coreason_{name}", kind, meaning, labels)


_counter, _gauge, _histogram = partial(_define, "counter"), partial(_define, "gauge"), partial(_define, "histogram")

INFO = _gauge("info", "Always 1; the label has the version of the platform", "version")

REQUESTS = _counter("requests", "Requests that have ended or were refused, by outcome", "agent", "outcome")
REFUSALS = _counter("refusals", 'Refused requests, by reason; `outcome="refused"` is their sum', "agent", "reason")
FAILURES = _counter("failures", "Failures; one request may fail more than once, such as when it is stored", "agent")
DROPPED = _counter("dropped_messages", "Messages that were no request, or not taken, by reason", "agent", "reason")
REJECTED = _counter("rejected_stanzas", "Stanzas beyond a limit, or at which a handler failed, by reason", "agent", "reason")
REDELIVERIES = _counter("redeliveries", "Requests that came or run again, and replies that were sent again", "agent", "kind")
ROOM_REFUSALS = _counter("room_refusals", "Messages that chat rooms have refused for good", "agent")
TOKENS = _counter("tokens", "Tokens of language models that turns have used", "agent")

REQUEST_SECONDS = _histogram("request_seconds", "Seconds from the arrival of a request until its reply is stored", "agent")
TURN_SECONDS = _histogram("turn_seconds", "Seconds from the beginning of a turn until its reply is stored", "agent")
DELIVERY_SECONDS = _histogram(
    "delivery_seconds",
    "Seconds from the end of a reply until the server has acknowledged it, for which it is asked within a second",
    "agent",
)

TURNS = _gauge("turns_in_flight", "Conversations with a turn that runs or waits", "agent")
WAITING = _gauge("requests_waiting", "Stored requests that wait for their turn, or for the end of a pause", "agent")
STANZAS_WAITING = _gauge("stanzas_waiting", "Stanzas that are not sent yet", "agent")
STANZAS_UNACKNOWLEDGED = _gauge("stanzas_unacknowledged", "Sent stanzas that the server has not acknowledged", "agent")

ONLINE = _gauge("agent_online", "1 while the agent is online, else 0", "agent")
PAUSED = _gauge("agent_paused", "1 while an operator has paused the agent, else 0", "agent")
SESSIONS = _counter("sessions", "XMPP sessions that the agent has begun", "agent")
RESUMPTIONS = _counter("resumptions", "Lost connections after which the session was resumed", "agent")

CONVERSATIONS_IN_MEMORY = _gauge("conversations_in_memory", "Conversations in memory", "agent")
CONVERSATIONS = _gauge("conversations", "Stored conversations, by state", "agent", "state")
NOTIFICATIONS = _gauge(
    "notifications", "Notifications, by state: those that wait, and the others for seven days", "agent", "state"
)
SCHEDULES = _gauge("schedules", "Schedules, by state", "agent", "state")
QUESTIONS = _gauge("questions_open", "Questions to people that have no answer", "agent")
PARKED = _gauge("requests_parked", "Requests that wait for the answer of a person", "agent")
STORED_COUNTS_AGE = _gauge(
    "stored_counts_age_seconds",
    "Seconds since the database was asked for conversations, notifications, schedules, questions and parked requests",
)

COMMITS = _counter("commits", "Writes to the database, by outcome", "outcome")
TRANSACTIONS = _counter("transactions", "Transactions that wrote to the database; one has the writes of several turns")
WRITES_PENDING = _gauge("writes_pending", "Writes that wait for the next transaction")
STORAGE_FAILING = _gauge("storage_failing", "1 while the database accepts no writes, else 0")

HTTP_RESPONSES = _counter("http_responses", "Answers of the HTTP server of the doors, by status", "code")
HTTP_CONNECTIONS = _gauge("http_connections", "Open connections of the HTTP server of the doors")
HTTP_REFUSED = _counter("http_refused_connections", "Connections that the HTTP server of the doors has refused as one too many")

LOOP_DELAY = _gauge("event_loop_delay_seconds", "Seconds that the event loop took to notice the scrape, or has not yet")

LEASE_SECONDS = _gauge("lease_seconds_left", "Seconds until the lease of this worker ends; only with several workers")
AGENTS_OWNED = _gauge("agents_owned", "Agents that this worker runs; only with several workers")
TAKEOVERS = _counter(
    "takeovers",
    "Agents that this worker has taken over from one that ended or did not reach the XMPP server; only with several workers",
)

GROUPS: dict[str, tuple[MetricDefinition, ...]] = {
    "Requests": (REQUESTS, REFUSALS, FAILURES, REDELIVERIES, DROPPED, REJECTED, ROOM_REFUSALS, TOKENS),
    "Times": (REQUEST_SECONDS, TURN_SECONDS, DELIVERY_SECONDS),
    "Queues": (TURNS, WAITING, STANZAS_WAITING, STANZAS_UNACKNOWLEDGED, WRITES_PENDING),
    "Agents and connections": (ONLINE, PAUSED, SESSIONS, RESUMPTIONS),
    "What is stored": (
        CONVERSATIONS_IN_MEMORY,
        CONVERSATIONS,
        NOTIFICATIONS,
        SCHEDULES,
        QUESTIONS,
        PARKED,
        STORED_COUNTS_AGE,
    ),
    "Storage": (COMMITS, TRANSACTIONS, STORAGE_FAILING),
    "Doors": (HTTP_CONNECTIONS, HTTP_RESPONSES, HTTP_REFUSED),
    "Process and workers": (INFO, LOOP_DELAY, LEASE_SECONDS, AGENTS_OWNED, TAKEOVERS),
}
"""All metrics, by the heading under which the page has them."""
METRICS: tuple[MetricDefinition, ...] = tuple(metric for group in GROUPS.values() for metric in group)

OUTCOMES = {
    "answered": "the agent has replied",
    "command": "a command was answered",
    "failed": "the reply is an error: the agent raised or reported one, or took too long",
    "parked": "the turn has asked a person; the request counts again when it goes on",
    "cancelled": "its sender or an operator has stopped it, or its conversation was deleted",
    "refused": "it was not accepted",
}
REASONS = {
    "access": "the sender has no access",
    "quota": "a [quota](../how-to/quotas.md) is used up",
    "budget": "a [budget](../how-to/guardrails-and-budgets.md) of tokens is used up",
    "queue": "too many requests of the sender wait",
    "interceptor": "an [interceptor](../how-to/interceptors.md) has refused it, or failed",
    "conversation": "the conversation pauses: it has reached its limit, or goes round in circles",
    "deadline": "its sender waits no longer",
    "commands": "too many commands of one sender",
    "hops": "it came through too many agents, or in a circle",
    "deletion": "the data of the person are being deleted",
    "duplicates": "too many repeated requests of one sender",
    "flood": "the sender is ignored for a minute, after too many refusals",
}
REDELIVERY_KINDS = {
    "duplicate": "a request that was received before; it does not run again",
    "recovered": "a stored request without a reply, which runs again after a restart",
    "resent": "a stored reply that is sent again after a restart, or a stanza in a new session",
}
