"""Which program may run on which schema: migrations only add things, and a program runs on the schema of a newer version."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from spade_coreason import StoreError
from spade_coreason.storage import back_up, check_health, migrations, open_database, schema
from tests.support.databases import execute, read_rows
from tests.support.records import ALICE, BOB, new_conversation, open_repository, store_turn


def alembic_config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["connection"] = connection
    return config


def upgrade(revision: str, connection: Connection) -> None:
    command.upgrade(alembic_config(connection), revision)


def describe_tables(connection: Connection) -> dict[str, dict[str, Any]]:
    """Return what a program relies on, by table: columns, keys, and rules that could refuse a row."""
    found = inspect(connection)
    return {
        table: {
            "columns": {column["name"]: (str(column["type"]), column["nullable"]) for column in found.get_columns(table)},
            "defaults": {column["name"]: column["default"] for column in found.get_columns(table)},
            "rules": sorted(
                map(
                    str,
                    [
                        found.get_pk_constraint(table)["constrained_columns"],
                        *(unique["column_names"] for unique in found.get_unique_constraints(table)),
                        *(index["column_names"] for index in found.get_indexes(table) if index["unique"]),
                        *(key["constrained_columns"] for key in found.get_foreign_keys(table)),
                        *(check["sqltext"] for check in found.get_check_constraints(table)),
                    ],
                )
            ),
        }
        for table in found.get_table_names()
    }


def find_contractions(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> list[str]:
    """Return what a program of the schema before would miss, or what would refuse its rows."""
    problems = [f"{table} is gone" for table in before.keys() - after.keys()]
    for table in before.keys() & after.keys():
        old, new = before[table], after[table]
        problems += [f"{table}.{name} has changed" for name, kind in old["columns"].items() if new["columns"].get(name) != kind]
        for name in new["columns"].keys() - old["columns"].keys():
            if not new["columns"][name][1] and new["defaults"][name] is None:
                problems.append(f"{table}.{name} must have a value")
        problems += [f"{table} has other rules"] * (old["rules"] != new["rules"])
    return problems


def find_oldest(url: str) -> str:
    """Return the oldest revision whose program may run on a database."""
    return schema.OLDEST_REVISIONS[make_url(url).get_backend_name()]


async def test_migrations_only_add_things(database_url: str) -> None:
    """A program of an allowed older revision finds all that it knows, as it was: see CONTRIBUTING.md."""
    revisions = [script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()][::-1]
    assert revisions[-1] == schema.REVISION
    oldest = find_oldest(database_url)
    engine = create_async_engine(database_url)
    async with engine.begin() as connection:
        await connection.run_sync(partial(upgrade, oldest))
        before = await connection.run_sync(describe_tables)
        for revision in revisions[revisions.index(oldest) + 1 :]:
            await connection.run_sync(partial(upgrade, revision))
            after = await connection.run_sync(describe_tables)
            assert find_contractions(before, after) == []
            before = after
    await engine.dispose()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("DROP TABLE steps", "steps is gone"),
        ("ALTER TABLE inbox DROP COLUMN channel", "inbox.channel has changed"),
        ("ALTER TABLE inbox RENAME COLUMN channel TO way", "inbox.channel has changed"),
        ("CREATE UNIQUE INDEX one ON inbox (sender)", "inbox has other rules"),
        ("CREATE TABLE other (id INTEGER)", None),
        ("ALTER TABLE inbox ADD COLUMN priority INTEGER", None),
        ("ALTER TABLE inbox ADD COLUMN priority INTEGER NOT NULL DEFAULT 1", None),
        ("CREATE INDEX one ON inbox (sender)", None),
    ],
)
async def test_a_migration_that_takes_something_away_is_found(database_url: str, change: str, problem: str | None) -> None:
    database = await open_database(database_url, "off")
    before = await database.write(describe_tables)
    await database.write(lambda connection: connection.exec_driver_sql(change))
    assert find_contractions(before, await database.write(describe_tables)) == ([] if problem is None else [problem])
    await database.close()


def make_newer(url: str, oldest_revision: str) -> None:
    """Let the schema be that of a newer version, with something new in every table."""
    for table in schema.metadata.tables:
        execute(url, f"ALTER TABLE {table} ADD COLUMN added TEXT")
        execute(url, f"CREATE INDEX {table}_added ON {table} (added)")
    execute(url, "CREATE TABLE added (id INTEGER PRIMARY KEY)")
    execute(url, "UPDATE alembic_version SET version_num = '9000'")
    execute(url, f"UPDATE compatibility SET oldest_revision = '{oldest_revision}'")


async def test_this_version_runs_on_the_schema_of_a_newer_one_that_allows_it(database_url: str, tmp_path: Path) -> None:
    await (await open_database(database_url, "off")).close()
    make_newer(database_url, schema.REVISION)
    for _ in range(2):
        database = await open_database(database_url, "off")
        repository = await open_repository(database)
        for owner in (ALICE, BOB):
            record = await store_turn(repository, new_conversation(repository, f"{owner}{database.row_ids.next()}", owner))
            assert len(await repository.turns.load_history(record.id, 10)) == 1
        health = await check_health(database)
        assert (health.schema, health.problems) == ("9000", ())
        await database.close()
    reader = await open_database(database_url, is_read_only=True)
    (tmp_path / "memory").mkdir()
    info = await back_up(reader, tmp_path / "memory", tmp_path / "backup.tar", "test", lambda done, total: None)
    assert (info.schema, info.rows["interactions"]) == (schema.REVISION, 4)  # the backup is one of this version
    await reader.close()
    database = await open_database(database_url, "off")
    report = await (await open_repository(database)).erase_person(ALICE)
    assert report.interactions == 2
    await database.close()
    assert execute(database_url, "SELECT version_num FROM alembic_version") == [{"version_num": "9000"}]
    assert {"added"} <= read_rows(database_url, "inbox")[0].keys()


@pytest.mark.parametrize("is_read_only", [False, True])
async def test_this_version_refuses_the_schema_of_a_newer_one_that_does_not_allow_it(
    database_url: str, is_read_only: bool
) -> None:
    await (await open_database(database_url, "off")).close()
    make_newer(database_url, "9000")
    with pytest.raises(StoreError, match=r"was written by a newer version \(schema 9000\); update spade-coreason"):
        await open_database(database_url, is_read_only=is_read_only)
    assert execute(database_url, "SELECT version_num FROM alembic_version") == [{"version_num": "9000"}]
