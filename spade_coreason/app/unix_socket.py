"""A socket in a data directory, at which a running platform answers whoever may read that directory."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

ConnectionHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextmanager
def socket_address(data_dir: Path, name: str) -> Iterator[str]:
    """The address of a socket, whatever the length of the path to it: the kernel takes 107 bytes."""
    directory = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        short = f"/proc/self/fd/{directory}"
        yield f"{short if os.path.isdir(short) else data_dir}/{name}"
    finally:
        os.close(directory)


@asynccontextmanager
async def serve_socket(data_dir: Path, name: str, handle: ConnectionHandler) -> AsyncIterator[None]:
    """Answers each connection to a socket (0600), for the time of the block, which cancels what is not answered then.

    Whoever has gone before the answer misses it. To be called by the process that owns the directory.
    """
    working: set[asyncio.Task[None]] = set()

    async def handle_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        working.add(task)
        try:
            with suppress(ConnectionError):
                await handle(reader, writer)
                await writer.drain()
        finally:
            working.discard(task)
            writer.close()

    with _bind(data_dir, name) as listener:
        server = await asyncio.start_unix_server(handle_connection, sock=listener)
        try:
            yield
        finally:
            server.close()
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)


@contextmanager
def _bind(data_dir: Path, name: str) -> Iterator[socket.socket]:
    """A socket to listen at, gone afterwards."""
    with socket_address(data_dir, name) as address:
        _delete_socket(address)  # that of a platform that was killed
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(address)
            os.chmod(address, 0o600)  # before it listens
            yield listener
        finally:
            listener.close()
            _delete_socket(address)


def _delete_socket(address: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(address)
