"""A service manager for tests: the socket that systemd gives a service with `Type=notify`."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.wait import TIMEOUT_S


class NotifySocket:
    """The socket of a service manager; a path, or a name without a file as `@name`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)

    def receive(self, timeout_s: float = TIMEOUT_S) -> str:
        """Return the next notice. Raise TimeoutError."""
        self._socket.settimeout(timeout_s)
        return self._socket.recv(4096).decode()

    def drain(self) -> None:
        """Drop what has arrived."""
        self._socket.settimeout(0)
        try:
            while True:
                self._socket.recv(4096)
        except BlockingIOError:
            pass

    def close(self) -> None:
        """End it."""
        self._socket.close()


@contextmanager
def open_notify_socket(address: str = "") -> Iterator[NotifySocket]:
    """Open a socket, by default below a temporary directory, until the block ends."""
    with tempfile.TemporaryDirectory() as directory:  # a short path: that of a socket has at most 107 bytes
        notices = NotifySocket(address or f"{directory}/notify")
        try:
            yield notices
        finally:
            notices.close()
