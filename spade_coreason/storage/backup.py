"""Backups: all stored data of one moment in one tar file, in the same format for SQLite and PostgreSQL.

about.json     {"format": 1, "schema": "0001", "program": "0.1.0", "created_at": …, "rows": {table: count}, "memories": 3}
platform.db    the database as a SQLite file, also if it comes from PostgreSQL
memory/…       the files of the interaction memories, unchanged
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from sqlalchemy import Connection, Table, create_engine, event, func, insert, select

from ..contracts.times import utc_now
from ..domain.environment.private_files import open_private
from ..exceptions import StoreError
from . import schema
from .backends.database import Database
from .backends.factory import open_database
from .backends.sequences import advance_sequence, read_next_row_id
from .backends.stored_schema import create_tables
from .interaction_memory import UnpackedMemories

FORMAT = 1
_INFO_FILE, _DATABASE_FILE, _MEMORY_DIR = "about.json", "platform.db", "memory"
_PAGE_ROWS = 1000
_PAGE_FILES = 4

ProgressCallback: TypeAlias = Callable[[int, int], None]
"""A function that is called from time to time with the number of finished rows and the number of all rows."""


@dataclass(frozen=True, slots=True)
class BackupInfo:
    """The contents of a backup: the number of rows by table, and the number of memory files."""

    schema: str
    program: str
    created_at: str
    rows: dict[str, int]
    memories: int
    format: int = FORMAT


async def back_up(database: Database, memory_dir: Path, target: Path, program: str, progress: ProgressCallback) -> BackupInfo:
    """Write a backup to the file `target`. The platform may keep running.

    Raise StoreError if the file exists already or cannot be written.
    """
    _require_free(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as name:
            return await _back_up(database, memory_dir, target, Path(name), program, progress)
    except FileExistsError as error:
        raise StoreError(f"{target}: another program has just created it; name another file") from error
    except OSError as error:
        raise StoreError(f"{target}: cannot be written: {error.strerror or error}") from error


async def _back_up(
    database: Database, memory_dir: Path, target: Path, directory: Path, program: str, progress: ProgressCallback
) -> BackupInfo:
    # Copy the memories first. The facts of a turn are stored before the turn, so that the database is the newer of the two.
    memories = await asyncio.to_thread(_copy_memories, memory_dir, directory / _MEMORY_DIR)

    def work(source: Connection) -> dict[str, int]:
        with _connect_sqlite(directory / _DATABASE_FILE) as copy:
            create_tables(copy)
            rows = _copy_tables(source, copy, progress)
            copy.commit()
        return rows

    rows = await database.read(work)
    info = BackupInfo(schema.REVISION, program, utc_now().isoformat(timespec="seconds"), rows, memories)
    (directory / _INFO_FILE).write_text(json.dumps(asdict(info), indent=2))
    await asyncio.to_thread(_pack, directory, target)
    return info


async def restore(
    database: Database,
    memory_dir: Path,
    source: Path,
    progress: ProgressCallback,
    move_memories: Callable[[UnpackedMemories, Path], None] = lambda memories, directory: None,
) -> BackupInfo:
    """Fill an empty database and an empty memory directory from a backup.

    `move_memories` receives the interaction memories in the unpacked database, and the directory of those that are files. It
    moves them to where `database` has them.

    A backup of an older version is migrated. Either all rows are restored or none. Raise StoreError if the database or the
    directory is not empty, or if the backup is damaged or of a newer version.
    """
    _require_empty(memory_dir)
    if occupied := await database.read(_first_table_with_rows):
        raise StoreError(f"{database.name}: is not empty ({occupied}); restore to a new database, or move this one away")
    memory_dir.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".restore.", dir=memory_dir.parent) as name:
        directory = Path(name)
        info = await asyncio.to_thread(_unpack, source, directory)
        if count_memories(directory / _MEMORY_DIR) != info.memories:
            raise _damaged_error(source, _MEMORY_DIR)
        # Opening the file migrates it, and raises an error if it is of a newer version or no database.
        stored = await open_database(f"sqlite+aiosqlite:///{directory / _DATABASE_FILE}", "off")
        await stored.close()
        if stored.schema.revision != schema.REVISION:  # what this version does not know would be lost
            raise StoreError(
                f"{source}: was written by a newer version (schema {stored.schema.revision}); update spade-coreason"
            )

        def prepare() -> None:
            with _connect_sqlite(directory / _DATABASE_FILE) as copy:
                rows = _count_rows(copy)
                for name, count in info.rows.items():
                    if rows.get(name, 0) != count:
                        raise _damaged_error(source, name)
                move_memories(UnpackedMemories(copy), directory / _MEMORY_DIR)
                copy.commit()

        def work(target: Connection) -> dict[str, int]:
            with _connect_sqlite(directory / _DATABASE_FILE) as copy:
                return _copy_tables(copy, target, progress)

        await asyncio.to_thread(prepare)
        memories = count_memories(directory / _MEMORY_DIR)
        rows = await database.write(work)
        if (directory / _MEMORY_DIR).is_dir():
            os.rename(directory / _MEMORY_DIR, memory_dir)  # an empty directory is replaced
    return BackupInfo(info.schema, info.program, info.created_at, rows, memories)


def _first_table_with_rows(connection: Connection) -> str:
    """Return the name of the first table with rows; the empty string if there is none."""
    for table in schema.DATA_TABLES:
        if connection.execute(select(table).limit(1)).first() is not None:
            return table.name
    return ""


# Rows


@contextmanager
def _connect_sqlite(path: Path) -> Iterator[Connection]:
    engine = create_engine(f"sqlite:///{path}")
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def _copy_tables(source: Connection, target: Connection, progress: ProgressCallback) -> dict[str, int]:
    counts = _count_rows(source)
    done, total = 0, sum(counts.values())
    progress(done, total)
    for table in schema.DATA_TABLES:
        for rows in _pages(source, table):
            target.execute(insert(table), rows)
            done += len(rows)
            progress(done, total)
    advance_sequence(target, read_next_row_id(source))
    return counts


def _count_rows(source: Connection) -> dict[str, int]:
    tables = schema.DATA_TABLES
    return {table.name: source.execute(select(func.count()).select_from(table)).scalar_one() for table in tables}


def _pages(source: Connection, table: Table) -> Iterator[list[dict[str, object]]]:
    count = _PAGE_FILES if table is schema.door_files else _PAGE_ROWS
    result = source.execute(select(table), execution_options={"yield_per": count})
    for page in result.mappings().partitions():
        yield [dict(row) for row in page]


# Files


def _require_free(target: Path) -> None:
    if target.exists():
        raise StoreError(f"{target}: already exists; name another file, or delete it")


def _require_empty(directory: Path) -> None:
    if directory.is_dir() and any(directory.iterdir()):
        raise StoreError(f"{directory}: is not empty; restore to a new data directory, or move this one away")


def _damaged_error(source: Path, part: object) -> StoreError:
    return StoreError(f"{source}: is damaged: its contents do not match its index ({part}); use another backup")


def _find_memory_files(directory: Path) -> list[Path]:
    paths = [*directory.glob("*.json"), *(path.with_suffix("") for path in directory.glob("*.json.journal"))]
    return sorted(set(paths))


def count_memories(directory: Path) -> int:
    """Return the number of interaction memories in a directory."""
    return len(_find_memory_files(directory))


def _copy_memories(source: Path, target: Path) -> int:
    """Copy each memory, file and journal, and return the number of memories.

    The lock of a memory keeps its agent from writing during the copy. A new memory consists of a journal only.
    """
    target.mkdir(mode=0o700)
    files = _find_memory_files(source)
    for path in files:
        lock = open_private(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for part in (path, path.with_name(f"{path.name}.journal")):
                if part.is_file():
                    shutil.copy2(part, target)
        finally:
            os.close(lock)
    return len(files)


def _pack(directory: Path, target: Path) -> None:
    packed = directory / "backup.tar"
    packed.touch(0o600)
    with tarfile.open(packed, "w") as archive:
        for name in (_INFO_FILE, _DATABASE_FILE, _MEMORY_DIR):
            archive.add(directory / name, name)
    with packed.open("rb") as file:
        os.fsync(file.fileno())
    os.link(packed, target)  # unlike a rename, it replaces nothing


def _unpack(source: Path, directory: Path) -> BackupInfo:
    problem = f"{source}: is not a backup of spade-coreason"
    try:
        (directory / _MEMORY_DIR).mkdir(mode=0o700)
        with tarfile.open(source, "r:") as archive:
            for member in archive:
                if not (member.isdir() and member.name == _MEMORY_DIR):
                    _unpack_file(archive, member, directory)
        info = BackupInfo(**json.loads((directory / _INFO_FILE).read_text()))
        if not isinstance(info.rows, dict) or not isinstance(info.memories, int):
            raise ValueError(f"{_INFO_FILE} is damaged")
        if info.format != FORMAT:
            raise StoreError(f"{source}: was written by a newer version (format {info.format}); update spade-coreason")
        if not (directory / _DATABASE_FILE).is_file():
            raise StoreError(f"{problem}: {_DATABASE_FILE} is missing")
    except FileNotFoundError as error:
        raise StoreError(f"{source}: no such file" if not source.exists() else problem) from error
    except (OSError, ValueError, TypeError, EOFError, RecursionError, tarfile.TarError) as error:
        raise StoreError(f"{problem}: {' '.join(str(error).split())}") from error
    return info


def _unpack_file(archive: tarfile.TarFile, member: tarfile.TarInfo, directory: Path) -> None:
    """Accept only the files that a backup has. A link or a sparse file could restore other data than the backup shows."""
    name, *rest = member.name.split("/")
    is_known = member.name in (_INFO_FILE, _DATABASE_FILE) or (name == _MEMORY_DIR and len(rest) == 1)
    packed = archive.extractfile(member) if is_known and member.isreg() and not member.issparse() else None
    if packed is None:
        raise ValueError(f"{member.name!r} is not part of a backup")
    # Not by `extractall`: without a filter, which Python 3.11.2 lacks, root would give the files to other users.
    with packed, open(open_private(directory / member.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        shutil.copyfileobj(packed, file)
