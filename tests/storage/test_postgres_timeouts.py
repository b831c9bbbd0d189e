"""Time-outs that PostgreSQL applies to the platform, and what the platform says when one strikes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import Connection, text

from spade_coreason import StoreError
from spade_coreason.storage import open_database
from spade_coreason.storage.backends.group_commit import StoreTimings
from tests.support.databases import execute, read_rows
from tests.support.errors import ExpectedErrors
from tests.support.records import open_repository
from tests.support.servers.postgres import Postgres
from tests.support.servers.requirements import find_program, require
from tests.support.wait import TIMEOUT_S, eventually

ROOT = Path(__file__).parents[2]
ALICE = "alice@localhost"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


async def test_a_table_that_another_program_locks_is_one_clear_line_and_loses_nothing_later(
    postgres: Postgres, expected_errors: ExpectedErrors
) -> None:
    expected_errors("another program has locked a table for too long; pg_locks names it; retrying")
    url = postgres.url()
    database = await open_database(url, "off", timings=StoreTimings(retry_s=0.05, lock_timeout_s=0.1))
    repository = await open_repository(database)
    other = await asyncpg.connect(url.replace("+asyncpg", ""))
    async with other.transaction():
        await other.execute("LOCK TABLE inbox")
        with pytest.raises(StoreError, match="lock timeout: another program has locked a table for too long") as caught:
            await repository.inbox.receive(os.urandom(16), ALICE, "{}", NOW)[1]
        assert "\n" not in str(caught.value)
    await other.close()
    await eventually(lambda: not database.writes.is_failing)
    assert await repository.inbox.receive(os.urandom(16), ALICE, "{}", NOW)[1]
    await database.close()


async def test_a_transaction_in_which_the_platform_hangs_is_undone_and_said(
    postgres: Postgres, expected_errors: ExpectedErrors
) -> None:
    expected_errors("the platform hung during a transaction, which was undone; its log names what blocked it")
    url = postgres.url()
    database = await open_database(url, "off", timings=StoreTimings(retry_s=0.05, idle_transaction_timeout_s=1.0))

    def hang(connection: Connection) -> None:
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        connection.execute(text("INSERT INTO audit_heads VALUES ('hung@localhost', 1, '')"))
        while execute(url, f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"):
            pass  # the event loop is blocked, and with it the transaction
        connection.execute(text("SELECT 1"))

    with pytest.raises(StoreError, match="the platform hung during a transaction") as caught:
        await database.write(hang)
    assert "\n" not in str(caught.value)
    await eventually(lambda: not database.writes.is_failing)
    assert read_heads(url) == []
    repository = await open_repository(database)
    assert await repository.inbox.receive(os.urandom(16), ALICE, "{}", NOW)[1]
    assert len(read_rows(url, "inbox")) == 1
    await database.close()


def read_heads(url: str) -> list[dict[str, object]]:
    return execute(url, "SELECT * FROM audit_heads")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a network of its own")
def test_another_platform_takes_over_from_one_that_has_lost_its_network(postgres: Postgres) -> None:
    """Else the lock of the lost one keeps every other away for hours."""
    require("unshare and ip", shutil.which("unshare") is not None and find_program("ip") is not None)
    command = ["unshare", "--net", sys.executable, "-m", "tests.support.lost_network"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * TIMEOUT_S, check=False)
    if "Operation not permitted" in done.stderr:
        pytest.skip("this machine lets nobody make a network of their own")
    assert (done.returncode, done.stdout) == (0, "2 connections\ntaken over\n"), done.stderr


async def test_the_server_knows_when_a_platform_has_lost_its_network(postgres: Postgres) -> None:
    database = await open_database(postgres.url(), "off")

    def read_settings(connection: Connection) -> list[str]:
        names = "tcp_user_timeout tcp_keepalives_idle tcp_keepalives_interval lock_timeout idle_in_transaction_session_timeout"
        return [connection.execute(text(f"SHOW {name}")).scalar_one() for name in names.split()]

    settings = await database.read(read_settings), await database.write(read_settings)
    expected = ["60000", "30", "10", "10s", "1min"]
    assert settings == (expected, expected)
    await database.close()
