"""The endpoint of operations in the data directory: whatever a client does, memory, time and connections are limited."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from spade_coreason.app.stored_host import open_stored_host
from spade_coreason.config import Settings
from spade_coreason.exceptions import ConfigError, ServerError, StoreError
from spade_coreason.operations.definition import Arguments, Call, CallerKind, Operation, operation
from spade_coreason.operations.rpc.client import call_platform
from spade_coreason.operations.rpc.endpoint import DEFAULT_LIMITS, EndpointLimits, serve_operations
from spade_coreason.operations.rpc.unix_socket import socket_address
from tests.support.errors import ExpectedErrors
from tests.support.wait import TIMEOUT_S, eventually


class Text(Arguments):
    text: str = ""


async def _echo(call: Call, arguments: Text) -> str:
    """Return the text."""
    return arguments.text


echo = operation("echo", max_request_bytes=300_000)(_echo)


@operation("count")
async def count(call: Call, arguments: Text) -> int:
    """Count until it is stopped."""
    done = 0
    while not call.is_stopped:
        done += 1
        call.on_progress(done, 0)
        await asyncio.sleep(0)
    return done


@operation("fail")
async def fail(call: Call, arguments: Text) -> None:
    """Raise the error of a name."""
    errors = {"config": ConfigError("text", "is wrong"), "store": StoreError("cannot write"), "": ZeroDivisionError()}
    raise errors[arguments.text]


@operation("long")
async def long(call: Call, arguments: Text) -> str:
    """Return a long text."""
    return "x" * int(arguments.text)


@operation("operators", frozenset({CallerKind.OPERATOR}))
async def operators(call: Call, arguments: Text) -> None:
    """Do what only operators may."""


OWN: tuple[Operation[Any, Any], ...] = (echo, count, fail, long, operators)


@asynccontextmanager
async def serve(data_dir: Path, limits: EndpointLimits = DEFAULT_LIMITS) -> AsyncIterator[None]:
    async with (
        open_stored_host(Settings(data_dir=data_dir), []) as host,
        serve_operations(data_dir, host, {one.name: one for one in OWN}, limits),
    ):
        yield


@asynccontextmanager
async def connect(data_dir: Path) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    with socket_address(data_dir) as address:
        reader, writer = await asyncio.open_unix_connection(address)
    try:
        yield reader, writer
    finally:
        writer.close()


def head(name: str, length: int, more: str = "") -> bytes:
    return f"POST /v1/{name} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{more}\r\n".encode()


async def post(data_dir: Path, name: str, body: bytes) -> tuple[int, dict[str, Any]]:
    """Send a request and return the status and the last line of the answer."""
    async with asyncio.timeout(TIMEOUT_S), connect(data_dir) as (reader, writer):
        writer.write(head(name, len(body), "Connection: close\r\n") + body)
        answer = await reader.read()
    lines = [line for line in answer.splitlines() if line.startswith(b"{")]
    return int(answer.split()[1]), json.loads(lines[-1])


async def call(data_dir: Path, operation: Operation[Any, Any], text: str = "", **keywords: Any) -> Any:
    result, _ = await asyncio.to_thread(partial(call_platform, data_dir, operation, Text(text=text), **keywords))
    return result


async def test_a_request_of_the_longest_length_is_answered(tmp_path: Path) -> None:
    text = "x" * (300_000 - len('{"text": ""}'))
    async with serve(tmp_path):
        assert await call(tmp_path, echo, text) == text
        status, line = await post(tmp_path, "echo", json.dumps({"text": f"{text}x"}).encode())
    assert status == HTTPStatus.BAD_REQUEST
    assert line["error"]["text"] == "the request has more than 300,000 bytes, the limit; send less at once"


async def test_a_request_that_is_too_long_is_not_sent(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^the request has 300,013 bytes, more than the limit of 300,000; send less at once$"
    ):
        await call(tmp_path, echo, "x" * 300_001)  # no platform runs here


async def test_a_refusal_before_all_is_sent_is_told(tmp_path: Path) -> None:
    error = json.dumps({"error": {"type": "StoreError", "place": "", "text": "no more"}}).encode()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 400 Refused\r\nContent-Length: %d\r\n\r\n%b" % (len(error), error))
        writer.transport.abort()

    long_echo = operation("echo", max_request_bytes=2**26)(_echo)
    with socket_address(tmp_path) as address:
        server = await asyncio.start_unix_server(refuse, address)
    async with server:
        with pytest.raises(StoreError, match=r"^no more$"):
            await call(tmp_path, long_echo, "x" * 2**22)


class NotingExecutor(ThreadPoolExecutor):
    """Threads that note the functions which run in them."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: list[str] = []

    def submit(self, function: Any, /, *arguments: Any, **keywords: Any) -> Any:
        self.functions.append(function.args[0].__name__)
        return super().submit(function, *arguments, **keywords)


