"""The HTTP server of the metrics: the one of prometheus_client, whose threads answer while the event loop is blocked."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

from ...config import MetricsSettings
from ...exceptions import ServerError

if TYPE_CHECKING:
    from .collector import MetricsCollector

_REMEDIES = {
    errno.EADDRINUSE: "is in use; stop the program that listens there, or choose another metrics.listen",
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
            await asyncio.to_thread(self._server.shutdown)
            self._server.server_close()


async def check_metrics_address(settings: MetricsSettings) -> None:
    """Raise ServerError if the metrics could not be served at their address now."""
    server = await asyncio.to_thread(_listen, settings, CollectorRegistry())
    await asyncio.to_thread(server.shutdown)
    server.server_close()


def _listen(settings: MetricsSettings, registry: CollectorRegistry) -> WSGIServer:
    """Start a server in a thread. It blocks: the library asks for the name of the host."""
    host, port = settings.address
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, f"cannot be used: {error.strerror}; correct metrics.listen")
        raise ServerError(f"{settings.listen} {remedy}") from error
    return server
