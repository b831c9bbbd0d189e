"""`spade-coreason storage`"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..._version import __version__
from ...exceptions import ConfigError, DatabaseEmpty
from ...storage import open_database
from ..account import data_option
from ..console import json_text, mark, printable
from ..context import Group, run
from ..settings import config_option, storage_settings

if TYPE_CHECKING:
    from ...config import Settings
    from ...storage import About, Database, Progress

_WHERE = config_option("config/platform.yaml, if there is one")
_FILE = click.argument("backup", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))


@click.group("storage", cls=Group)
def command() -> None:
    """Back up, restore, check or migrate what the agents keep.

    \b
      spade-coreason storage backup friday.tar
      spade-coreason storage check
    """


@command.command("migrate")
@_WHERE
@data_option
def migrate(file: Path | None, data: Path | None) -> None:
    """Bring the database to the schema of this version. The start of a platform does that too.

    The platform has to be stopped. Make a backup with the old version first: there is no way back.

    \b
      spade-coreason storage migrate -c config/production.yaml
    """
    run(_migrate(storage_settings(file, data)))


async def _migrate(settings: Settings) -> None:
    async with _alone(settings) as database:
        before, now = database.was_revision, database.revision
    if before is None:
        print(f"{database.name}: made, schema {now}.")
    elif before == now:
        print(f"{database.name}: is of schema {now} already.")
    else:
        print(f"{database.name}: migrated from schema {before} to {now}.")


@command.command("check")
@_WHERE
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def check(file: Path | None, data: Path | None, as_json: bool) -> int:
    """See whether the database is whole, and what it holds. Works beside a running platform.

    Reads everything once. Exit code: 0 all is well, 1 something is damaged.

    \b
      spade-coreason storage check --json
    """
    return run(_check(storage_settings(file, data), as_json))


async def _check(settings: Settings, as_json: bool) -> int:
    from ...storage import examine

    async with _beside(settings) as database:
        health = await examine(database)
    if as_json:
        print(json_text({"ok": not health.problems, **asdict(health)}, indent=2))
        return int(bool(health.problems))
    print(f"{health.database}: schema {health.schema}; {_counted(health.rows)}")
    waiting = f"{health.received:,} to be answered, {health.answered:,} answered and not acknowledged"
    print(f"requests that are not closed: {waiting}")
    for problem in health.problems:
        print(f"{mark('bad')} {printable(problem)}")
    if health.problems:
        print("Restore a backup, or go on: what is named above is lost, and nothing else.")
        return 1
    print(f"{mark('good')} nothing is damaged")
    return 0


@command.command("backup")
@_FILE
@_WHERE
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print what the backup holds as JSON.")
def backup(backup: Path, file: Path | None, data: Path | None, as_json: bool) -> None:
    """Write everything that is kept to FILE, a tar file. Works beside a running platform.

    It holds the sessions, variables and requests of one moment as a SQLite file, also from PostgreSQL, and the interaction
    memories. It is as secret as the database. FILE may not be there yet.

    \b
      spade-coreason storage backup backups/friday.tar
    """
    about = run(_backup(storage_settings(file, data), backup))
    _report(about, as_json, f"{backup}: holds")


async def _backup(settings: Settings, target: Path) -> About:
    from ...storage import back_up

    async with _beside(settings) as database:
        with _bar("backing up") as progress:
            return await back_up(database, settings.storage.memory_dir, target, __version__, progress)


@command.command("restore")
@_FILE
@_WHERE
@data_option
@click.option("--json", "as_json", is_flag=True, help="Print what the backup held as JSON.")
def restore(backup: Path, file: Path | None, data: Path | None, as_json: bool) -> None:
    """Fill an empty data directory and database from FILE, which `storage backup` wrote.

    The platform has to be stopped, and nothing is overwritten. A backup of SQLite can be restored to PostgreSQL and the other
    way round: name the database in storage.url.

    \b
      spade-coreason storage restore backups/friday.tar --data restored
    """
    about = run(_restore(storage_settings(file, data), backup))
    _report(about, as_json, f"{backup}: restored")


async def _restore(settings: Settings, source: Path) -> About:
    from ...storage import restore

    async with _alone(settings) as database:
        with _bar("restoring") as progress:
            return await restore(database, settings.storage.memory_dir, source, progress)


def _report(about: About, as_json: bool, what: str) -> None:
    if as_json:
        print(json_text(asdict(about), indent=2))
        return
    print(f"{what} {_counted({**about.rows, 'memories': about.memories})}.")


def _counted(rows: dict[str, int]) -> str:
    return ", ".join(f"{table} {count:,}" for table, count in rows.items() if count) or "nothing"


@asynccontextmanager
async def _alone(settings: Settings) -> AsyncIterator[Database]:
    """The database, made or migrated, and nobody else's; DataDirectoryInUse while a platform runs."""
    from ...storage import lock_database, lock_directory

    with lock_directory(settings.data_dir), lock_database(settings.storage.url):
        database = await open_database(settings.storage.url, settings.storage.durability)
        try:
            yield database
        finally:
            await database.close()


@asynccontextmanager
async def _beside(settings: Settings) -> AsyncIterator[Database]:
    """The database to read, whoever writes to it."""

    try:
        database = await open_database(settings.storage.url, reads_only=True)
    except DatabaseEmpty as error:
        remedy = "name the platform's configuration with -c FILE, or its data with --data DIR"
        raise ConfigError("", f"{error}; {remedy}") from error
    try:
        yield database
    finally:
        await database.close()


@contextmanager
def _bar(label: str) -> Iterator[Progress]:
    """A progress bar on a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    with click.progressbar(length=1, label=label, file=sys.stderr) as bar:

        def progress(done: int, total: int) -> None:
            shown: Any = bar
            shown.length = max(total, 1)
            shown.update(done - shown.pos)

        yield progress
