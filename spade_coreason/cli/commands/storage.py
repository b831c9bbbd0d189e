"""The command `spade-coreason storage`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..._version import __version__
from ...exceptions import ConfigError, DatabaseEmptyError
from ..account import data_option
from ..context import CLIGroup, json_option, run_async
from ..settings import config_option, load_storage_settings
from ..terminal.console import print_json, print_line, verdict_sign

if TYPE_CHECKING:
    from ...config import Settings
    from ...storage import BackupInfo, Database, ProgressCallback

_config_option = config_option()
_NOUNS = {
    "inbox": "received messages",
    "interaction_memory": "memory entries",
    "interactions": "turns",
    "variables": "variables (with the platform's own)",
}
"""The names of rows for people, where the name of the table does not say it."""
_backup_argument = click.argument("backup", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))


@click.group("storage", cls=CLIGroup)
def command() -> None:
    """Back up, restore, check or migrate the stored data.

    \b
      spade-coreason storage backup friday.tar
      spade-coreason storage check
    """


@command.command("migrate")
@_config_option
@data_option
def migrate(file: Path | None, data: Path | None) -> None:
    """Migrate the database to the schema of this version.

    Each start of the platform does this too. Stop the platform and make a backup with the old version first: a migration
    cannot be undone.

    \b
      spade-coreason storage migrate -c config/production.yaml
    """
    run_async(_migrate(load_storage_settings(file, data)))


async def _migrate(settings: Settings) -> None:
    from ...app import import_memories

    async with _open_exclusively(settings) as database:
        before, now = database.schema.previous_revision, database.schema.revision
        await import_memories(settings, database)
    if before is None:
        print_line(f"{database.name}: created with schema {now}.")
    elif before == now:
        print_line(f"{database.name}: already has schema {now}.")
    else:
        print_line(f"{database.name}: migrated from schema {before} to {now}.")


@command.command("check")
@_config_option
@data_option
@json_option("Print the findings as JSON.")
def check(file: Path | None, data: Path | None, as_json: bool) -> int:
    """Check the database for damage, and count its rows. Works while the platform runs.

    Reads the whole database once. Exit code: 0 no damage, 1 something is damaged.

    \b
      spade-coreason storage check --json
    """
    return run_async(_check(load_storage_settings(file, data), as_json))


async def _check(settings: Settings, as_json: bool) -> int:
    from ...storage import check_health, count_memories

    async with _open_read_only(settings) as database:
        health = await check_health(database)
    memories = await asyncio.to_thread(count_memories, settings.storage.memory_dir)
    if as_json:
        print_json({"ok": not health.problems, **asdict(health), "memories": memories})
        return int(bool(health.problems))
    print_line(f"{health.database}: schema {health.schema}; {_counts_text({**health.rows, 'memories': memories})}")
    counts = f"{health.received:,} waiting for an answer, {health.answered:,} answered but not acknowledged"
    print_line(f"open requests: {counts}")
    for problem in health.problems:
        print_line(verdict_sign("bad"), problem)
    if health.problems:
        print_line("Restore a backup, or go on: only the data named above is lost.")
        return 1
    print_line(verdict_sign("good"), "nothing is damaged")
    return 0


@command.command("backup")
@_backup_argument
@_config_option
@data_option
@json_option("Print the contents of the backup as JSON.")
def backup(backup: Path, file: Path | None, data: Path | None, as_json: bool) -> None:
    """Back up all stored data to FILE, a tar file. Works while the platform runs.

    The backup holds a consistent copy of the database as a SQLite file (also from PostgreSQL), and the interaction memories
    that are files.
    Protect it like the database. FILE must not exist.

    \b
      spade-coreason storage backup backups/friday.tar
    """
    about = run_async(_backup(load_storage_settings(file, data), backup))
    _print_contents(about, as_json, f"{backup}: holds")


async def _backup(settings: Settings, target: Path) -> BackupInfo:
    from ...storage import back_up

    async with _open_read_only(settings) as database:
        with _progress_bar("backing up") as progress:
            return await back_up(database, settings.storage.memory_dir, target, __version__, progress)


@command.command("restore")
@_backup_argument
@_config_option
@data_option
@json_option("Print the restored contents as JSON.")
def restore(backup: Path, file: Path | None, data: Path | None, as_json: bool) -> None:
    """Restore FILE, a backup, to an empty data directory and database.

    Stop the platform first. Nothing is overwritten. A backup of SQLite can be restored to PostgreSQL, and the other way
    round: set the database in storage.url. Interaction memories become rows of PostgreSQL, or files beside SQLite.

    \b
      spade-coreason storage restore backups/friday.tar --data restored
    """
    about = run_async(_restore(load_storage_settings(file, data), backup))
    _print_contents(about, as_json, f"{backup}: restored")


async def _restore(settings: Settings, source: Path) -> BackupInfo:
    from ...memory import move_files_to_rows, move_rows_to_files
    from ...storage import restore

    async with _open_exclusively(settings) as database:
        move_memories = move_files_to_rows if database.backend.has_memories else move_rows_to_files
        with _progress_bar("restoring") as progress:
            return await restore(database, settings.storage.memory_dir, source, progress, move_memories)


def _print_contents(about: BackupInfo, as_json: bool, prefix: str) -> None:
    if as_json:
        print_json(asdict(about))
        return
    print_line(f"{prefix} {_counts_text({**about.rows, 'memories': about.memories})}.")


def _counts_text(rows: dict[str, int]) -> str:
    return (
        ", ".join(f"{_NOUNS.get(table, table.replace('_', ' '))} {count:,}" for table, count in rows.items() if count)
        or "nothing"
    )


@asynccontextmanager
async def _open_exclusively(settings: Settings) -> AsyncIterator[Database]:
    """Open the database, created or migrated, for this process alone. DataDirectoryInUseError while a platform runs."""
    from ...storage import lock_database, lock_directory, open_database

    with lock_directory(settings.data_dir), lock_database(settings.storage.url):
        database = await open_database(settings.storage.url, settings.storage.durability)
        try:
            yield database
        finally:
            await database.close()


@asynccontextmanager
async def _open_read_only(settings: Settings) -> AsyncIterator[Database]:
    """Open the database for reading, beside any writer."""
    from ...storage import open_database

    try:
        database = await open_database(settings.storage.url, is_read_only=True)
    except DatabaseEmptyError as error:
        remedy = "name the platform's configuration with -c FILE, or its data with --data DIR"
        raise ConfigError("", f"{error.name}: nothing is stored here yet; {remedy}") from error
    try:
        yield database
    finally:
        await database.close()


@contextmanager
def _progress_bar(label: str) -> Iterator[ProgressCallback]:
    """Show a progress bar on a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    with click.progressbar(length=1, label=label, file=sys.stderr) as bar:

        def progress(done: int, total: int) -> None:
            shown: Any = bar
            shown.length = max(total, 1)
            shown.update(done - shown.pos)

        yield progress
