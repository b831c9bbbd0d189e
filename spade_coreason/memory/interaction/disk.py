"""Writing so that it is either there or not: appending, writing beside, locking between processes.

OSError is the caller's, who makes it a StoreError by `OSErrorTranslator`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from ...exceptions import StoreError

FileStamp: TypeAlias = tuple[int, int, int]
"""Inode, time of the last change in nanoseconds, size: another one after every change."""


def stamp_of(status: os.stat_result) -> FileStamp:
    """The stamp of a file with this status."""
    return status.st_ino, status.st_mtime_ns, status.st_size


class _OpenDescriptor:
    """A descriptor until the end of `with`."""

    __slots__ = ("_descriptor",)

    def __init__(self, path: Path, flags: int) -> None:
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def append(path: Path, position: int, data: bytes, *, mode: int | None, is_durable: bool, is_name_durable: bool) -> FileStamp:
    """Writes `data` at `position`, where whole lines end; what stands behind goes. If it fails, nothing of it is left.

    At position 0 the file is a new one and gets these rights, 0600 for None. `is_name_durable`: its name is lasting already.
    """
    with _OpenDescriptor(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW) as descriptor:
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
    """Makes lasting what was appended; `is_name_durable`: its name is already."""
    with _OpenDescriptor(path, os.O_WRONLY | os.O_NOFOLLOW) as descriptor:
        os.fdatasync(descriptor)
    if not is_name_durable:
        sync_directory(path.parent)


def write_replacement(path: Path, pieces: Iterable[bytes], replaced: os.stat_result | None) -> tuple[FileStamp, str]:
    """Writes a file that is to take the place of one with the status `replaced`; its stamp and its SHA-256.

    It has the other's rights and is younger.
    """
    digest = hashlib.sha256()
    with (
        _OpenDescriptor(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW) as descriptor,
        open(descriptor, "wb", buffering=1 << 16, closefd=False) as file,
    ):
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
        file.flush()
        if replaced is not None:
            os.fchmod(descriptor, replaced.st_mode & 0o777)
            # Inode numbers come back soon, and a clock may stand still or go back: only a time that always grows
            # lets other processes see every change.
            status = os.fstat(descriptor)
            if status.st_mtime_ns <= replaced.st_mtime_ns:
                os.utime(descriptor, ns=(status.st_atime_ns, replaced.st_mtime_ns + 1))
        os.fsync(descriptor)
        return stamp_of(os.fstat(descriptor)), digest.hexdigest()


class FileLock(_OpenDescriptor):
    """Holds the lock of this file from now on; closing it also unlocks.

    The file is never removed, since somebody may be waiting for it; to write, it is made.
    """

    __slots__ = ()

    def __init__(self, path: Path, *, is_exclusive: bool) -> None:
        super().__init__(path, os.O_RDWR | os.O_CREAT if is_exclusive else os.O_RDONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX if is_exclusive else fcntl.LOCK_SH)
        except BaseException:
            os.close(self._descriptor)
            raise


def make_directory(directory: Path) -> None:
    """Makes it with its parents, for the owner only, so that it is still there after a power cut."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(mode=0o700, exist_ok=True)
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Makes lasting which names a directory has."""
    with _OpenDescriptor(directory, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)


class OSErrorTranslator:
    """`with` it: an OSError there is a StoreError that says `problem`. One is for all threads, and for blocks within blocks."""

    __slots__ = ("_path", "_problem")

    def __init__(self, path: Path, problem: str) -> None:
        self._path, self._problem = path, problem

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, OSError):
            cause = error.strerror or str(error)
            problem = f"{self._path}: {self._problem}: {cause}; what was stored is kept; see to the directory, and try again"
            raise StoreError(problem) from error
