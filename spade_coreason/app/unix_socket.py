"""Unix sockets in the data directory, through which other processes reach the running platform."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

ConnectionHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
JsonHandler = Callable[[dict[str, Any], asyncio.StreamWriter], Awaitable[dict[str, Any]]]


@contextmanager
def socket_address(data_dir: Path, name: str) -> Iterator[str]:
    """Yield an address of a socket. It is short for any `data_dir`, because the kernel accepts 107 bytes at most."""
    directory = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        link = f"/proc/self/fd/{directory}"
        yield f"{link if os.path.isdir(link) else data_dir}/{name}"
    finally:
        os.close(directory)


@asynccontextmanager
async def serve_socket(data_dir: Path, name: str, handle: ConnectionHandler) -> AsyncIterator[None]:
    """Handle each connection to a socket (0600) until the block ends, then cancel connections without a reply.

    A client that disconnects early gets no reply. Only the process that owns the directory may call this.
    """
    tasks: set[asyncio.Task[None]] = set()

    async def handle_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with suppress(ConnectionError):
                await handle(reader, writer)
                await writer.drain()
        finally:
            tasks.discard(task)
            writer.close()

    with _bind(data_dir, name) as listener:
        server = await asyncio.start_unix_server(handle_connection, sock=listener)
        try:
            yield
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def serve_json_socket(data_dir: Path, name: str, handle: JsonHandler, failure: str) -> AsyncIterator[None]:
    """Serve a socket as `serve_socket` does. A connection is one request and one line of reply, both a JSON object.

    `handle` returns the reply to a request; before that it may write lines of its own. If it raises an exception, the log has
    it under the text `failure`, and the reply is a `problem`.
    """

    async def handle_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            reply = await handle(json.loads(await reader.read()), writer)
        except ConnectionError:
            raise
        except Exception:  # also an unknown request from a command of another version
            log.exception(failure)
            reply = {"problem": "the running platform failed to do this; its log has the reason"}
        writer.write(f"{json.dumps(reply)}\n".encode())

    async with serve_socket(data_dir, name, handle_connection):
        yield


@contextmanager
def _bind(data_dir: Path, name: str) -> Iterator[socket.socket]:
    """Yield a bound socket and delete its file when the block ends."""
    with socket_address(data_dir, name) as address:
        _delete_socket(address)  # a platform that was killed leaves its socket behind
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
