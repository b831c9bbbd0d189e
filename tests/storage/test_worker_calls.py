"""Calls between workers in the database."""

from __future__ import annotations

import asyncio

from spade_coreason.storage import CallRepository, Leases, WorkerTerms, open_database
from tests.support.databases import execute
from tests.support.records import AGENT
from tests.support.servers.postgres import Postgres
from tests.support.wait import TIMEOUT_S, eventually


async def test_a_worker_that_is_being_removed_is_not_asked(postgres: Postgres) -> None:
    import asyncpg

    url = postgres.url()
    caller, asked = [await open_database(url, "off", terms=WorkerTerms(name, 3600)) for name in ("caller", "asked")]
    calls, worker = CallRepository(caller), Leases(asked).worker
    await Leases(asked).add_agents([AGENT])
    await Leases(asked).change(lambda state: [AGENT])
    assert await calls.ask_agent(calls.row_ids.next(), AGENT, "method", "[]") == worker
    other = await asyncpg.connect(url.replace("+asyncpg", ""))
    removal = other.transaction()
    await removal.start()
    await other.execute("DELETE FROM workers WHERE id = $1", worker)

    asking = asyncio.create_task(calls.ask_agent(calls.row_ids.next(), AGENT, "method", "[]"))
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name LIKE 'spade-coreason%'"
    await eventually(lambda: execute(url, waiting) != [])
    await removal.commit()
    assert await asyncio.wait_for(asking, TIMEOUT_S) is None
    assert await calls.ask_worker(calls.row_ids.next(), worker, "method", "[]") is None
    assert execute(url, "SELECT id FROM worker_calls") == []
    await other.close()
    await asyncio.gather(caller.close(), asked.close())
