"""The transports of MCP servers, with a limit to the size of a message: a program of ours (stdio), or streamable HTTP.

A program writes newline-delimited JSON. The transport of the SDK reads a line of any length into memory, in quadratic time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from asyncio.subprocess import SubprocessStreamProtocol
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeAlias

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCMessage, jsonrpc_message_adapter

from ...domain.environment.proxies import build_transport
from ...domain.texts.answer_meter import AnswerMeter, AnswerTooLargeError
from ...domain.texts.foreign_json import MAX_JSON_VALUES, check_values
from ...domain.texts.text import replace_lone_surrogates
from .options import ServerOptions

log = logging.getLogger(__name__)

TransportStreams: TypeAlias = tuple[Any, Any]
"""A stream of received messages, and one of those to send, as `mcp.client.Transport` yields them. The SDK exports no type."""

MAX_MESSAGE_BYTES = 2**22
"""The longest message that is read, by either transport."""
_PAUSE_S = 0.001
"""Seconds between two messages that come at once."""
_GRACE_S = 2.0
"""Seconds to end after its input is closed."""
_EXIT_WAIT_S = 1.0
"""Seconds to end after a signal, and to read the last output of a program."""
_TAIL_BYTES = 2000
_READ_TIMEOUT_S = 300.0
"""Seconds after which a silent stream of events is opened again."""
LOST_SESSIONS: ContextVar[list[httpx2.Response]] = ContextVar("lost_sessions")
"""The responses by which a server does not know the session of this task's call (HTTP 404). It has not run the call."""


class _ProgramProtocol(SubprocessStreamProtocol):
    """A protocol that reports the end of the program itself.

    asyncio's `wait` also waits for the pipes, which a child of the program may hold open.
    """

    def __init__(self) -> None:
        super().__init__(MAX_MESSAGE_BYTES, asyncio.get_running_loop())
        self.exited = asyncio.Event()
        self.finished = asyncio.Event()
        """Set when the program has exited or closed its standard output."""

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()
        self.finished.set()


