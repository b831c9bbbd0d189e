"""The endpoint of a running platform for other processes of the machine: HTTP over a Unix socket in the data directory.

`POST /v1/NAME` with the arguments as a JSON object calls an operation. The answer is lines of JSON (`form.py`).
`DELETE /v1/calls/ID` asks the call with that `Call-Id` for an early end: it ends after its current part, with a result.

Only the user of the platform and root get an answer. `curl --unix-socket data/platform.sock http://platform/v1/status -d '{}'`
shows one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from aiohttp import web

from ...exceptions import ConfigError, CoReasonError, ForbiddenError
from ..definition import Actor, Call, CallerKind, Operation
from ..host import OperationHost
from .form import dump_error, dump_progress
from .unix_socket import bind_socket, find_user

log = logging.getLogger(__name__)

CALL_ID = "Call-Id"
_MAX_BYTES_IN_LOOP = 65_536
_STOP_S = 5.0
_LINGER_S = 1.0  # that a client which sends too much has to read that it does
_STATUS = {ForbiddenError: HTTPStatus.FORBIDDEN, ConfigError: HTTPStatus.BAD_REQUEST}
"""The HTTP status of an error before the first progress, by its class."""


@dataclass(frozen=True, slots=True)
class EndpointLimits:
    """The limits of the endpoint, and of each of its connections."""

    client_timeout_s: float = 30.0
    """The time that a client has to send its request, and to read each line of the answer. The work has no limit."""
    calls: int = 32
    """The most calls at a time. Further ones are refused, and from eight times as many connections on all are closed."""
    answer_bytes: int = 64 * 2**20
    """The most bytes of an answer."""

    @property
    def connections(self) -> int:
        """The most connections at a time."""
        return 8 * self.calls


DEFAULT_LIMITS = EndpointLimits()


@asynccontextmanager
async def serve_operations(
    data_dir: Path,
    host: OperationHost,
    operations: Mapping[str, Operation[Any, Any]],
    limits: EndpointLimits = DEFAULT_LIMITS,
) -> AsyncIterator[None]:
    """Answer calls of operations at the socket in `data_dir` (0600), until the block ends. Calls that run are stopped then.

    Only the process that owns the directory may call this.
    """
    endpoint = _Calls(host, operations, limits)
    app = web.Application()
    app.router.add_post("/v1/{name}", endpoint.call)
    app.router.add_delete("/v1/calls/{id}", endpoint.stop)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_STOP_S, lingering_time=_LINGER_S)
    await runner.setup()
    with bind_socket(data_dir) as listener:
        accept, backlog = partial(endpoint.accept, runner), limits.connections
        server = await asyncio.get_running_loop().create_unix_server(accept, sock=listener, backlog=backlog)
        try:
            yield
        finally:
            server.close()
            endpoint.stop_all()
            await runner.cleanup()


class _Calls:
    def __init__(self, host: OperationHost, operations: Mapping[str, Operation[Any, Any]], limits: EndpointLimits) -> None:
        self._host = host
        self._operations = operations
        self._limits = limits
        self._calls: dict[object, Call] = {}
        self._silent: set[asyncio.Protocol] = set()
        """The connections that have not sent the head of a request."""

    def accept(self, runner: web.AppRunner) -> asyncio.Protocol:
        """Return the protocol of a new connection. It is closed if no request comes in time, or if there are too many."""
        assert runner.server is not None
        protocol, loop = runner.server(), asyncio.get_running_loop()
        self._silent.add(protocol)
        is_too_many = len(runner.server.connections) >= self._limits.connections
        loop.call_later(0.0 if is_too_many else self._limits.client_timeout_s, self._close_silent, protocol)
        return protocol

    def _close_silent(self, protocol: web.RequestHandler) -> None:
        if protocol in self._silent:
            self._silent.discard(protocol)
            protocol.force_close()

    async def call(self, request: web.Request) -> web.StreamResponse:
        """Answer a call."""
        self._silent.discard(request.protocol)
        reply = _Reply(request, self._limits)
        actor = _find_actor(request)
        if actor is None:
            return await reply.fail(ForbiddenError("another user of the machine owns this platform"))
        found = self._operations.get(request.match_info["name"])
        if found is None:
            problem = f"has another version and does not know {request.match_info['name']}; restart it"
            return await reply.fail(CoReasonError(f"the running platform {problem}"), HTTPStatus.NOT_FOUND)
        if len(self._calls) >= self._limits.calls:
            problem = f"{self._limits.calls} commands are connected to the running platform; try again in a moment"
            return await reply.fail(CoReasonError(problem), HTTPStatus.SERVICE_UNAVAILABLE)
        call = Call(self._host, actor)
        call.on_progress = lambda done, total: call.stop() if reply.is_cut else reply.report(done, total)
        key = request.headers.get(CALL_ID) or object()
        self._calls[key] = call
        try:
            arguments = found.read_arguments(await self._read_json(request, found.max_request_bytes))
            result = await found(call, arguments)
        except CoReasonError as error:
            return await reply.fail(error)
        except Exception:
            log.exception("the operation %s failed", found.name)
            problem = "the running platform failed to do this; its log has the reason"
            return await reply.fail(CoReasonError(problem), HTTPStatus.INTERNAL_SERVER_ERROR)
        finally:
            self._calls.pop(key, None)
        return await reply.end(found.answer.dump(result))

    async def stop(self, request: web.Request) -> web.Response:
        """Ask a call for an early end."""
        self._silent.discard(request.protocol)
        if _find_actor(request) is None:
            return web.Response(status=HTTPStatus.FORBIDDEN)
        call = self._calls.get(request.match_info["id"])
        if call is not None:
            call.stop()
        return web.Response(status=HTTPStatus.NOT_FOUND if call is None else HTTPStatus.NO_CONTENT)

    def stop_all(self) -> None:
        """Ask all calls for an early end."""
        for call in self._calls.values():
            call.stop()

    async def _read_json(self, request: web.Request, max_bytes: int) -> Any:
        """Return the value of a body. Raise ConfigError if it is too long, comes too slowly, or is no JSON."""
        body, limit_s = bytearray(), self._limits.client_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                async for data in request.content.iter_any():
                    body += data
                    if len(body) > max_bytes:
                        raise ConfigError("", f"the request has more than {max_bytes:,} bytes, the limit; send less at once")
            return json.loads(body) if len(body) <= _MAX_BYTES_IN_LOOP else await asyncio.to_thread(json.loads, body)
        except TimeoutError as error:
            raise ConfigError("", f"the request was not complete within {limit_s:g} s") from error
        except (ValueError, RecursionError) as error:
            raise ConfigError("", "the request is no JSON object") from error


class _Reply:
    """The answer to a call, which begins with its first line."""

    def __init__(self, request: web.Request, limits: EndpointLimits) -> None:
        self._request = request
        self._limits = limits
        self._response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        self._progress: asyncio.Task[None] | None = None

    @property
    def is_cut(self) -> bool:
        """True once the caller has gone."""
        return self._request.transport is None or self._request.transport.is_closing()

    def report(self, done: int, total: int) -> None:
        """Write a progress, unless the one before is not written yet."""
        if self._progress is None or self._progress.done():
            self._progress = asyncio.create_task(self._write(dump_progress(done, total), is_last=False))

    async def fail(self, error: CoReasonError, status: HTTPStatus = HTTPStatus.CONFLICT) -> web.StreamResponse:
        """Write an error as the last line."""
        if not self._response.prepared:
            self._response.set_status(next((code for kind, code in _STATUS.items() if isinstance(error, kind)), status))
        return await self.end(dump_error(error))

    async def end(self, line: bytes) -> web.StreamResponse:
        """Write the last line."""
        if self._progress is not None:
            await self._progress
        await self._write(line)
        return self._response

    async def _write(self, line: bytes, *, is_last: bool = True) -> None:
        """Write a line. A client that does not read it in time is disconnected."""
        if len(line) >= self._limits.answer_bytes:
            problem = f"the answer has more than {self._limits.answer_bytes:,} bytes, the limit; ask for less"
            await self.fail(CoReasonError(problem))
            return
        try:
            async with asyncio.timeout(self._limits.client_timeout_s):
                if not self._response.prepared:
                    await self._response.prepare(self._request)
                await self._response.write(line + b"\n")
                if is_last:
                    await self._response.write_eof()
        except (TimeoutError, ConnectionError):
            if self._request.transport is not None:
                self._request.transport.abort()


def _find_actor(request: web.Request) -> Actor | None:
    """Return the user at the other end; None for one who is neither the platform's nor root."""
    if request.transport is None:
        return None
    user, name = find_user(request.transport.get_extra_info("socket"))
    return Actor(CallerKind.MACHINE_USER, f"user {name}") if user in (0, os.geteuid()) else None
