"""What an agent's opening and a new connection cost on PostgreSQL, when the inbox of all agents is large.

`python -m benchmarks.opening [ROWS]` fills the inbox of 300 agents, a million rows by default, and prints both. The longest
hold is the longest time for which the event loop did nothing else.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable
from datetime import UTC, datetime

from spade_coreason.storage import AgentRepository, open_database
from tests.support.databases import execute
from tests.support.servers.postgres import postgres

AGENTS = 300
_END_CONNECTIONS = (
    "DO $$ BEGIN PERFORM pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE usename = current_user AND pid <> pg_backend_pid(); END $$"
)


async def measure_longest_hold(work: Awaitable[object]) -> tuple[float, float]:
    """Await `work`. Return the time that it took and the longest hold of the event loop, both in milliseconds."""
    longest_s, is_done = 0.0, False

    async def watch() -> None:
        nonlocal longest_s
        while not is_done:
            began_at = time.perf_counter()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.perf_counter() - began_at)

    watching = asyncio.create_task(watch())
    began_at = time.perf_counter()
    await work
    took_s, is_done = time.perf_counter() - began_at, True
    await watching
    return took_s * 1000, longest_s * 1000


async def measure(url: str, rows: int) -> list[str]:
    """Return the lines to print, measured in the empty database at `url`."""
    await (await open_database(url, "off")).close()
    execute(
        url,
        "INSERT INTO inbox (id, agent, key, sender, received_at, state)"
        f" SELECT n, 'agent' || n % {AGENTS} || '@localhost', decode(md5(n::text), 'hex'), 'alice@localhost', 1, 2"
        f" FROM generate_series(1, {rows}) AS n",
    )
    execute(url, f"UPDATE sequences SET next_id = {rows + 1}")
    execute(url, "ANALYZE inbox")
    database = await open_database(url, "off")
    repositories = [AgentRepository(database, f"agent{number}@localhost") for number in range(AGENTS)]
    lines = []
    for name, opened in (("one agent", repositories[:1]), ("the others, one after another", repositories[1:])):

        async def open_all(repositories: list[AgentRepository] = opened) -> None:
            for repository in repositories:
                await repository.inbox.open()

        lines.append("{}: {:.1f} ms, the longest hold {:.1f} ms".format(name, *await measure_longest_hold(open_all())))
    await asyncio.to_thread(execute, url, _END_CONNECTIONS)

    async def write() -> None:
        await repositories[0].inbox.flush().wait()
        await repositories[0].inbox.receive(b"k" * 16, "alice@localhost", "{}", datetime.now(UTC))[1]

    lines.append("a new connection: {:.1f} ms, the longest hold {:.1f} ms".format(*await measure_longest_hold(write())))
    await database.close()
    return lines


def main(rows: int = 1_000_000) -> None:
    """Print what opening costs."""
    with postgres() as server:
        print(f"{rows:,} rows of {AGENTS} agents")
        for line in asyncio.run(measure(server.url(), rows)):
            print(line)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
