"""One process owns a data directory, and one a database."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from ..exceptions import DataDirectoryInUse, StoreError


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Owns `directory` for the time of the block; DataDirectoryInUse where another process does, StoreError where nobody can.

    The kernel gives the lock back when its holder dies, however that happens.
    """
    with _owning(directory, directory / "lock", "data_dir"):
        yield


@contextmanager
def lock_database(url: str) -> Iterator[None]:
    """Owns the SQLite file at `url` likewise, which another data directory may name too. PostgreSQL has a lock of its own."""
    try:
        parsed = make_url(url)
    except ArgumentError:  # whoever opens it says so
        parsed = None
    if parsed is None or parsed.get_backend_name() != "sqlite" or not parsed.database:
        yield
        return
    file = Path(parsed.database).resolve()
    with _owning(file, file.with_name(f"{file.name}.lock"), "storage.url"):
        yield


@contextmanager
def _owning(what: Path, lock: Path, key: str) -> Iterator[None]:
    try:
        lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable(what, key, error) from error
    try:
        _take(descriptor, what, key)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, what: Path, key: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataDirectoryInUse(what, _holder(descriptor), key) from None
    except OSError as error:
        raise _unusable(what, key, error) from error
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    except OSError as error:
        raise _unusable(what, key, error) from error


def _unusable(what: Path, key: str, error: OSError) -> StoreError:
    return StoreError(f"{what}: cannot be written: {error.strerror}; see to the directory, or name another one ({key})")


def _holder(descriptor: int) -> int | None:
    text = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
    return int(text) if text.isdecimal() else None
