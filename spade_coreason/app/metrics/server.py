"""The HTTP server of the metrics: the one of prometheus_client, whose threads answer while the event loop is blocked."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from io import StringIO
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

from ...config import MetricsSettings
from ...domain.environment.loopback import is_loopback
from ...doors import LOOPBACK_NAMES, split_host
from ...exceptions import ServerError

if TYPE_CHECKING:
    from .collector import MetricsCollector

_CONNECTIONS = 16
"""The most connections at once."""
_open_connections: dict[socket.socket, str] = {}
"""The address of each client whose request is not complete; "" for the others."""
_REMEDIES = {
    errno.EADDRINUSE: (
        "is in use; stop the program that listens there, or choose another metrics.listen"
        " (one of several workers: by SPADE_COREASON_METRICS__LISTEN)"
    ),
    errno.EADDRNOTAVAIL: "does not belong to this machine; correct metrics.listen",
    errno.EACCES: "may not be used by this user; choose a port from 1024 on in metrics.listen",
}


class MetricsServer:
    """A server of metrics: `await start()`, and `await close()`."""

    def __init__(self, settings: MetricsSettings, collector: MetricsCollector) -> None:
        self.url = settings.url
        """The address of the metrics."""
        self._settings = settings
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        ProcessCollector(registry=self._registry)
        self._server: WSGIServer | None = None

    async def start(self) -> None:
        """Listen. Raise ServerError if that is not possible."""
        self._server = await asyncio.to_thread(_listen, self._settings, self._registry)

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            await _stop(self._server)


async def check_metrics_address(settings: MetricsSettings) -> None:
    """Raise ServerError if the metrics could not be served at their address now."""
    await _stop(await asyncio.to_thread(_listen, settings, CollectorRegistry()))


class _Handler(WSGIRequestHandler):
    """A thread with one request. There are few at once.

    Of those whose request is not complete, the oldest one of the address that has the most makes room.
    """

    names: Collection[str]
    """The names of the server; any without one."""
    timeout = 5.0
    """Seconds for each part of the request, and for the client to read the answer."""

    def setup(self) -> None:
        super().setup()
        _open_connections[self.connection] = self.client_address[0]
        if len(_open_connections) > _CONNECTIONS:
            halves = [(each, address) for each, address in list(_open_connections.items()) if address]
            [(most, _)] = Counter(address for _, address in halves).most_common(1) or [("", 0)]
            oldest = next((each for each, address in halves if address == most), self.connection)
            _open_connections.pop(oldest, None)
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread ends

    def handle(self) -> None:
        with suppress(OSError):
            super().handle()

    def parse_request(self) -> bool:
        if not super().parse_request() or self.connection not in _open_connections:
            return False
        _open_connections[self.connection] = ""
        is_known = not self.names or split_host(self.headers.get("Host", ""))[0] in self.names
        if not is_known:
            self.send_error(421, "this server has another name; add it to metrics.hosts")
        return is_known

    def finish(self) -> None:
        _open_connections.pop(self.connection, None)
        super().finish()

    def get_stderr(self) -> StringIO:
        return StringIO()  # for clients that do not read

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def _listen(settings: MetricsSettings, registry: CollectorRegistry) -> WSGIServer:
    """Start a server in a thread. It blocks: the library asks for the name of the host."""
    host, port = settings.address
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, f"cannot be used: {error.strerror}; correct metrics.listen")
        raise ServerError(f"{settings.listen} {remedy}") from error
    is_checked = settings.hosts or is_loopback(host)
    names = {*LOOPBACK_NAMES, split_host(settings.listen)[0], *settings.hosts} if is_checked else ()
    server.RequestHandlerClass = type("_NamedHandler", (_Handler,), {"names": names})
    return server


async def _stop(server: WSGIServer) -> None:
    """End the thread of a server, and close its socket."""
    with suppress(OSError):
        server.socket.shutdown(socket.SHUT_RDWR)  # it wakes the thread, which looks only twice a second whether it should end
    await asyncio.to_thread(server.shutdown)
    server.server_close()