class ServerProgram:
    """One run of a server. `on_end` receives the reason of its end, `on_output` the lines of its standard error."""

    def __init__(
        self,
        transport: asyncio.SubprocessTransport,
        pipes: _ProgramProtocol,
        on_end: Callable[[str], None],
        on_output: Callable[[str], None],
    ) -> None:
        self._transport = transport
        self._pipes = pipes
        self._on_end = on_end
        self._on_output = on_output
        self._output_read = asyncio.Event()
        self._errors_read = asyncio.Event()
        self._has_failed = False

    async def read(self, received: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        """Pass on its messages."""
        assert self._pipes.stdout is not None
        try:
            while line := await self._pipes.stdout.readline():
                check_values(line)
                try:
                    message = _parse_message(line)
                except (ValueError, RecursionError):  # programs print to their standard output
                    log.debug("ignored a line of an MCP server that is not a message")
                    continue
                await received.send(SessionMessage(message))
                await asyncio.sleep(_PAUSE_S)
        except ValueError:
            self._fail(f"sent a message of more than {MAX_MESSAGE_BYTES:,} bytes, or {MAX_JSON_VALUES:,} values")
        except anyio.BrokenResourceError:  # the reader has ended
            return
        self._output_read.set()
        self._pipes.finished.set()

    async def write(self, to_send: MemoryObjectReceiveStream[SessionMessage]) -> None:
        """Write our messages, without waiting for a program that does not read them."""
        stdin = self._pipes.stdin
        assert stdin is not None
        async for session_message in to_send:
            if stdin.transport.get_write_buffer_size() > MAX_MESSAGE_BYTES:
                self._fail("does not read its requests")
            elif not stdin.is_closing():
                stdin.write(session_message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")

    async def read_errors(self) -> None:
        """Read its standard error: a full pipe would stop the program."""
        assert self._pipes.stderr is not None
        tail = b""
        while piece := await self._pipes.stderr.read(_TAIL_BYTES):
            tail = (tail + piece)[-_TAIL_BYTES:]
            lines = tail.decode(errors="replace").splitlines()
            self._on_output(next((line.strip() for line in reversed(lines) if line.strip()), ""))
        self._errors_read.set()

    async def wait_for_end(self) -> None:
        """Wait for its end and read the last output, for a limited time: a child may hold the pipes open for ever."""
        await self._pipes.finished.wait()
        with anyio.move_on_after(_EXIT_WAIT_S):
            for done in (self._pipes.exited, self._output_read, self._errors_read):
                await done.wait()
        code = self._transport.get_returncode()
        self._fail("has ended" if code is None else f"has ended with exit code {code}")

    async def stop(self) -> None:
        """Stop it, and the processes of its group."""
        assert self._pipes.stdin is not None
        self._pipes.stdin.close()
        with anyio.move_on_after(0 if self._has_failed else _GRACE_S):
            await self._pipes.exited.wait()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):  # all processes have ended
                os.killpg(self._transport.get_pid(), number)
            with anyio.move_on_after(_EXIT_WAIT_S):
                await self._pipes.exited.wait()
        self._transport.close()

    def _fail(self, problem: str) -> None:
        self._has_failed = True
        self._on_end(problem)


def _parse_message(line: bytes) -> JSONRPCMessage:
    """Parse a message, or raise ValueError.

    Some servers cut a text in the middle of a character. Its escape, such as "\\ud83d", is invalid JSON for the SDK.
    """
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        if b"\\ud" not in line.lower():
            raise
        return jsonrpc_message_adapter.validate_json(json.dumps(replace_lone_surrogates(json.loads(line))), by_name=False)


@asynccontextmanager
async def open_stdio(
    options: ServerOptions, on_end: Callable[[str], None], on_output: Callable[[str], None]
) -> AsyncIterator[TransportStreams]:
    """Run a server from its start to its end. OSError if it cannot be started."""
    assert options.command is not None
    env = {name: value.get_secret_value() for name, value in options.env.items()}
    transport, pipes = await asyncio.get_running_loop().subprocess_exec(
        _ProgramProtocol,
        *options.command,
        env=get_default_environment() | env,
        cwd=options.cwd,
        start_new_session=True,
    )
    program = ServerProgram(transport, pipes, on_end, on_output)
    incoming_sender, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, outgoing_receiver = anyio.create_memory_object_stream[SessionMessage](0)
    async with anyio.create_task_group() as group:
        group.start_soon(program.read, incoming_sender)
        group.start_soon(program.write, outgoing_receiver)
        group.start_soon(program.read_errors)
        group.start_soon(program.wait_for_end)
        try:
            yield incoming, outgoing
        finally:
            with anyio.CancelScope(shield=True):
                await program.stop()
            group.cancel_scope.cancel()
            for stream in (incoming_sender, incoming, outgoing, outgoing_receiver):
                stream.close()


class _ServerAnswerStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, *, has_events: bool) -> None:
        self._stream = stream
        self._meter = AnswerMeter(has_events, MAX_MESSAGE_BYTES)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._stream:
                for event in self._meter.divide(piece):
                    yield event
                    await asyncio.sleep(_PAUSE_S)
            yield self._meter.end()
        except AnswerTooLargeError as error:
            raise (httpx2.SSEError if self._meter.has_events else httpx2.StreamError)(str(error)) from error

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _limit_response_size(response: httpx2.Response) -> None:
    """Limit a JSON response, which the SDK reads whole, or each event of a stream."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.DecodingError("it compresses its answer against the request")  # few bytes may unpack to many
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    has_events = "text/event-stream" in response.headers.get("content-type", "").lower()
    response.encoding = "utf-8"  # by another one, the SDK would read other events than these
    response.stream = _ServerAnswerStream(response.stream, has_events=has_events)


@asynccontextmanager
async def open_http(options: ServerOptions, on_output: Callable[[str], None]) -> AsyncIterator[TransportStreams]:
    """Connect to a server; nothing is sent before the first request. Redirects to other servers are not followed.

    `on_output` receives responses with an HTTP status that is an error.
    """

    async def report_status(response: httpx2.Response) -> None:
        if response.is_error:
            on_output(f"HTTP {response.status_code} {response.reason_phrase}".strip())
        # Not a GET: it asks for the rest of a result that has begun.
        request = response.request
        if response.status_code == httpx2.codes.NOT_FOUND and request.method == "POST" and "mcp-session-id" in request.headers:
            LOST_SESSIONS.get([]).append(response)

    assert options.url is not None
    headers = {"Accept-Encoding": "identity"} | {name: value.get_secret_value() for name, value in options.headers.items()}
    timeout = httpx2.Timeout(options.timeout_s, read=_READ_TIMEOUT_S)
    async with (
        httpx2.AsyncClient(
            headers=headers,
            timeout=timeout,
            transport=build_transport(options.url),
            event_hooks={"response": [_limit_response_size, report_status]},
        ) as client,
        streamable_http_client(options.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
    ):
        yield streams