async def test_long_json_is_read_beside_the_event_loop(tmp_path: Path) -> None:
    executor = NotingExecutor()
    asyncio.get_running_loop().set_default_executor(executor)
    async with serve(tmp_path):
        assert (await post(tmp_path, "echo", b'{"text": "a"}'))[0] == HTTPStatus.OK
        assert executor.functions == []
        assert (await post(tmp_path, "echo", json.dumps({"text": "x" * 100_000}).encode()))[0] == HTTPStatus.OK
        assert executor.functions == ["loads"]


async def test_an_endless_request_is_not_read_to_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serve(tmp_path), asyncio.timeout(TIMEOUT_S):
        async with connect(tmp_path) as (_, writer):
            writer.write(head("echo", 2**40))
            before_kib = resident_kib()
            await send_without_end(writer)
            assert resident_kib() - before_kib < 10 * echo.max_request_bytes / 1024
        assert await call(tmp_path, echo, "a") == "a"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def send_without_end(writer: asyncio.StreamWriter) -> None:
    """Write until the connection is closed."""
    with suppress(ConnectionError):
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()


def resident_kib() -> int:
    return int(re.findall(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[0])


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        *((body, "the request is no JSON object") for body in (b"", b"hello", b"[" * 50_000, b'{"a": "\xff"}')),
        (b"[1]", "must contain keys with values, like {key: value}"),
        (b'{"txt": "a"}', 'unknown key; did you mean "text"?'),
        (b'{"text": 1}', "must be a text; quote it"),
    ],
)
async def test_what_is_no_request_gets_one_error_and_no_traceback(
    tmp_path: Path, body: bytes, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(tmp_path):
        status, line = await post(tmp_path, "echo", body)
    assert (status, line["error"]["text"]) == (HTTPStatus.BAD_REQUEST, problem)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_an_operation_of_another_version_is_not_found(tmp_path: Path) -> None:
    async with serve(tmp_path):
        status, line = await post(tmp_path, "dance", b"{}")
    assert status == HTTPStatus.NOT_FOUND
    assert line["error"]["text"] == "the running platform has another version and does not know dance; restart it"


async def test_an_answer_of_another_version_is_refused_in_a_sentence(tmp_path: Path) -> None:
    @operation("echo")
    async def newer(call: Call, arguments: Text) -> int:
        """Return a number."""
        return 0

    async with serve(tmp_path):
        with pytest.raises(ServerError, match="has another version, and its answer cannot be read"):
            await asyncio.to_thread(call_platform, tmp_path, newer, Text(text="one"))


async def test_errors_are_those_of_the_operation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, expected_errors: ExpectedErrors
) -> None:
    expected_errors("the operation fail failed")
    async with serve(tmp_path):
        with pytest.raises(ConfigError, match=r"^text: is wrong$"):
            await call(tmp_path, fail, "config")
        with pytest.raises(StoreError, match=r"^cannot write$"):
            await call(tmp_path, fail, "store")
        assert not caplog.records
        status, line = await post(tmp_path, "fail", b"{}")
        assert status == HTTPStatus.INTERNAL_SERVER_ERROR
        assert line["error"]["text"] == "the running platform failed to do this; its log has the reason"
        [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert record.exc_info is not None
        assert record.exc_info[0] is ZeroDivisionError
        assert (await post(tmp_path, "operators", b"{}"))[0] == HTTPStatus.FORBIDDEN


async def test_an_answer_that_is_too_long_is_refused(tmp_path: Path) -> None:
    async with serve(tmp_path, EndpointLimits(answer_bytes=1000)):
        assert await call(tmp_path, long, "900") == "x" * 900
        status, line = await post(tmp_path, "long", b'{"text": "1001"}')
    assert (status, line["error"]["text"]) == (409, "the answer has more than 1,000 bytes, the limit; ask for less")


async def test_a_client_that_sends_nothing_is_disconnected(tmp_path: Path) -> None:
    async with serve(tmp_path, EndpointLimits(client_timeout_s=0.05)), asyncio.timeout(TIMEOUT_S):
        async with connect(tmp_path) as (reader, _):
            assert await reader.read() == b""
        async with connect(tmp_path) as (reader, writer):
            writer.write(head("echo", 5) + b"{")
            assert b"the request was not complete within 0.05 s" in await reader.readuntil(b"}}")


async def test_a_client_that_does_not_read_the_answer_is_disconnected(tmp_path: Path) -> None:
    async with serve(tmp_path, EndpointLimits(client_timeout_s=0.05)), connect(tmp_path) as (_, writer):
        writer.write(head("long", 20) + b'{"text": "20000000"}')
        async with asyncio.timeout(TIMEOUT_S):
            await send_without_end(writer)


async def test_one_call_too_many_is_told_so_and_the_next_one_is_answered(tmp_path: Path) -> None:
    busy = "2 commands are connected to the running platform; try again in a moment"
    async with serve(tmp_path, EndpointLimits(calls=2)), asyncio.timeout(TIMEOUT_S):
        async with connect(tmp_path) as (first, writer), connect(tmp_path) as (second, other):
            for each in (writer, other):
                each.write(head("count", 2) + b"{}")
            await first.readuntil(b"progress")
            await second.readuntil(b"progress")
            assert (await post(tmp_path, "echo", b"{}"))[1]["error"]["text"] == busy
        while (await post(tmp_path, "echo", b"{}"))[0] != HTTPStatus.OK:  # the end of a connection is noticed later
            pass


async def test_two_hundred_commands_at_once_are_all_answered(tmp_path: Path) -> None:
    loop, texts = asyncio.get_running_loop(), [str(number) for number in range(200)]
    commands = [partial(call_platform, tmp_path, echo, Text(text=text)) for text in texts]
    with ThreadPoolExecutor(200) as executor:
        async with serve(tmp_path):
            answers = await asyncio.gather(*(loop.run_in_executor(executor, command) for command in commands))
    assert [answer for answer, _ in answers] == texts


async def test_silent_connections_do_not_add_up(tmp_path: Path) -> None:
    async with serve(tmp_path, EndpointLimits(calls=2)), asyncio.timeout(TIMEOUT_S), AsyncExitStack() as stack:
        for _ in range(16):
            await stack.enter_async_context(connect(tmp_path))
        reader, _ = await stack.enter_async_context(connect(tmp_path))
        assert await reader.read() == b""


async def test_a_stop_ends_a_call_with_its_result(tmp_path: Path) -> None:
    async with serve(tmp_path), asyncio.timeout(TIMEOUT_S), connect(tmp_path) as (reader, writer):
        writer.write(head("count", 2, "Call-Id: mine\r\n") + b"{}")
        await reader.readuntil(b'"progress"')
        async with connect(tmp_path) as (other_reader, other):
            other.write(b"DELETE /v1/calls/mine HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert (await other_reader.read()).startswith(b"HTTP/1.1 204")
        await reader.readuntil(b'{"result":')


async def test_a_call_ends_soon_after_its_client_has_gone(tmp_path: Path) -> None:
    ended = asyncio.Event()

    @operation("wait")
    async def wait(call: Call, arguments: Text) -> None:
        """Wait until it is stopped."""
        while not call.is_stopped:
            call.on_progress(0, 1)
            await asyncio.sleep(0)
        ended.set()

    async with (
        open_stored_host(Settings(data_dir=tmp_path), []) as host,
        serve_operations(tmp_path, host, {"wait": wait}),
        asyncio.timeout(TIMEOUT_S),
    ):
        async with connect(tmp_path) as (reader, writer):
            writer.write(head("wait", 2) + b"{}")
            await reader.readuntil(b'"progress"')
        await ended.wait()


async def test_the_end_of_the_platform_is_one_clear_line(tmp_path: Path) -> None:
    async with serve(tmp_path):
        running = asyncio.create_task(call(tmp_path, count))
        await eventually(lambda: not running.done())
    async with asyncio.timeout(TIMEOUT_S):
        with suppress(ServerError):  # if its platform is gone before it is told of its end
            assert await running > 0
