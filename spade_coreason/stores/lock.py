"""One process owns a data directory."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..exceptions import DataDirectoryInUse, StoreError


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Owns `directory` for the time of the block; DataDirectoryInUse where another process does, StoreError where nobody can.

    The kernel gives the lock back when its holder dies, however that happens.
    """
    with ExitStack() as stack:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, descriptor)
            _take(descriptor, directory)
        except OSError as error:
            raise StoreError(
                f"{directory}: cannot be written: {error.strerror}; see to the directory, or name another one (data_dir)"
            ) from error
        yield


def _take(descriptor: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataDirectoryInUse(directory, _holder(descriptor)) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)


def _holder(descriptor: int) -> int | None:
    text = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
    return int(text) if text.isdecimal() else None
