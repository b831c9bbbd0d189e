"""A platform that loses its network, on a loopback interface of its own: `unshare --net python -m tests.support.lost_network`.

PostgreSQL is watched by its Unix socket meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from typing import Any

from sqlalchemy import text

from spade_coreason.storage import open_database
from spade_coreason.storage.backends.group_commit import StoreTimings
from tests.support.databases import execute
from tests.support.servers.postgres import USER, postgres
from tests.support.wait import eventually


def set_loopback(state: str) -> None:
    subprocess.run(["ip", "link", "set", "lo", state], check=True)


async def main() -> None:
    set_loopback("up")
    with postgres() as server:
        own = f"postgresql+asyncpg://{USER}@/postgres?host={server.directory}&port={server.port}"

        def find_clients(condition: str = "true") -> list[dict[str, Any]]:
            """Return the connections over the network."""
            return execute(own, f"SELECT 1 FROM pg_stat_activity WHERE client_port > 0 AND {condition}")

        url = server.url()
        database = await open_database(url, "off", timings=StoreTimings(lost_client_timeout_s=2.0))
        reading = asyncio.create_task(database.read(lambda connection: connection.execute(text("SELECT pg_sleep(1)"))))
        await eventually(lambda: bool(find_clients("state = 'active'")))
        print(len(find_clients()), "connections", flush=True)  # one is idle, and one is about to send an answer
        set_loopback("down")
        await eventually(lambda: not find_clients())
        set_loopback("up")
        await (await open_database(url, "off")).close()
        print("taken over", flush=True)
        reading.cancel()
    os._exit(0)  # the connections of the lost platform are dead


if __name__ == "__main__":
    asyncio.run(main())
