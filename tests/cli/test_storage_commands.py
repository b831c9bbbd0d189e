"""`storage`: what operators do to the database as a whole."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from spade_coreason.storage import open_database, schema
from spade_coreason.storage.backends.lock import lock_directory
from spade_coreason.storage.repository import AgentRepository
from tests.cli.conftest import Invoke
from tests.support.databases import SQLITE, execute, read_all_tables
from tests.support.program import COMMAND, clean_environment
from tests.support.records import AGENT, new_conversation, receive_request, store_turn
from tests.support.servers.postgres import Postgres
from tests.support.wait import TIMEOUT_S

WITHOUT_REVISION = "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)"
"""The statement for a database that Alembic has begun, and that has no table of ours yet."""


def fill_database(url: str) -> None:
    async def fill() -> None:
        database = await open_database(url, "off")
        repository = AgentRepository(database, AGENT)
        row = await store_turn(repository, new_conversation(repository), answer='["<message/>"]')
        await store_turn(repository, row)
        await receive_request(repository)
        await database.close()

    asyncio.run(fill())


def test_a_backup_is_made_beside_a_running_platform_and_restored_where_none_runs(
    tmp_path: Path, invoke: Invoke, postgres: Postgres
) -> None:
    data, url = tmp_path / "data", f"{SQLITE}{tmp_path}/data/platform.db"
    fill_database(url)
    backup = str(tmp_path / "b.tar")
    with lock_directory(data):
        made = invoke("storage", "backup", backup, "--data", str(data))
        assert made.exit_code == 0, made.output
        assert made.stdout == f"{backup}: holds conversations 1, received messages 3, turns 2.\n"
        refused = invoke("storage", "restore", backup, "--data", str(data))
        assert refused.exit_code == 2
        assert "in use by process" in refused.stderr
    refused = invoke("storage", "restore", backup, "--data", str(data))
    assert refused.exit_code == 1
    assert "is not empty (conversations)" in refused.stderr
    new = tmp_path / "new"
    restored = invoke("storage", "restore", backup, "--data", str(new), "--json")
    assert restored.exit_code == 0, restored.output
    rows = {table: count for table, count in json.loads(restored.stdout)["rows"].items() if count}
    assert rows == {"conversations": 1, "inbox": 3, "interactions": 2}
    assert read_all_tables(f"{SQLITE}{new}/platform.db") == read_all_tables(url)
    # To another kind of database, by the configuration.
    elsewhere = postgres.url()
    (tmp_path / "p.yaml").write_text(f"data_dir: {tmp_path}/moved\nstorage: {{url: '{elsewhere}'}}")
    moved = invoke("storage", "restore", backup, "-c", str(tmp_path / "p.yaml"))
    assert moved.exit_code == 0, moved.output
    assert read_all_tables(elsewhere) == read_all_tables(url)
    assert json.loads(invoke("conversations", "--json", "-c", str(tmp_path / "p.yaml"), "--agent", AGENT).stdout) == json.loads(
        invoke("conversations", "--json", "--data", str(data), "--agent", AGENT).stdout
    )


def test_the_commands_work_one_after_the_other_in_a_project(tmp_path: Path, invoke: Invoke) -> None:
    fill_database(f"{SQLITE}{tmp_path}/data/platform.db")
    for line in ("backup friday.tar", "restore friday.tar --data restored", "check", "migrate"):
        result = invoke("storage", *line.split())
        assert result.exit_code == 0, result.output
    assert (tmp_path / "restored" / "platform.db").is_file()


def test_check_counts_rows_and_finds_damage(tmp_path: Path, invoke: Invoke) -> None:
    data, url = str(tmp_path / "data"), f"{SQLITE}{tmp_path}/data/platform.db"
    missing = invoke("storage", "check", "--data", data)
    assert (missing.exit_code, missing.stderr.count("\n")) == (2, 1)
    assert "nothing is stored here yet; name the platform's configuration with -c FILE" in missing.stderr
    assert not (tmp_path / "data").exists()
    fill_database(url)
    (tmp_path / "data" / "memory").mkdir()
    (tmp_path / "data" / "memory" / "echo_localhost.json").write_text("{}")
    good = invoke("storage", "check", "--data", data)
    assert good.exit_code == 0
    assert good.stdout.splitlines() == [
        f"{tmp_path}/data/platform.db: schema {schema.REVISION}; conversations 1, received messages 3, turns 2, memories 1",
        "open requests: 1 waiting for an answer, 1 answered but not acknowledged",
        "✓ nothing is damaged",
    ]
    execute(url, "DELETE FROM interactions WHERE number = 2")
    bad = invoke("storage", "check", "--data", data, "--json")
    assert bad.exit_code == 1
    found = json.loads(bad.stdout)
    assert (found["ok"], found["received"], found["answered"]) == (False, 1, 1)
    assert found["problems"] == ["t: 1 turns are stored, numbered 1 to 1; the newest should have the number 2"]


def test_check_finds_a_corrupt_file(tmp_path: Path, invoke: Invoke) -> None:
    url = f"{SQLITE}{tmp_path}/data/platform.db"
    fill_database(url)
    execute(url, "PRAGMA wal_checkpoint(TRUNCATE)")
    path = tmp_path / "data" / "platform.db"
    content = path.read_bytes()
    [index] = execute(url, "SELECT rootpage FROM sqlite_master WHERE name = 'interactions_by_number'")
    begin = (index["rootpage"] - 1) * 4096
    path.write_bytes(content[:begin] + bytes(4096) + content[begin + 4096 :])
    torn = invoke("storage", "check", "--data", str(tmp_path / "data"))
    assert torn.exit_code == 1
    assert "malformed" in torn.stderr + torn.stdout or "btree" in torn.stdout
    assert "Traceback" not in torn.output


@pytest.mark.parametrize("verbosity", ["-v", pytest.param("-vv", marks=pytest.mark.release)])
def test_the_log_of_a_migration_is_one_line_of_ours(tmp_path: Path, verbosity: str) -> None:
    url = f"{SQLITE}{tmp_path}/data/platform.db"
    (tmp_path / "data").mkdir()
    execute(url, WITHOUT_REVISION)
    # In a process of its own: Alembic logs at its import too.
    command = [*COMMAND, verbosity, "storage", "migrate", "--data", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=clean_environment(), timeout=TIMEOUT_S)
    assert "alembic" not in done.stderr
    assert done.stderr.count(f"migrated from schema none to {schema.REVISION}") == 1


def test_migrating_says_what_it_did(tmp_path: Path, invoke: Invoke) -> None:
    data = str(tmp_path / "data")
    (tmp_path / "data").mkdir()
    url = f"{SQLITE}{tmp_path}/data/platform.db"
    name = f"{tmp_path}/data/platform.db"
    assert invoke("storage", "migrate", "--data", data).stdout == f"{name}: created with schema {schema.REVISION}.\n"
    assert invoke("storage", "migrate", "--data", data).stdout == f"{name}: already has schema {schema.REVISION}.\n"
    (tmp_path / "data" / "platform.db").unlink()
    execute(url, WITHOUT_REVISION)
    assert invoke("storage", "migrate", "--data", data).stdout == f"{name}: migrated from schema none to {schema.REVISION}.\n"
    with lock_directory(tmp_path / "data"):
        assert "in use by process" in invoke("storage", "migrate", "--data", data).stderr
