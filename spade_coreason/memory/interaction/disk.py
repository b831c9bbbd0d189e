"""Atomic and durable writes: append to a file, replace a file, lock a file between processes.

The functions raise OSError. Their callers translate it to StoreError with `OSErrorTranslator`.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable
from io import FileIO
from pathlib import Path
from typing import TypeAlias

from ...domain.environment.private_files import open_private
from ...exceptions import StoreError

_LOCK_TIMEOUT_S = 10.0
_LOCK_POLL_S = 0.001

FileStamp: TypeAlias = tuple[int, int, int]
"""Inode, time of the last change in nanoseconds, and size. Every change of a file gives another stamp."""


def stamp_of(status: os.stat_result) -> FileStamp:
    """Return the stamp of a file with this status."""
    return status.st_ino, status.st_mtime_ns, status.st_size


def append(
    path: Path, position: int, data: bytes | bytearray, *, mode: int | None, is_durable: bool, is_name_durable: bool
) -> FileStamp:
    """Write `data` at `position`, the end of the last complete line, and cut off anything after it.

    If the write fails, none of `data` is left. At position 0 the file is new and gets the permissions `mode` (0600 for None).
    `is_durable` syncs the data. `is_name_durable`: the directory entry of the file is synced already.
    """
    with FileIO(open_private(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "wb") as file:
        descriptor = file.fileno()
        if os.fstat(descriptor).st_size != position:
            os.ftruncate(descriptor, position)
        try:
            if not position and mode is not None:
                os.fchmod(descriptor, mode)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if is_durable:
                os.fdatasync(descriptor)
                if not is_name_durable:
                    sync_directory(path.parent)
        except OSError:
            os.ftruncate(descriptor, position)
            if not position:
                path.unlink()
            raise
        return stamp_of(os.fstat(descriptor))


def sync(path: Path, *, is_name_durable: bool) -> None:
    """Sync appended data to the disk. `is_name_durable`: the directory entry of the file is synced already."""
    with FileIO(open_private(path, os.O_WRONLY), "wb") as file:
        os.fdatasync(file.fileno())
    if not is_name_durable:
        sync_directory(path.parent)


def write_replacement(path: Path, pieces: Iterable[bytes], replaced: os.stat_result | None) -> FileStamp:
    """Write the replacement of a file that has the status `replaced`. Return its stamp.

    It gets the permissions of the replaced file, and a later time of change.
    """
    with open(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb", buffering=1 << 16) as file:
        file.writelines(pieces)
        file.flush()
        descriptor = file.fileno()
        if replaced is not None:
            os.fchmod(descriptor, replaced.st_mode & 0o777)
            # Inode numbers are reused soon, and a clock may stand still or go back. Other processes see every change only
            # if this time always grows.
            status = os.fstat(descriptor)
            if status.st_mtime_ns <= replaced.st_mtime_ns:
                os.utime(descriptor, ns=(status.st_atime_ns, replaced.st_mtime_ns + 1))
        os.fsync(descriptor)
        return stamp_of(os.fstat(descriptor))


def lock_file(path: Path, *, is_exclusive: bool) -> FileIO:
    """Lock a file until the returned object is closed.

    An exclusive lock, for a writer, creates the file. The file is never removed, since other processes may wait for it.
    OSError if another process holds the lock for 10 s: one that is stopped would hold it without end.
    """
    file = FileIO(open_private(path, os.O_RDWR | os.O_CREAT if is_exclusive else os.O_RDONLY))
    try:
        _lock(file.fileno(), fcntl.LOCK_EX if is_exclusive else fcntl.LOCK_SH)
    except BaseException:
        file.close()
        raise
    return file


def _lock(descriptor: int, operation: int) -> None:
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            return fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise OSError(error.errno, f"another process has locked it for {_LOCK_TIMEOUT_S:g} s") from error
        time.sleep(_LOCK_POLL_S)


def make_directory(directory: Path) -> None:
    """Create a directory and its parents, for the owner only, durable across a power cut."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(mode=0o700, exist_ok=True)
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Sync the entries of a directory to the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class OSErrorTranslator:
    """A context manager that translates OSError to a StoreError with the text `problem`.

    Threads may share one object, and its blocks may be nested.
    """

    __slots__ = ("_path", "_problem")

    def __init__(self, path: Path, problem: str) -> None:
        self._path, self._problem = path, problem

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, OSError):
            cause = error.strerror or str(error)
            problem = f"{self._path}: {self._problem}: {cause}; stored data is unchanged; check the disk and try again"
            raise StoreError(problem) from error
