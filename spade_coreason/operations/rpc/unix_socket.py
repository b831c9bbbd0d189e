"""The Unix socket in the data directory, through which other processes of the machine reach the running platform."""

from __future__ import annotations

import os
import pwd
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PLATFORM_SOCKET = "platform.sock"
_CREDENTIALS = struct.Struct("3i")  # process, user, group: `struct ucred` of Linux


@contextmanager
def socket_address(data_dir: Path) -> Iterator[str]:
    """Yield an address of the socket. It is short for any `data_dir`, because the kernel accepts 107 bytes at most."""
    directory = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        link = f"/proc/self/fd/{directory}"
        yield f"{link if os.path.isdir(link) else data_dir}/{PLATFORM_SOCKET}"
    finally:
        os.close(directory)


@contextmanager
def bind_socket(data_dir: Path) -> Iterator[socket.socket]:
    """Yield a bound socket and delete its file when the block ends."""
    with socket_address(data_dir) as address:
        _delete_socket(address)  # a platform that was killed leaves its socket behind
        listener = socket.socket(socket.AF_UNIX)
        try:
            os.fchmod(listener.fileno(), 0o600)  # Linux gives its file this mode; a chmod of the file could follow a link
            listener.bind(address)
            yield listener
        finally:
            listener.close()
            _delete_socket(address)


def _delete_socket(address: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(address)


def find_user(connection: socket.socket) -> tuple[int, str]:
    """Return the number and the name of the user at the other end of a connection (`SO_PEERCRED`)."""
    _, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return user, user_name(user)


def user_name(user: int) -> str:
    """Return the name of a user of the machine; the number if there is none."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
