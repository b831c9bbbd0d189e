"""What a look at the leases costs a worker: `python -m benchmarks.leases [AGENTS…]`.

Each worker looks once in a quarter of `workers.lease_s`. It reads the leases of all agents, and decides what each worker would
take and give back. This measures the CPU of that, with eight workers, and the longest hold of its event loop.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from spade_coreason.app.workers.shares import group_agents
from spade_coreason.app.workers.workforce import Workforce
from spade_coreason.runtime import tune_gc
from spade_coreason.storage import Database, LeaseHandlers, LeaseRenewal, Leases, LeaseState, WorkerTerms, open_database
from tests.support.databases import execute
from tests.support.servers.postgres import postgres

from .opening import measure_hold

SIZES = (1_000, 10_000, 100_000)
WORKERS = 8
TIMES = 5
LOOK_S = 1.25
"""The time between two looks with the default lease."""


@dataclass(frozen=True)
class Look:
    """The CPU of a look and the longest hold of the event loop, both in ms of CPU, with so many agents."""

    agents: int
    cpu_ms: float
    longest_ms: float

    def __str__(self) -> str:
        share = self.cpu_ms / LOOK_S / 10
        return (
            f"{self.agents:,} agents: {self.cpu_ms:.1f} ms of CPU a look, {share:.1f} % of a core, the longest hold"
            f" {self.longest_ms:.1f} ms"
        )


class Serving:
    """The agents of a worker that only knows their names."""

    def __init__(self, agents: Sequence[str]) -> None:
        self._agents = agents

    def list_agents(self) -> Sequence[str]:
        """Return the agents that it serves."""
        return self._agents

    def list_unable(self) -> Sequence[str]:
        return ()

    def is_busy(self, agent: str) -> bool:
        """Return False: no turn runs."""
        return False

    async def note(self, state: LeaseState) -> None:
        """Do nothing."""

    async def take(self, agents: Sequence[str]) -> None:
        """Refuse it: the shares are equal."""
        raise AssertionError(agents)

    async def give_back(self, agent: str, *, reaches_server: bool = True) -> Sequence[int]:
        """Refuse it: the shares are equal."""
        raise AssertionError(agent)


async def measure(url: str, agents: int) -> Look:
    """Measure looks in the empty database at `url`."""
    terms = WorkerTerms("one", lease_s=3600.0)
    async with AsyncExitStack() as stack:
        databases = []
        for _ in range(WORKERS):
            databases.append(await open_database(url, "off", terms=terms))
            stack.push_async_callback(databases[-1].close)
        return await _measure_looks(databases[0], url, terms, agents)


async def _measure_looks(database: Database, url: str, terms: WorkerTerms, agents: int) -> Look:
    await asyncio.to_thread(_fill, url, agents)
    leases = Leases(database)
    state = await leases.read()
    own = [agent for agent, lease in state.leases.items() if lease.worker == leases.worker]
    handlers = LeaseHandlers(lambda: None, lambda: None, lambda: None, lambda reason: None)
    renewal = LeaseRenewal(database, leases.worker, terms, handlers, blocked_s=75.0)
    workforce = Workforce(leases, renewal, group_agents(state.leases, ()), Serving(own))
    await workforce.look()
    del state
    tune_gc()  # as `up` does
    times, holds = [], []
    for _ in range(TIMES):
        begin = time.process_time()
        await workforce.look()
        times.append((time.process_time() - begin) * 1000)
        holds.append((await measure_hold("a look", workforce.look())).longest_cpu_ms)
    return Look(agents, statistics.median(times), statistics.median(holds))


def _fill(url: str, agents: int) -> None:
    """Divide agents among the workers."""
    execute(
        url,
        "INSERT INTO leases (agent, worker, changed_at, reason, was_handed_over) SELECT 'agent' || n || '@example.org',"
        f" (SELECT id FROM workers ORDER BY id OFFSET n % {WORKERS} LIMIT 1), 1, 'its share', false"
        f" FROM generate_series(1, {agents}) AS n",
    )


def main(*sizes: int) -> None:
    """Print what a look costs."""
    with postgres() as server:
        for agents in sizes or SIZES:
            print(asyncio.run(measure(server.url(), agents)), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
