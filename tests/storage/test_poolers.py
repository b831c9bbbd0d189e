"""A pooler in front of PostgreSQL: its pool mode `session` keeps all settings, and the others are refused with the reason."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from sqlalchemy import Connection, text

from spade_coreason.exceptions import StoreError
from spade_coreason.storage import StoreTimings, WorkerTerms, open_database, review_server
from spade_coreason.storage.backends.database import Database
from tests.support.records import AGENT, open_repository, receive_request
from tests.support.servers import pgbouncer
from tests.support.servers.postgres import Postgres
from tests.support.servers.requirements import require
from tests.support.wait import eventually

SETTINGS = {
    "synchronous_commit": "off",
    "jit": "off",
    "lock_timeout": "7s",
    "idle_in_transaction_session_timeout": "8s",
    "tcp_user_timeout": "9000",
}


def read_settings(connection: Connection) -> dict[str, str]:
    return {name: str(connection.execute(text(f"SHOW {name}")).scalar_one()) for name in SETTINGS}


async def test_sessions_of_a_pooler_have_the_settings_of_the_platform(postgres: Postgres) -> None:
    """pgbouncer refuses most of them as parameters of the start, or ignores them if it is told so."""
    require("pgbouncer", pgbouncer.installed())
    url = postgres.url()
    timings = StoreTimings(lock_timeout_s=7.0, idle_transaction_timeout_s=8.0, lost_client_timeout_s=9.0)
    with pgbouncer.pgbouncer(postgres, url, "session") as pooled:
        for name in ("one", "two"):  # the second one gets the server connections of the first
            database = await open_database(pooled, "normal", timings=timings, terms=WorkerTerms(name, 3600))
            assert await database.read(read_settings) == SETTINGS
            assert await database.write(read_settings) == SETTINGS
            await receive_request(await open_repository(database, AGENT))
            await eventually(lambda each=database: each.backend.bell.is_open)  # type: ignore[misc]  # mypy knows no defaults of lambdas
            await database.close()
        alone = await open_database(pooled, "normal", timings=timings)
        with pytest.raises(StoreError, match="another platform uses this database"):
            await open_database(url)
        await alone.close()
        await (await open_database(url)).close()  # no connection that the pooler keeps has the lock


def open_alone(url: str) -> Awaitable[Database]:
    return open_database(url)


def open_worker(url: str) -> Awaitable[Database]:
    return open_database(url, terms=WorkerTerms("one", 3600))


@pytest.mark.parametrize("pool_mode", ["transaction", "statement"])
@pytest.mark.parametrize("start", [open_alone, open_worker, review_server])
async def test_a_pooler_without_sessions_is_refused_with_the_reason(
    postgres: Postgres, pool_mode: str, start: Callable[[str], Awaitable[object]]
) -> None:
    require("pgbouncer", pgbouncer.installed())
    reasons = {"transaction": "a pooler gives the connection to others between transactions", "statement": "statement pooling"}
    with pgbouncer.pgbouncer(postgres, postgres.url(), pool_mode) as pooled:
        for _ in range(2):
            with pytest.raises(StoreError, match=reasons[pool_mode]) as refused:
                await start(pooled)
            assert "\n" not in str(refused.value)
