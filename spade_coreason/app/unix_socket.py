"""Unix sockets in the data directory, through which other processes reach the running platform.

A client is not trusted. The length of a request, the number of connections, and the time to send a request and to read the
reply are limited.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

ConnectionHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
JsonHandler = Callable[[dict[str, Any], asyncio.StreamWriter], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class SocketLimits:
    """The limits of a socket, and of each of its connections."""

    request_bytes: int = 65_536
    """The most bytes of a request."""
    client_timeout_s: float = 30.0
    """The time that a client has to send its request, and again to read the reply. The work in between has no limit."""
    connections: int = 32
    """The most connections at a time. As many more get a refusal, and all others are closed at once."""


DEFAULT_LIMITS = SocketLimits()

_READ_BYTES = 65_536


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
async def serve_socket(
    data_dir: Path, name: str, handle: ConnectionHandler, limits: SocketLimits = DEFAULT_LIMITS, *, refusal: bytes = b""
) -> AsyncIterator[None]:
    """Handle each connection to a socket (0600) until the block ends, then cancel connections without a reply.

    A client that disconnects early gets no reply. One connection too many gets the bytes `refusal`. Only the process that owns
    the directory may call this.
    """
    tasks: set[asyncio.Task[None]] = set()

    async def handle_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_refused: bool) -> None:
        try:
            with suppress(ConnectionError):
                if is_refused:
                    await _refuse(reader, writer, refusal, limits)
                else:
                    await handle(reader, writer)
                writer.close()
                async with asyncio.timeout(limits.client_timeout_s):
                    await writer.wait_closed()
        except TimeoutError:
            log.debug("%s: a client did not send its request, or did not read the reply, in time", name)
        finally:
            writer.transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # asyncio logs an error if a task of its own is cancelled.
        if len(tasks) >= 2 * limits.connections:
            writer.transport.abort()
            return
        task = asyncio.create_task(handle_connection(reader, writer, len(tasks) >= limits.connections))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    with _bind(data_dir, name) as listener:
        server = await asyncio.start_unix_server(accept, sock=listener, limit=_READ_BYTES)
        try:
            yield
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def serve_json_socket(
    data_dir: Path, name: str, handle: JsonHandler, failure: str, limits: SocketLimits = DEFAULT_LIMITS
) -> AsyncIterator[None]:
    """Serve a socket as `serve_socket` does. A connection is one request and one line of reply, both a JSON object.

    `handle` returns the reply to a request; before that it may write lines of its own. If it raises an exception, the log has
    it under the text `failure`, and the reply is a `problem`. So is the reply to a request that is too long.
    """

    async def handle_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(limits.client_timeout_s):
            request = await _read_request(reader, limits.request_bytes)
        if request is None:
            problem = f"the request has more than {limits.request_bytes:,} bytes, the limit; send less at once"
            await _refuse(reader, writer, _encode_line({"problem": problem}), limits)
            return
        try:
            content = _decode(request)
            reply = {"problem": "the request is no JSON object"} if content is None else await handle(content, writer)
        except ConnectionError:
            raise
        except Exception:  # also an unknown request from a command of another version
            log.exception(failure)
            reply = {"problem": "the running platform failed to do this; its log has the reason"}
        writer.write(_encode_line(reply))

    busy = {"problem": f"{limits.connections} commands are connected to the running platform; try again in a moment"}
    async with serve_socket(data_dir, name, handle_connection, limits, refusal=_encode_line(busy)):
        yield


def write_progress(writer: asyncio.StreamWriter, progress: dict[str, Any]) -> None:
    """Write a line before the reply, unless the client reads too slowly. Raise ConnectionError if it has disconnected."""
    if writer.is_closing():
        raise ConnectionError("the connection of the command is closed")
    if writer.transport.get_write_buffer_size() < _READ_BYTES:
        writer.write(_encode_line(progress))


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: bytes, limits: SocketLimits) -> None:
    """Reply without handling the request. Read and drop a part of the request: otherwise the client loses the reply."""
    writer.write(reply)
    writer.write_eof()
    dropped = 0
    async with asyncio.timeout(limits.client_timeout_s):
        while dropped <= limits.request_bytes and (data := await reader.read(_READ_BYTES)):
            dropped += len(data)


async def _read_request(reader: asyncio.StreamReader, max_bytes: int) -> bytearray | None:
    """Read to the end of the request; None as soon as it is too long."""
    request = bytearray()
    while data := await reader.read(_READ_BYTES):
        request += data
        if len(request) > max_bytes:
            return None
    return request


def _decode(request: bytearray) -> dict[str, Any] | None:
    """Return the JSON object that a request is; None if it is none."""
    try:
        value = json.loads(request)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _encode_line(value: dict[str, Any]) -> bytes:
    return f"{json.dumps(value)}\n".encode()


@contextmanager
def _bind(data_dir: Path, name: str) -> Iterator[socket.socket]:
    """Yield a bound socket and delete its file when the block ends."""
    with socket_address(data_dir, name) as address:
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
