"""A role that may connect to the database of workers, and nothing else: it ends no worker, and no worker waits for it.

`NOTIFY_SECONDS` lets the floods go on for longer.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import asyncpg
import pytest
from sqlalchemy import make_url

from spade_coreason.exceptions import StoreError
from spade_coreason.storage import (
    CallRepository,
    Database,
    LeaseHandlers,
    LeaseRenewal,
    Leases,
    WorkerTerms,
    open_database,
    review_server,
)
from spade_coreason.storage.workers.mailbox import LEASES_CHANGED, WorkerBell
from tests.support.databases import execute
from tests.support.records import AGENT
from tests.support.servers.postgres import Postgres
from tests.support.wait import TIMEOUT_S, eventually

LEASE_S = 2.0
RENEWALS = 8
"""The renewals that have to come during a flood, or those of NOTIFY_SECONDS."""
_FLOOD = """
import asyncio, sys, asyncpg
async def main():
    connection = await asyncpg.connect(sys.argv[1])
    payloads = ["", "doors", *range(200)]
    statements = "; ".join(f"NOTIFY {channel}, '{payload}'" for channel in sys.argv[2:] for payload in payloads)
    while True:
        await connection.execute(statements)
asyncio.run(main())
"""


@contextmanager
def new_stranger(postgres: Postgres, url: str) -> Iterator[str]:
    """Create a role that may connect to the same server, and yield its URL for the driver."""
    name = f"stranger_{make_url(url).username}"
    postgres.run(f"CREATE ROLE {name} LOGIN PASSWORD 'x'")
    yield make_url(url).set(drivername="postgresql", username=name, password="x").render_as_string(hide_password=False)


@asynccontextmanager
async def open_worker(url: str, name: str, lease_s: float = LEASE_S) -> AsyncIterator[Database]:
    database = await open_database(url, "off", terms=WorkerTerms(name, lease_s))
    try:
        yield database
    finally:
        await database.close()


class RenewedWorker:
    """A worker whose lease is renewed, with the times that it was told to look."""

    def __init__(self, database: Database) -> None:
        assert database.worker_id is not None
        self.renewed = 0
        self.told = 0
        self.lost: list[str] = []
        handlers = LeaseHandlers(self._count, lambda: None, lambda: None, self.lost.append, self._note)
        self.renewal = LeaseRenewal(database, database.worker_id, WorkerTerms("one", LEASE_S), handlers, TIMEOUT_S)

    def _count(self) -> None:
        self.renewed += 1

    def _note(self, message: str) -> None:
        self.told += 1


@asynccontextmanager
async def renew(database: Database) -> AsyncIterator[RenewedWorker]:
    worker = RenewedWorker(database)
    worker.renewal.start()
    await eventually(lambda: database.backend.bell.is_open and worker.renewed > 0)
    try:
        yield worker
    finally:
        await worker.renewal.stop()


@contextmanager
def flood(url: str, *channels: str) -> Iterator[None]:
    """Send notifications from two processes, as fast as they go."""
    command = [sys.executable, "-c", _FLOOD, url, *channels]
    floods = [subprocess.Popen(command) for _ in range(2)]
    try:
        yield
    finally:
        for process in floods:
            process.kill()
            process.wait()


@asynccontextmanager
async def pretend_to_be_alone(stranger: str, url: str) -> AsyncIterator[None]:
    """Hold a session that is named like that of a platform with the database to itself."""
    [schema] = execute(url, "SELECT hashtext(current_schema()::text) AS hash")
    connection: Any = await asyncpg.connect(stranger)
    try:
        await connection.execute(f"SET application_name = 'spade-coreason alone 0 in {schema['hash']}'")
        yield
    finally:
        connection.terminate()


async def test_a_stranger_with_the_name_of_a_platform_keeps_none_from_its_start(postgres: Postgres) -> None:
    url = postgres.url()
    with new_stranger(postgres, url) as stranger:
        async with pretend_to_be_alone(stranger, url):
            await (await open_database(url, "off")).close()  # it creates the tables
            async with open_worker(url, "one", 3600) as one, open_worker(url, "two", 3600) as two:
                with pytest.raises(StoreError, match="another platform uses this database"):
                    await open_database(url, "off")
                async with asyncio.timeout(TIMEOUT_S), two.backend.alone():
                    leases = Leases(one)
                    await leases.add_agents([AGENT])
                    assert await leases.change(lambda state: [AGENT]) == ([AGENT], [])
            await (await open_database(url, "off")).close()


async def test_two_processes_are_never_alone_at_once(postgres: Postgres) -> None:
    url = postgres.url()
    async with open_worker(url, "one") as one, open_worker(url, "two") as two:
        inside = 0

        async def enter(database: Database) -> None:
            nonlocal inside
            async with database.backend.alone():
                inside += 1
                await asyncio.sleep(0)
                assert inside == 1
                inside -= 1

        await asyncio.gather(*(enter(database) for database in (one, two)))


async def test_a_flood_of_a_stranger_does_not_reach_workers(postgres: Postgres) -> None:
    """40,000 notifications a second came on the connection that renews the lease, and ended each worker."""
    url = postgres.url()
    renewals = int(float(os.environ["NOTIFY_SECONDS"]) * 4 / LEASE_S) if "NOTIFY_SECONDS" in os.environ else RENEWALS
    with new_stranger(postgres, url) as stranger:
        async with open_worker(url, "one") as one, open_worker(url, "two") as two, renew(one) as worker, renew(two) as other:
            told, last, rung = worker.told, 0, 0
            with flood(stranger, "spade_coreason_leases", "spade_coreason_calls"):
                while worker.renewed < last + renewals or not rung:
                    last = last or worker.renewed
                    assert isinstance(two.backend.bell, WorkerBell)
                    CallRepository(two).wake_doors()  # what workers tell each other still comes
                    rung = worker.told - told
                    await asyncio.sleep(0.05)
            assert worker.lost == other.lost == []
            assert one.backend.bell.is_open
            assert two.backend.bell.is_open


async def test_a_bell_whose_channel_is_known_is_closed_and_the_worker_looks_by_itself(
    postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    url = postgres.url()
    with new_stranger(postgres, url) as stranger:
        async with open_worker(url, "one") as one, open_worker(url, "two") as two, renew(one) as worker:
            [row] = execute(url, "SELECT channel FROM workers WHERE name = 'one'")
            with flood(stranger, row["channel"]):
                await eventually(lambda: not one.backend.bell.is_open)
                renewed, told = worker.renewed, worker.told
                await eventually(lambda: worker.renewed > renewed + 2 and worker.told > told + 2)
            assert "more than 1000 notifications came in a second" in caplog.text
            assert worker.lost == []
            assert await Leases(two).read()


async def test_each_connection_of_a_bell_has_another_channel(postgres: Postgres) -> None:
    url = postgres.url()
    channels = "SELECT channel FROM workers"
    async with open_worker(url, "one") as one, renew(one) as worker:
        [first] = execute(url, channels)
        told = worker.told
        execute(url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'spade-coreason mailbox'")
        await eventually(lambda: execute(url, channels) != [first] and one.backend.bell.is_open and worker.told > told)
        one.backend.bell.ring("", LEASES_CHANGED)


async def test_who_may_connect_to_the_database_is_said(postgres: Postgres) -> None:
    url = postgres.second_url(postgres.url())
    revoke = f"REVOKE CONNECT ON DATABASE {make_url(url).database} FROM PUBLIC"
    found = await review_server(url)
    assert found is not None
    assert found.endswith(f"; run: {revoke}")
    postgres.run(revoke)
    assert await review_server(url) is None
