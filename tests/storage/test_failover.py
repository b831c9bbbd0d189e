"""A standby takes the place of PostgreSQL at the same address: writes, reads and the lease go on at the new server.

With workers and people: `tests/chaos/test_workers.py`.
"""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import Connection, text

from spade_coreason.exceptions import DatabaseUnreachableError, StoreError
from spade_coreason.storage import (
    AgentRepository,
    Database,
    LeaseHandlers,
    LeaseRenewal,
    StoreTimings,
    WorkerTerms,
    open_database,
)
from tests.chaos.worker_run import FAILOVERS
from tests.support.errors import ExpectedErrors
from tests.support.hosting import Tunnel
from tests.support.records import AGENT, open_repository, receive_request
from tests.support.servers.postgres import Postgres, standby_of
from tests.support.wait import TIMEOUT_S, eventually

LEASE_S = 8.0


def renew(database: Database, lost: list[str]) -> LeaseRenewal:
    assert database.worker_id is not None
    handlers = LeaseHandlers(lambda: None, lambda: None, lambda: None, lost.append)
    return LeaseRenewal(database, database.worker_id, WorkerTerms("one", LEASE_S), handlers, 3600)


async def receive_when_possible(repository: AgentRepository) -> int:
    """Store a request as soon as the database takes it. Return its row."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                return await receive_request(repository)
            except StoreError:
                await asyncio.sleep(0.05)


def list_requests(connection: Connection) -> list[int]:
    return list(connection.scalars(text("SELECT id FROM inbox ORDER BY id")))


def read_server(connection: Connection) -> str:
    return str(connection.scalar(text("SELECT pg_postmaster_start_time()::text")))


@pytest.mark.parametrize("name", FAILOVERS)
async def test_all_connections_follow_to_the_server_that_takes_writes(
    own_postgres: Postgres, name: str, expected_errors: ExpectedErrors
) -> None:
    """The lease was renewed at the new server, and nothing was stored, until a restart."""
    expected_errors.allowed.append("retrying every 0.2 s")  # a frozen server refuses nothing
    lost: list[str] = []
    async with Tunnel(own_postgres) as tunnel:
        url = own_postgres.url().replace(f":{own_postgres.port}/", f":{tunnel.port}/")
        database = await open_database(url, terms=WorkerTerms("one", LEASE_S), timings=StoreTimings(retry_s=0.2))
        renewal = renew(database, lost)
        renewal.start()
        repository = await open_repository(database, AGENT)
        before = [await receive_request(repository)]
        old = await database.read(read_server)
        reading = asyncio.create_task(database.read(lambda connection: connection.execute(text("SELECT pg_sleep(3600)"))))
        with standby_of(own_postgres) as standby:
            await asyncio.to_thread(FAILOVERS[name], own_postgres)
            tunnel.target = standby  # open connections stay with the other server
            writing = asyncio.create_task(receive_when_possible(repository))
            await eventually(lambda: database.writes.is_failing or name == "failover, frozen")
            await asyncio.to_thread(standby.promote)
            after = [*before, await writing]
            assert await database.read(list_requests) == after
            new = await database.read(read_server)
            assert new != old
            assert await database.write(read_server) == new
            await eventually(lambda: renewal.seconds_left > LEASE_S / 2)
            await eventually(lambda: database.backend.bell.is_open)
            reading.cancel()  # it has failed, or has begun anew at the new server
            await asyncio.gather(reading, return_exceptions=True)
            await renewal.stop()
            await database.close()
    assert lost == []


async def test_a_start_at_a_standby_is_refused_with_the_reason(own_postgres: Postgres) -> None:
    url = own_postgres.url()
    await (await open_database(url)).close()
    with standby_of(own_postgres) as standby:
        there = url.replace(f":{own_postgres.port}/", f":{standby.port}/")
        with pytest.raises(DatabaseUnreachableError, match="the address leads to a standby, or to a server that is read-only"):
            await open_database(there)
        reader = await open_database(there, is_read_only=True)
        assert await reader.read(list_requests) == []
        await reader.close()
