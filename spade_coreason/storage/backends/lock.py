"""File locks: one process owns a data directory, and one process owns a SQLite database."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from ...domain.environment.private_files import open_private
from ...exceptions import DataDirectoryInUseError, StoreError

# A command that asks whether a platform runs shares the lock for a moment.
_WAIT_S = 0.1
_POLL_S = 0.005


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Own `directory` until the block ends.

    Raise DataDirectoryInUseError if another process owns it, and StoreError if the lock file cannot be written. The kernel
    releases the lock when the process that holds it dies, in whatever way.
    """
    with _acquire_lock(directory, directory / "lock", "data_dir"):
        yield


@contextmanager
def lock_database(url: str) -> Iterator[None]:
    """Own the SQLite file at `url` until the block ends, because another data directory may name it too.

    Raise the errors of `lock_directory`. Do nothing for PostgreSQL: `PostgresBackend` takes a lock on the server.
    """
    file = find_database_file(url)
    if file is None:
        yield
        return
    with _acquire_lock(file, file.with_name(f"{file.name}.lock"), "storage.url"):
        yield


def find_database_file(url: str) -> Path | None:
    """Return the SQLite file at a URL, without links; None for a database server."""
    try:
        parsed = make_url(url)
    except ArgumentError:  # `open_database` reports it
        return None
    is_file = parsed.get_backend_name() == "sqlite" and parsed.database
    return Path(str(parsed.database)).resolve() if is_file else None


@contextmanager
def _acquire_lock(owned: Path, lock: Path, key: str) -> Iterator[None]:
    try:
        lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = open_private(lock, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise _unusable_error(owned, key, error) from error
    try:
        _lock_descriptor(descriptor, owned, key)
        yield
    finally:
        os.close(descriptor)


def _lock_descriptor(descriptor: int, owned: Path, key: str) -> None:
    try:
        _flock_with_retries(descriptor)
    except BlockingIOError:
        raise DataDirectoryInUseError(owned, _read_holder_pid(descriptor), key) from None
    except OSError as error:
        raise _unusable_error(owned, key, error) from error
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    except OSError as error:
        raise _unusable_error(owned, key, error) from error


def _flock_with_retries(descriptor: int) -> None:
    """Take the lock. Raise BlockingIOError if another process holds it for longer than a look at it takes."""
    deadline = time.monotonic() + _WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_POLL_S)


def _unusable_error(owned: Path, key: str, error: OSError) -> StoreError:
    return StoreError(
        f"{owned}: cannot be written: {error.strerror}; correct its permissions, or name another directory ({key})"
    )


def _read_holder_pid(descriptor: int) -> int | None:
    text = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
    return int(text) if text.isdecimal() else None
