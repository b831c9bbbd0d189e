"""The metrics of the lease of each worker, scraped by HTTP."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from spade_coreason.xmpp.servers.process import find_free_ports
from tests.app.test_metrics import scrape_until
from tests.support.servers.postgres import Postgres
from tests.support.servers.server import XmppServer
from tests.support.workers import run_workers

LEASE_S = 3


async def test_each_worker_shows_its_lease_its_agents_and_what_it_has_taken_over(
    prosody: XmppServer, postgres: Postgres, tmp_path: Path
) -> None:
    async def wait_for_values(address: str, owned: int, takeovers: int) -> None:
        scraped = await scrape_until(
            address,
            lambda found: (
                (found("agents_owned"), found("takeovers_total")) == (owned, takeovers)
                and sum(found("agent_online", agent=agent) or 0 for agent in workers.agents) == owned
            ),
        )
        assert 0 < (scraped("lease_seconds_left") or 0) <= LEASE_S

    async with run_workers(prosody, postgres, tmp_path, agents=3, lease_s=LEASE_S) as workers:
        first_address, second_address = (f"127.0.0.1:{port}" for port in find_free_ports(2))
        one = workers.configure("one", metrics={"listen": first_address})
        other = workers.configure("other", metrics={"listen": second_address})
        first = await workers.start(one)
        await wait_for_values(first_address, 3, 0)
        await workers.start(other)
        await workers.wait_for(1, 2)
        # An agent that is given because a worker has room is not taken over.
        await asyncio.gather(
            wait_for_values(first_address, 2, 0),
            wait_for_values(second_address, 1, 0),
        )
        await first.signal(signal.SIGKILL)
        await wait_for_values(second_address, 3, 2)
        third = await workers.start(one)
        await wait_for_values(first_address, 1, 0)
        assert await third.signal(signal.SIGTERM) == 0
        await wait_for_values(second_address, 3, 3)
