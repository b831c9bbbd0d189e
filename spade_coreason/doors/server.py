"""The HTTP server of the doors: Starlette and uvicorn's protocol in the event loop of the platform.

The connections are accepted here, so that uvicorn takes no signals, and that they are counted before their TLS handshake.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import ssl
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn import Config
from uvicorn.server import ServerState

from ..concurrency import cancel_tasks
from ..config import WebLimits, WebSettings
from ..exceptions import ServerError, StoreError
from .addresses import Proxies
from .authentication import Authentication, FindCaller
from .connections import ConnectionPools
from .errors import HttpError, make_error_response
from .guard import FAILURE, RequestGuard
from .limits import LimitedProtocol, LimitedRequests

log = logging.getLogger(__name__)

FindProblem = Callable[[], Awaitable[str | None]]
"""A function that returns the kind of problem that keeps the platform from serving, or None."""

_BACKLOG = 512
_CLOSE_S = 3.0
_FULL_S = 0.2
_REFUSED_CONNECTIONS = 64
"""The connections without a slot that are told so at once. The oldest one, which has sent nothing, makes room for another."""
_OTHER_FILES = 512
"""The open files that the rest of the platform may need."""
_HEALTH_S = 1.0
_STORE_S = 5.0
_CORS_METHODS = ("GET", "POST", "DELETE")
_REMEDIES = {
    errno.EADDRINUSE: (
        "is in use; stop the program that listens there, or choose another web.port"
        " (one of several workers: by SPADE_COREASON_WEB__PORT)"
    ),
    errno.EADDRNOTAVAIL: "does not belong to this machine; correct web.host",
    errno.EACCES: "may not be used by this user; choose a web.port from 1024 on",
}


@dataclass(frozen=True, slots=True)
class DoorRoutes:
    """The routes of a door.

    `routes` are for requests with a key: `caller_of` returns its caller. `open_routes` have no key, and protect themselves,
    such as by a signature.
    """

    routes: tuple[BaseRoute, ...] = ()
    open_routes: tuple[BaseRoute, ...] = ()
    close: Callable[[], Awaitable[None]] | None = None
    """A function that ends what the door keeps open, awaited after the last request."""
    stop: Callable[[], object] = lambda: None
    """A function that ends what has no end by itself, called when the server begins to stop."""


class WebServer:
    """The HTTP server: `await start()`, `begin_stop()` as soon as the platform stops, `await close()` after its agents.

    `find_caller` returns the caller with a key. `find_problem` returns what keeps the platform from serving.
    """

    def __init__(
        self, settings: WebSettings, find_caller: FindCaller, find_problem: FindProblem, doors: Iterable[DoorRoutes] = ()
    ) -> None:
        self.url = settings.public_url
        """The public address."""
        self._host = settings.host
        self._port = settings.port
        self._tls = settings.tls
        self._limits = settings.limits
        self._health = _HealthRoutes(find_problem)
        self._doors = list(doors)
        app = _build_app(self._doors, self._health, find_caller, self._limits)
        if settings.cors_origins:
            app = CORSMiddleware(app, settings.cors_origins, allow_methods=_CORS_METHODS, allow_headers=["*"])
        self._pools = ConnectionPools(self._limits, Proxies(settings.proxies))
        self._guard = RequestGuard(app, settings, self._pools)
        self._app = LimitedRequests(self._guard, self._limits)
        self.refused_connections = 0
        """The number of connections since the start that were one too many."""
        self._state = ServerState()
        self._listeners: list[socket.socket] = []
        self._accepts: list[asyncio.Task[None]] = []
        self._handshakes: set[asyncio.Task[None]] = set()
        self._refused: dict[LimitedProtocol, asyncio.Task[None]] = {}

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._state.connections)

    @property
    def responses(self) -> Mapping[int, int]:
        """The number of answers since the start, by status."""
        return self._guard.responses

    async def start(self) -> None:
        """Listen. Raise ServerError if that is not possible."""
        context = None if self._tls is None else self._tls.load()
        self._pools.limits = self._limits.model_copy(update={"connections": _reserve_files(self._limits.connections)})
        self._listeners = await _listen(self._host, self._port)
        config = Config(
            self._app,
            http=LimitedProtocol,
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=self._limits.idle_s,  # type: ignore[arg-type] # whole seconds are not needed
            h11_max_incomplete_event_size=self._limits.header_bytes,
        )
        config.load()
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # anyone can send what it warns of
        self._accepts = [asyncio.create_task(self._accept(each, config, context)) for each in self._listeners]

    def begin_stop(self) -> None:
        """Refuse new requests with 503. Those in progress go on."""
        self._guard.is_stopping = True
        self._health.is_stopping = True
        for door in self._doors:
            door.stop()

    async def close(self) -> None:
        """Close the server, and within a few seconds all connections."""
        self.begin_stop()
        await cancel_tasks(*self._accepts, *self._handshakes)
        for listener in self._listeners:
            listener.close()
        for protocol in self._protocols():
            protocol.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                while self._state.connections or self._state.tasks:  # noqa: ASYNC110 - uvicorn has no event for it
                    await asyncio.sleep(0.05)
        for protocol in self._protocols():
            protocol.abort()
        await asyncio.sleep(0)  # the protocols hear of it
        await cancel_tasks(*self._state.tasks)
        for door in self._doors:
            if door.close is not None:
                await door.close()

    def _protocols(self) -> Sequence[LimitedProtocol]:
        return [each for each in self._state.connections if isinstance(each, LimitedProtocol)]

    async def _accept(self, listener: socket.socket, config: Config, context: ssl.SSLContext | None) -> None:
        loop, is_reported = asyncio.get_running_loop(), False
        while True:
            try:
                accepted, address = await loop.sock_accept(listener)
                # asyncio does this for its own listeners only. Without it, an answer in two parts takes 40 ms longer.
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:  # no more open files, for example
                if not is_reported:
                    log.warning("no connection can be accepted: %s", error.strerror)
                is_reported = True
                await asyncio.sleep(_FULL_S)
                continue
            is_reported = False
            slot = self._pools.enter(address[0])
            protocol = LimitedProtocol(config, self._state, self._limits, slot, self._on_lost)
            task = asyncio.create_task(self._connect(accepted, protocol, context))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)
            if slot.refusal is not None:
                self.refused_connections += 1
                if len(self._refused) >= _REFUSED_CONNECTIONS:
                    oldest = next(iter(self._refused))
                    self._refused.pop(oldest).cancel()
                    oldest.abort()
                self._refused[protocol] = task

    def _on_lost(self, protocol: LimitedProtocol) -> None:
        self._refused.pop(protocol, None)
        protocol.slot.move()

    async def _connect(self, accepted: socket.socket, protocol: LimitedProtocol, context: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        timeout_s = None if context is None else self._limits.header_s
        try:
            await loop.connect_accepted_socket(
                lambda: protocol, accepted, ssl=context, ssl_handshake_timeout=timeout_s, ssl_shutdown_timeout=timeout_s
            )
        except OSError as error:  # a client that does not trust the certificate, or speaks no TLS
            log.debug("a connection was not made: %s", error)
        finally:
            if not protocol.is_made:
                self._on_lost(protocol)
                accepted.close()


class _HealthRoutes:
    """The two paths for programs that watch the server."""

    def __init__(self, find_problem: FindProblem) -> None:
        self.is_stopping = False
        self._find_problem = find_problem
        self._checked_at: float | None = None
        self._problem: str | None = None
        self._lock = asyncio.Lock()

    async def is_alive(self, request: Request) -> Response:
        """Answer that the process answers."""
        return JSONResponse({"status": "ok"})

    async def is_ready(self, request: Request) -> Response:
        """Answer whether requests are served: 200, or 503 with the kind of the problem."""
        problem = "stopping" if self.is_stopping else await self._find_recent_problem()
        return JSONResponse({"status": problem or "ok"}, 503 if problem else 200)

    async def _find_recent_problem(self) -> str | None:
        # Anyone may ask, so the database is asked once a second at most.
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if self._checked_at is None or now - self._checked_at > _HEALTH_S:
                self._problem = await self._find_problem()
                self._checked_at = asyncio.get_running_loop().time()
            return self._problem


def _build_app(doors: Sequence[DoorRoutes], health: _HealthRoutes, find_caller: FindCaller, limits: WebLimits) -> ASGIApp:
    protected = Router(_with_other_methods([route for door in doors for route in door.routes]), redirect_slashes=False)
    routes = [
        Route("/healthz", health.is_alive),
        Route("/readyz", health.is_ready),
        *_with_other_methods([route for door in doors for route in door.open_routes]),
        # All else needs a key, whatever its path is.
        Mount("", Authentication(protected, find_caller, limits.requests_per_key)),
    ]
    handlers = {
        HTTPException: _answer_error,
        StoreError: _answer_not_stored,
        Exception: _answer_failure,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return app


def _with_other_methods(routes: Sequence[BaseRoute]) -> list[BaseRoute]:
    """Return the routes, and for each path a last one that refuses all methods but those of its routes."""
    allowed: defaultdict[str, set[str]] = defaultdict(set)
    for route in routes:
        if isinstance(route, Route) and route.methods is not None:
            allowed[route.path] |= route.methods
    return [*routes, *(Route(path, _OtherMethods(methods)) for path, methods in allowed.items())]


class _OtherMethods:
    """An application that refuses a method. Starlette names the methods of the first route of a path only."""

    def __init__(self, allowed: set[str]) -> None:
        self._allowed = ", ".join(sorted(allowed))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise HTTPException(405, headers={"Allow": self._allowed})


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return make_error_response(request.scope["path"], error)


async def _answer_not_stored(request: Request, error: Exception) -> Response:
    log.error("a request failed: %s", error)
    unavailable = HttpError(503, "storage fails at the moment; try again in a moment", retry_after_s=_STORE_S)
    return make_error_response(request.scope["path"], unavailable)


async def _answer_failure(request: Request, error: Exception) -> Response:
    """Answer a request at which a door failed. Starlette raises the error again, and the guard logs it."""
    return make_error_response(request.scope["path"], FAILURE)


async def check_address(settings: WebSettings) -> None:
    """Raise ServerError if the server could not listen at its address now."""
    for listener in await _listen(settings.host, settings.port):
        listener.close()


async def _listen(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen on all addresses of a host. Raise ServerError."""
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    listeners: list[socket.socket] = []
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((each[0], each[4]) for each in found):
            is_both = host == "::" and socket.has_dualstack_ipv6()
            listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG, dualstack_ipv6=is_both)
            listener.setblocking(False)
            listeners.append(listener)
    except OSError as error:
        for listener in listeners:
            listener.close()
        remedy = _REMEDIES.get(error.errno or 0, f"cannot be used: {error.strerror}; correct web.host and web.port")
        raise ServerError(f"{place} {remedy}") from error
    return listeners


def _reserve_files(connections: int) -> int:
    """Raise the limit of open files, so that many connections leave enough for the rest. Return how many there may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + _OTHER_FILES  # as many may be those of proxies
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    granted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (granted, hard))
    allowed = max(granted - _OTHER_FILES, granted // 4)
    if allowed >= connections:
        return connections
    log.warning("at most %d HTTP connections at once: this process may open %d files; raise `ulimit -n`", allowed, granted)
    return allowed
