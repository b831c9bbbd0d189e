"""The collector: at each scrape it reads what the parts of a platform have counted. All methods run in the thread of a scrape.

What it reads are integers, and copies of dictionaries that are made in one step. So the event loop need not wait for it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ..._version import __version__
from ...contracts import QuestionState
from ...runtime import HISTOGRAM_LIMITS_S, Histogram
from ...storage import Database
from . import definitions as m
from .stored_figures import StoredFigures

if TYPE_CHECKING:
    from ...doors import WebServer
    from ...xmpp import HostedAgent

_DROPPED_AS_REFUSED = {"not admitted": "access", "too many refused": "flood"}
"""The reasons of the gateway that mean a refusal."""
_FAMILIES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}


class LeaseFigures(NamedTuple):
    """The lease of a worker that shares the agents with others."""

    seconds_left: float
    """The seconds until it ends, unless it is renewed."""
    agents_owned: int
    """The number of agents that this worker runs."""
    takeovers: int
    """The number of agents that it has taken over since its start, from others that ended or did not reach the server."""


class MetricsCollector(Collector):
    """Reads the metrics of a platform.

    `jids` are the configured agents, and `agents` those that were built, by bare JID. `find_web` returns the HTTP server of the
    doors; None without one. `find_lease` returns the lease of this worker; None if there are no other workers.
    """

    def __init__(
        self,
        jids: Sequence[str],
        agents: Mapping[str, HostedAgent],
        database: Database,
        stored: StoredFigures,
        find_web: Callable[[], WebServer | None],
        find_lease: Callable[[], LeaseFigures] | None = None,
    ) -> None:
        self._jids = jids
        self._agents = agents
        self._database = database
        self._stored = stored
        self._find_web = find_web
        self._find_lease = find_lease

    def describe(self) -> Iterable[Metric]:
        """Return all metrics without values, so that a scrape can ask for some by name."""
        return _Families().all

    def collect(self) -> Iterator[Metric]:
        """Read all metrics now, and yield those with values."""
        self._stored.refresh()
        families = _Families()
        families.add(m.INFO, 1, __version__)
        families.add(m.LOOP_DELAY, self._stored.loop_delay_s)
        for jid in self._jids:
            host = self._agents.get(jid)
            families.add(m.ONLINE, host is not None and host.is_alive(), jid)
            if host is not None:
                _add_requests(families, jid, host)
                _add_connection(families, jid, host)
        self._add_stored(families)
        _add_database(families, self._database)
        if (web := self._find_web()) is not None:
            _add_web(families, web)
        if self._find_lease is not None:
            lease = self._find_lease()
            families.add(m.LEASE_SECONDS, lease.seconds_left)
            families.add(m.AGENTS_OWNED, lease.agents_owned)
            families.add(m.TAKEOVERS, lease.takeovers)
        return (family for family in families.all if family.samples)

    def _add_stored(self, families: _Families) -> None:
        counts = self._stored.counts
        if counts is None:
            return
        jids = frozenset(self._jids)
        for metric, table in (
            (m.CONVERSATIONS, "conversations"),
            (m.NOTIFICATIONS, "notifications"),
            (m.SCHEDULES, "schedules"),
        ):
            for (agent, state), number in counts[table].items():
                if agent in jids:
                    families.add(metric, number, agent, state)
        for jid in self._jids:
            families.add(m.QUESTIONS, counts["questions"].get((jid, QuestionState.OPEN), 0), jid)
            families.add(m.PARKED, counts["parked_requests"].get((jid, jid), 0), jid)
        families.add(m.STORED_COUNTS_AGE, time.monotonic() - self._stored.counted_at_s)


class _Families:
    """The metrics of one scrape."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {
            metric.name: _FAMILIES[metric.kind](metric.name, metric.meaning, labels=metric.labels) for metric in m.METRICS
        }

    @property
    def all(self) -> Iterable[Metric]:
        return self._families.values()

    def add(self, metric: m.MetricDefinition, value: float, *labels: str) -> None:
        """Add a value of a counter or gauge."""
        family = self._families[metric.name]
        assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
        family.add_metric(labels, value)

    def add_all(self, metric: m.MetricDefinition, jid: str, values: Mapping[str, int]) -> None:
        """Add the values of an agent, by the second label."""
        for label, value in values.items():
            self.add(metric, value, jid, label)

    def add_histogram(self, metric: m.MetricDefinition, histogram: Histogram, jid: str) -> None:
        """Add the durations of an agent."""
        family = self._families[metric.name]
        assert isinstance(family, HistogramMetricFamily)
        sum_s, counts = histogram.sum_s, list(histogram.counts)
        limits = (*map(str, HISTOGRAM_LIMITS_S), "+Inf")
        family.add_metric((jid,), list(zip(limits, accumulate(counts), strict=True)), sum_s)


