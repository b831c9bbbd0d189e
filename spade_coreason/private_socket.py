"""A socket in a data directory, at which a running platform answers whoever may read that directory."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def address_of(data_dir: Path, name: str) -> Iterator[str]:
    """The address of a socket, whatever the length of the path to it: the kernel takes 107 bytes."""
    directory = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        short = f"/proc/self/fd/{directory}"
        yield f"{short if os.path.isdir(short) else data_dir}/{name}"
    finally:
        os.close(directory)


@contextmanager
def bound(data_dir: Path, name: str) -> Iterator[socket.socket]:
    """A socket (0600) to listen at, gone afterwards. To be called by the process that owns the directory."""
    with address_of(data_dir, name) as address:
        _remove(address)  # that of a platform that was killed
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(address)
            os.chmod(address, 0o600)  # before it listens
            yield listener
        finally:
            listener.close()
            _remove(address)


def _remove(address: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(address)
