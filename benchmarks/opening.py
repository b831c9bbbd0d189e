"""What an agent's opening and a new connection cost on PostgreSQL, when the inbox of all agents is large.

`python -m benchmarks.opening [ROWS]` fills the inbox of 300 agents, a million rows by default, and prints both. The longest
hold is the longest time for which the event loop did nothing else. Its CPU is the time in which its thread ran. On a busy
machine other programs run in the rest.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import UTC, datetime

from spade_coreason.runtime import tune_gc
from spade_coreason.storage import AgentRepository, open_database
from tests.support.databases import execute
from tests.support.servers.postgres import postgres

AGENTS = 300
ROWS = 1_000_000
_END_CONNECTIONS = (
    "DO $$ BEGIN PERFORM pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE usename = current_user AND pid <> pg_backend_pid(); END $$"
)


@dataclass(frozen=True)
class Hold:
    """The milliseconds of one step, and of the longest hold of the event loop during it, also as CPU of its thread."""

    name: str
    took_ms: float
    longest_ms: float
    longest_cpu_ms: float

    def __str__(self) -> str:
        longest = f"the longest hold {self.longest_ms:.1f} ms ({self.longest_cpu_ms:.1f} ms of CPU)"
        return f"{self.name}: {self.took_ms:.1f} ms, {longest}"


async def measure_hold(name: str, work: Awaitable[object]) -> Hold:
    """Await `work`, and measure it."""
    longest_s, longest_cpu_s, is_done = 0.0, 0.0, False

    async def watch() -> None:
        nonlocal longest_s, longest_cpu_s
        while not is_done:
            began_at, cpu_s = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.perf_counter() - began_at)
            longest_cpu_s = max(longest_cpu_s, time.thread_time() - cpu_s)

    watching = asyncio.create_task(watch())
    began_at = time.perf_counter()
    await work
    took_s, is_done = time.perf_counter() - began_at, True
    await watching
    return Hold(name, took_s * 1000, longest_s * 1000, longest_cpu_s * 1000)


async def measure(url: str, rows: int) -> list[Hold]:
    """Measure in the empty database at `url`. The last two steps are new connections.

    Before the first, another worker has taken row ids. Before the second, it has also stored as many rows again, for agents
    that are served here: all are read.
    """
    await (await open_database(url, "off")).close()
    _fill(url, 1, rows)
    database = await open_database(url, "off")
    repositories = [AgentRepository(database, f"agent{number}@localhost") for number in range(AGENTS)]
    tune_gc()  # as `up` does
    holds = []
    for name, opened in (("one agent", repositories[:1]), ("the others, one after another", repositories[1:])):

        async def open_all(repositories: list[AgentRepository] = opened) -> None:
            for repository in repositories:
                await repository.inbox.open()

        holds.append(await measure_hold(name, open_all()))

    async def write(key: bytes) -> None:
        await repositories[0].inbox.flush().wait()
        await repositories[0].inbox.receive(key, "alice@localhost", "{}", datetime.now(UTC))[1]

    for name, is_filled in (("a new connection", False), (f"a new connection, with {rows:,} rows of another worker", True)):
        await asyncio.to_thread(execute, url, "UPDATE sequences SET next_id = next_id + 1000")
        if is_filled:
            [sequence] = await asyncio.to_thread(execute, url, "SELECT next_id FROM sequences")
            await asyncio.to_thread(_fill, url, sequence["next_id"], rows)
        await asyncio.to_thread(execute, url, _END_CONNECTIONS)
        holds.append(await measure_hold(name, write(name.encode()[-16:])))
    await database.close()
    return holds


def _fill(url: str, first: int, rows: int) -> None:
    """Store closed requests with the ids from `first` on, as another process would."""
    execute(
        url,
        "INSERT INTO inbox (id, agent, key, sender, received_at, state)"
        f" SELECT n, 'agent' || n % {AGENTS} || '@localhost', decode(md5(n::text), 'hex'), 'alice@localhost', 1, 2"
        f" FROM generate_series({first}, {first + rows - 1}) AS n",
    )
    execute(url, f"UPDATE sequences SET next_id = {first + rows}")
    execute(url, "ANALYZE inbox")


def main(rows: int = ROWS) -> None:
    """Print what opening costs."""
    with postgres() as server:
        print(f"{rows:,} rows of {AGENTS} agents")
        for hold in asyncio.run(measure(server.url(), rows)):
            print(hold)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
