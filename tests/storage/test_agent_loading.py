"""The reads of a database when an agent opens, and when a connection is replaced."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime

import pytest
from sqlalchemy import Connection, text

from spade_coreason import StoreError
from spade_coreason.storage import AgentRepository, open_database
from spade_coreason.storage.backends.database import Database
from spade_coreason.storage.backends.dialect_sql import has_any
from spade_coreason.storage.backends.group_commit import StoreTimings
from spade_coreason.storage.backends.inbox_index import INBOX_PAGE_ROWS, select_inbox_rows
from spade_coreason.storage.records import StoredStep
from spade_coreason.storage.schema import inbox
from tests.support.databases import CLOSED, SAME_STANZA, SQLITE, execute, on_both_databases
from tests.support.errors import ExpectedErrors
from tests.support.records import open_repository
from tests.support.servers.postgres import Postgres
from tests.support.wait import eventually

ALICE = "alice@localhost"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
AGENTS, ROWS = 40, 40_000


def agent(number: int) -> str:
    return f"agent{number}@localhost"


def fill_inbox(url: str, rows: int, first: int = 1) -> None:
    """Store closed requests of `AGENTS` agents in turn. Their keys are the md5 of their row ids."""
    execute(
        url,
        "INSERT INTO inbox (id, agent, key, sender, received_at, state)"
        f" SELECT n, 'agent' || n % {AGENTS} || '@localhost', decode(md5(n::text), 'hex'), '{ALICE}', 1, {CLOSED}"
        f" FROM generate_series({first}, {first + rows - 1}) AS n",
    )


async def count_rows_read(database: Database, number: int) -> int:
    """Return how many rows PostgreSQL looks at to load an agent: those it returns, and those that it filters out."""

    def explain(connection: Connection) -> dict[str, object]:
        query = select_inbox_rows(has_any(connection, inbox.c.agent, [agent(number)])).compile(
            dialect=connection.dialect, compile_kwargs={"literal_binds": True}
        )
        plan = connection.execute(text(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}".replace(":", r"\:"))).scalar_one()
        return dict(plan[0]["Plan"])

    def count(node: dict[str, object]) -> int:
        children = node.get("Plans", [])
        assert isinstance(children, list)
        own = int(str(node["Actual Rows"])) + int(str(node.get("Rows Removed by Filter", 0)))
        return max(own, *map(count, children)) if children else own

    return count(await database.read(explain))


async def test_an_agent_that_opens_reads_its_own_rows_only(postgres: Postgres) -> None:
    url = postgres.url()
    database = await open_database(url, "off")
    fill_inbox(url, ROWS)
    execute(url, "ANALYZE inbox")
    own = ROWS // AGENTS
    assert await count_rows_read(database, 3) == own
    repository = AgentRepository(database, agent(3))
    with pytest.raises(KeyError):
        repository.inbox.receive(os.urandom(16), ALICE, "{}", NOW)  # else it would not know its duplicates
    await repository.inbox.open()
    keys = execute(url, f"SELECT id, key FROM inbox WHERE agent = '{agent(3)}' ORDER BY id")
    assert len(keys) == own
    assert all(row["id"] in database.inbox_index.keys.find_rows(row["key"]) for row in keys)
    others = execute(url, f"SELECT key FROM inbox WHERE agent = '{agent(4)}'")
    assert not any(database.inbox_index.keys.find_rows(row["key"]) for row in others)
    assert list(database.inbox_index.open_rows) == [agent(3)]
    await database.close()


@on_both_databases
async def test_an_agent_with_more_rows_than_a_page_knows_all_of_them_after_a_restart(database_url: str) -> None:
    database = await open_database(database_url, "off")
    repository = await open_repository(database)
    keys = [os.urandom(16) for _ in range(2 * INBOX_PAGE_ROWS + 1)]
    rows = [repository.inbox.receive(key, ALICE, "{}", NOW, evidence=SAME_STANZA) for key in keys]
    await asyncio.gather(*(stored.wait() for _, stored, _ in rows))
    await repository.inbox.save_step(rows[-1][0], StoredStep("pay", 1, "hash", "1"))
    await database.close()
    database = await open_database(database_url, "off")
    repository = await open_repository(database)
    pending = await repository.inbox.load_pending()
    assert [one.inbox_row for one in pending] == [row for row, _, _ in rows]
    assert len(await repository.inbox.load_steps(rows[-1][0])) == 1
    again = repository.inbox.receive(keys[0], ALICE, "{}", NOW, evidence=SAME_STANZA)[1]
    assert not await again
    await database.close()


async def test_a_new_connection_reads_nothing_that_this_process_has_written(
    postgres: Postgres, expected_errors: ExpectedErrors
) -> None:
    """It read all rows of all agents: 300,000 of them blocked the event loop for two seconds."""
    expected_errors("terminating connection due to administrator command")
    url = postgres.url()
    database = await open_database(url, "off", timings=StoreTimings(retry_s=0.05))
    repository = await open_repository(database, agent(3))
    key = os.urandom(16)
    assert await repository.inbox.receive(key, ALICE, "{}", NOW)[1]
    open_rows = set(database.inbox_index.open_rows[agent(3)])
    execute(url, f"DELETE FROM inbox WHERE agent = '{agent(3)}'")  # a row that is read again would come back only if it existed
    fill_inbox(url, 10, first=5000)  # below what the process has taken
    await end_connection(database)
    assert await repository.inbox.receive(os.urandom(16), ALICE, "{}", NOW)[1]
    unread = execute(url, "SELECT key FROM inbox WHERE id >= 5000 AND id < 5010")
    assert len(unread) == 10
    assert not any(database.inbox_index.keys.find_rows(row["key"]) for row in unread)
    assert open_rows < database.inbox_index.open_rows[agent(3)]
    await database.close()


async def test_what_another_platform_has_stored_in_between_is_known_on_the_new_connection(
    postgres: Postgres, expected_errors: ExpectedErrors
) -> None:
    expected_errors("terminating connection due to administrator command")
    url = postgres.url()
    database = await open_database(url, "off", timings=StoreTimings(retry_s=0.05))
    repository = await open_repository(database, agent(3))
    first, _, _ = repository.inbox.receive(os.urandom(16), ALICE, "{}", NOW)
    await repository.inbox.flush()
    count = AGENTS * (INBOX_PAGE_ROWS + 10)  # more than a page of the agent
    taken = execute(url, "SELECT next_id FROM sequences")[0]["next_id"]
    execute(url, f"UPDATE sequences SET next_id = next_id + {count}")
    fill_inbox(url, count, first=taken)
    await end_connection(database)
    row, stored, _ = repository.inbox.receive(os.urandom(16), ALICE, "{}", NOW)
    assert await stored
    row, stored, _ = repository.inbox.receive(os.urandom(16), ALICE, "{}", NOW)
    assert await stored
    assert first < taken + count <= row
    foreign = execute(url, f"SELECT id, key FROM inbox WHERE agent = '{agent(3)}' AND id >= {taken} AND id < {taken + count}")
    assert len(foreign) == INBOX_PAGE_ROWS + 10
    assert all(row["id"] in database.inbox_index.keys.find_rows(row["key"]) for row in foreign)
    assert not database.inbox_index.keys.find_rows(
        execute(url, f"SELECT key FROM inbox WHERE agent = '{agent(4)}' LIMIT 1")[0]["key"]
    )
    await database.close()


async def end_connection(database: Database) -> None:
    """End the connection of the writer from the server's side, as an administrator does, and wait for the next one."""
    with pytest.raises(StoreError, match="terminating connection due to administrator command"):
        await database.write(lambda connection: connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())")))
    await eventually(lambda: not database.writes.is_failing)


async def test_on_sqlite_an_agent_that_opens_reads_no_rows(tmp_path_factory: pytest.TempPathFactory) -> None:
    url = f"{SQLITE}{tmp_path_factory.mktemp('data')}/platform.db"
    database = await open_database(url, "off")
    repository = await open_repository(database)
    key = os.urandom(16)
    assert await repository.inbox.receive(key, ALICE, "{}", NOW)[1]
    await database.close()
    database = await open_database(url, "off")
    assert database.inbox_index.keys.find_rows(key)
    await open_repository(database)
    assert len(database.inbox_index.keys.find_rows(key)) == 1
    await database.close()
