"""The sockets of the data directory: whatever a client does, memory, time and connections are limited."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from spade_coreason.app.unix_socket import SocketLimits, serve_json_socket, serve_socket, socket_address, write_progress
from tests.support.wait import TIMEOUT_S, eventually

NAME = "test.sock"


async def _echo(request: dict[str, Any], _writer: asyncio.StreamWriter) -> dict[str, Any]:
    return {"result": request}


@asynccontextmanager
async def connect(data_dir: Path) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    with socket_address(data_dir, NAME) as address:
        reader, writer = await asyncio.open_unix_connection(address)
    try:
        yield reader, writer
    finally:
        writer.close()


async def request(data_dir: Path, text: bytes) -> dict[str, Any]:
    async with asyncio.timeout(TIMEOUT_S), connect(data_dir) as (reader, writer):
        writer.write(text)
        writer.write_eof()
        reply: dict[str, Any] = json.loads(await reader.read())
        return reply


async def test_a_request_of_the_longest_length_is_answered(tmp_path: Path) -> None:
    text = json.dumps({"a": "x" * 200_000}).encode()
    async with serve_json_socket(tmp_path, NAME, _echo, "failed", SocketLimits(len(text))):
        assert await request(tmp_path, text) == {"result": json.loads(text)}


async def test_a_request_that_is_too_long_is_not_read_and_gets_one_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limit = 300_000
    async with serve_json_socket(tmp_path, NAME, _echo, "failed", SocketLimits(limit)), asyncio.timeout(TIMEOUT_S):
        async with connect(tmp_path) as (reader, writer):
            # What was accepted of an endless request is what the platform and the kernel hold.
            assert await send_without_end(writer) < 10 * limit
        async with connect(tmp_path) as (reader, writer):
            writer.write(b"x" * (limit + 1))
            problem = "the request has more than 300,000 bytes, the limit; send less at once"
            assert json.loads(await reader.readline()) == {"problem": problem}
        assert await request(tmp_path, b"{}") == {"result": {}}
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def send_without_end(writer: asyncio.StreamWriter) -> int:
    """Write until the connection is closed, and return the number of bytes."""
    sent = 0
    try:
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()
            sent += 65_536
    except ConnectionError:
        return sent


@pytest.mark.parametrize("text", [b"", b"hello", b"[1]", b"[" * 50_000, b'{"a": "\xff"}'])
async def test_what_is_no_request_gets_one_error_and_no_traceback(
    tmp_path: Path, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve_json_socket(tmp_path, NAME, _echo, "failed"):
        assert await request(tmp_path, text) == {"problem": "the request is no JSON object"}
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_client_that_sends_nothing_is_disconnected(tmp_path: Path) -> None:
    limits = SocketLimits(client_timeout_s=0.05, connections=1)
    async with serve_json_socket(tmp_path, NAME, _echo, "failed", limits), connect(tmp_path) as (reader, _):
        async with asyncio.timeout(TIMEOUT_S):
            assert await reader.read() == b""
        assert await request(tmp_path, b"{}") == {"result": {}}


async def test_a_client_that_does_not_read_the_reply_is_disconnected(tmp_path: Path) -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(b"x" * 4_000_000)

    writers: list[asyncio.StreamWriter] = []
    async with serve_socket(tmp_path, NAME, answer, SocketLimits(client_timeout_s=0.05)), connect(tmp_path):
        await eventually(lambda: bool(writers) and writers[0].transport.get_write_buffer_size() == 0)
        assert writers[0].is_closing()


async def test_one_connection_too_many_is_told_so_and_the_next_one_is_answered(tmp_path: Path) -> None:
    busy = {"problem": "2 commands are connected to the running platform; try again in a moment"}

    async def request_until(reply: dict[str, Any]) -> None:  # the platform learns of a connection and its end a moment later
        async with asyncio.timeout(TIMEOUT_S):
            while await request(tmp_path, b"{}") != reply:
                pass

    async with serve_json_socket(tmp_path, NAME, _echo, "failed", SocketLimits(connections=2)):
        async with connect(tmp_path), connect(tmp_path):
            await request_until(busy)
        await request_until({"result": {}})


async def test_progress_that_the_client_does_not_read_is_left_out(tmp_path: Path) -> None:
    sizes = []

    async def work(request: dict[str, Any], writer: asyncio.StreamWriter) -> dict[str, Any]:
        for _ in range(2000):
            write_progress(writer, {"doing": "x" * 1000})
        sizes.append(writer.transport.get_write_buffer_size())
        return {"result": 1}

    async with serve_json_socket(tmp_path, NAME, work, "failed"), connect(tmp_path) as (reader, writer):
        writer.write(b"{}")
        writer.write_eof()
        async with asyncio.timeout(TIMEOUT_S):
            lines = (await reader.read()).splitlines()
        assert json.loads(lines[-1]) == {"result": 1}
        assert sizes[0] < 70_000