def _add_requests(families: _Families, jid: str, host: HostedAgent) -> None:
    runner, gateway = host.runtime.runner, host.runtime.gateway
    metrics, dropped = runner.metrics, dict(gateway.dropped)
    refusals: dict[str, int] = dict.fromkeys(m.REASONS, 0) | dict(metrics.refusals)
    for reason, refusal in _DROPPED_AS_REFUSED.items():
        refusals[refusal] += dropped.pop(reason, 0)
    outcomes: dict[str, int] = dict.fromkeys(m.OUTCOMES, 0) | dict(metrics.outcomes)
    families.add_all(m.REQUESTS, jid, outcomes | {"refused": sum(refusals.values())})
    families.add_all(m.REFUSALS, jid, refusals)
    families.add(m.FAILURES, metrics.failures, jid)
    redeliveries: dict[str, int] = dict.fromkeys(m.REDELIVERY_KINDS, 0) | dict(metrics.redeliveries)
    redeliveries["resent"] += host.connection.send_queue.resent_count
    families.add_all(m.REDELIVERIES, jid, redeliveries)
    families.add_all(m.DROPPED, jid, Counter(dropped) + Counter(host.room_messages.dropped))
    families.add_all(m.REJECTED, jid, dict(host.connection.rejected))
    families.add(m.ROOM_REFUSALS, sum(dict(host.rooms.refused).values()), jid)
    families.add(m.TOKENS, host.runtime.parts.usage.tokens_since_start, jid)
    if (latencies := metrics.latencies) is not None:
        families.add_histogram(m.REQUEST_SECONDS, latencies.requests, jid)
        families.add_histogram(m.TURN_SECONDS, latencies.turns, jid)
        families.add_histogram(m.DELIVERY_SECONDS, latencies.deliveries, jid)
    families.add(m.TURNS, runner.mailboxes.busy_count, jid)
    families.add(m.WAITING, runner.mailboxes.waiting_count, jid)
    families.add(m.CONVERSATIONS_IN_MEMORY, len(runner.mailboxes.conversations), jid)
    families.add(m.PAUSED, runner.control.is_paused, jid)


def _add_connection(families: _Families, jid: str, host: HostedAgent) -> None:
    connection = host.connection
    families.add(m.STANZAS_WAITING, connection.send_queue.waiting_count, jid)
    families.add(m.STANZAS_UNACKNOWLEDGED, connection.send_queue.unacknowledged_count, jid)
    families.add(m.SESSIONS, connection.session_count, jid)
    families.add(m.RESUMPTIONS, connection.resumption_count, jid)


def _add_database(families: _Families, database: Database) -> None:
    families.add(m.COMMITS, database.writes.stored_count, "stored")
    families.add(m.COMMITS, database.writes.failed_count, "failed")
    families.add(m.TRANSACTIONS, database.writes.transaction_count)
    families.add(m.WRITES_PENDING, database.writes.pending_count)
    families.add(m.STORAGE_FAILING, database.writes.is_failing)


def _add_web(families: _Families, web: WebServer) -> None:
    families.add(m.HTTP_CONNECTIONS, web.connections)
    families.add(m.HTTP_REFUSED, web.refused_connections)
    for status, number in dict(web.responses).items():
        families.add(m.HTTP_RESPONSES, number, str(status))
