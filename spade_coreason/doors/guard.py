"""The guard in front of all routes: clients behind proxies, hosts, origins, the headers of each answer, and the stop."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..config import WebSettings
from ..domain.environment.loopback import is_loopback
from ..domain.observability.tracing import read_traceparent
from ..domain.texts.error_chain import describe_error_chain
from .addresses import LOOPBACK_NAMES, origin_of, parse_address, split_host
from .caller import TRACEPARENT
from .connections import ConnectionPools
from .errors import HttpError, make_error_response, path_of
from .limits import check_request

log = logging.getLogger(__name__)

HEALTH_PATHS = frozenset({"/healthz", "/readyz"})
_FORWARDING_HEADERS = (b"forwarded", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"x-real-ip")
_SECURITY_HEADERS = {
    b"cache-control": b"no-store",
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
}
_CORS_HEADERS = {
    b"access-control-expose-headers": (
        b"Mcp-Session-Id, X-Request-Id, Retry-After, X-Should-Retry, Location, WWW-Authenticate, ETag"
    ),
    b"vary": b"Origin",
}
"""The headers for the page of another web site, which may read only some headers of an answer by itself."""
FAILURE = HttpError(500, "the server failed to do this; its log has the reason")
_STOP_S = 5.0
_WILDCARDS = ("0.0.0.0", "::")


class RequestGuard:
    """Let only requests to this server reach the application, and only from where they may come."""

    def __init__(self, app: ASGIApp, settings: WebSettings, connections: ConnectionPools) -> None:
        self._app = app
        self._limits = settings.limits
        self._connections = connections
        self._has_tls = settings.tls is not None
        names = {split_host(urlsplit(settings.public_url).netloc, urlsplit(settings.public_url).scheme)[0]}
        if settings.host not in _WILDCARDS:
            names.add(f"[{settings.host}]" if ":" in settings.host else settings.host.lower())
        self._hosts = frozenset(names) | LOOPBACK_NAMES
        self._cors_origins = frozenset(settings.cors_origins)
        self._origins = self._cors_origins | {origin_of(settings.public_url)}
        self.responses: Counter[int] = Counter()
        """The answers since the start, by status."""
        self.is_stopping = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, origin = _SECURITY_HEADERS, dict(scope["headers"]).get(b"origin", b"")
        if origin.decode("latin-1").lower() in self._cors_origins:
            headers = headers | _CORS_HEADERS | {b"access-control-allow-origin": origin}
        answer = _GuardedAnswer(send, self.responses, headers)
        try:
            await self._pass(scope, receive, answer.send)
        except HttpError as refusal:
            await answer.end(refusal, scope, receive)
        except asyncio.CancelledError:
            if not self.is_stopping:
                raise
        except ClientDisconnect:
            log.debug("a client has gone before its request was complete")
        except Exception as error:  # noqa: BLE001 - the server and its other clients go on
            _log_failure(error)
            await answer.end(FAILURE, scope, receive)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise HttpError(HTTPStatus.NOT_IMPLEMENTED, "only HTTP is served here")
        if (refusal := scope["state"]["slot"].refusal) is not None:
            raise refusal
        check_request(scope, self._limits)
        peer = scope["client"][0] if scope.get("client") else ""
        is_proxied = peer in self._connections.proxies
        if is_proxied:
            self._read_forwarding(scope)
        scope["headers"] = [(name, value) for name, value in scope["headers"] if name not in _FORWARDING_HEADERS]
        if given := [value for name, value in scope["headers"] if name == b"traceparent"]:
            TRACEPARENT.set(read_traceparent(given[0].decode("latin-1")) if len(given) == 1 else "")
        path = path_of(scope)
        if not path.startswith("/") or not path.isprintable():
            raise HttpError(400, "the path is not one of this server; it begins with a slash, and has no control characters")
        if path in HEALTH_PATHS:  # a program that watches the server may know it by another name; the answer tells nothing
            await self._app(scope, receive, send)
            return
        if not (self._has_tls or is_proxied or is_loopback(str(parse_address(peer)))):
            raise HttpError(403, "without TLS only reverse proxies are served; use the public address")
        if self.is_stopping:
            headers = {"Connection": "close"}
            raise HttpError(503, "the server stops; try again in a moment", retry_after_s=_STOP_S, headers=headers)
        self._check_names(Headers(scope=scope), scope["scheme"])
        if not is_proxied:
            await self._app(scope, receive, send)
            return
        slot = scope["state"]["slot"] = self._connections.enter(scope["client"][0])
        if slot.refusal is not None:
            raise slot.refusal
        try:
            await self._app(scope, receive, send)
        finally:
            slot.move()

    def _read_forwarding(self, scope: Scope) -> None:
        """Take the client, the scheme and the host from the headers of a proxy."""
        headers = Headers(scope=scope)
        forwarded_for = ",".join(headers.getlist("x-forwarded-for"))
        client = self._connections.proxies.find_client(forwarded_for) if forwarded_for else None
        if client is not None:
            scope["client"] = (client, 0)
        scheme = headers.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower()
        if scheme in ("http", "https"):
            scope["scheme"] = scheme
        host = headers.get("x-forwarded-host", "").rpartition(",")[2].strip()
        if host:
            others = [(name, value) for name, value in scope["headers"] if name != b"host"]
            scope["headers"] = [*others, (b"host", host.encode("latin-1"))]

    def _check_names(self, headers: Headers, scheme: str) -> None:
        """Refuse a request for another host, and one of the page of another web site."""
        hosts = headers.getlist("host")
        name = split_host(hosts[0], scheme)[0] if len(hosts) == 1 else ""
        if name not in self._hosts:  # the name of an attacker's site may lead here (DNS rebinding)
            text = "this server has another name; use its public address, and let a proxy pass on the header Host"
            raise HttpError(HTTPStatus.MISDIRECTED_REQUEST, text)
        origins = headers.getlist("origin")
        if origins and (len(origins) > 1 or origins[0].lower() not in self._origins):
            raise HttpError(403, "pages of this web site may not ask here; the operator can add it to web.cors_origins")


class _GuardedAnswer:
    """The answer to one request, with the headers that every answer has."""

    def __init__(self, send: Send, responses: Counter[int], headers: Mapping[bytes, bytes]) -> None:
        self._send = send
        self._responses = responses
        self._headers = headers
        self._has_begun = False

    async def send(self, message: Message) -> None:
        """Send a part of it."""
        if message["type"] == "http.response.start":
            self._has_begun = True
            self._responses[message["status"]] += 1
            headers = list(message.get("headers", ()))
            names = {name.lower() for name, _ in headers}
            added = [(name, value) for name, value in self._headers.items() if name not in names]
            date = [(b"date", formatdate(usegmt=True).encode())] if b"date" not in names else []
            message = {**message, "headers": [*date, *headers, *added]}
        await self._send(message)

    async def end(self, refusal: HttpError, scope: Scope, receive: Receive) -> None:
        """Answer with an error, unless an answer has begun. Then the connection is closed in its middle."""
        if not self._has_begun:
            await make_error_response(path_of(scope), refusal)(scope, receive, self.send)


def _log_failure(error: Exception) -> None:
    # The text of the exception is left out: it may quote the request.
    chain = describe_error_chain(error)
    frames = "; ".join(f"{frame.function} ({frame.file}:{frame.line})" for frame in chain[-1].frames[-6:])
    log.error("a request failed with %s: %s", chain[-1].type, frames)
    log.debug("a request failed", exc_info=error)
