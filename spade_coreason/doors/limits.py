"""The limits of HTTP requests and connections.

`LimitedRequests` limits what the application reads. `LimitedProtocol` limits what no application sees: slow headers, answers
that the client does not read, and invalid HTTP.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from .addresses import Proxies, group_address
from .errors import HttpError, make_error_body, make_error_response, path_of

_REFUSED_CONNECTIONS = 64
"""The connections above the limit that are told so. Further ones are closed at once."""
_REFUSED_S = 3.0
_BUSY_S = 5.0
_LINGER_S = 5.0
_BODIES_AT_ONCE = 16
"""The number of bodies of the largest size that all clients together may send at once."""
_BODIES_WITHOUT_KEY = 4
"""The same for clients without a key. Each address of them may send one."""
_TOO_LARGE = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits of the HTTP server, as in the section `web.limits`."""

    body_bytes: int
    header_bytes: int
    header_s: float
    body_s: float
    unread_s: float
    idle_s: float
    connections: int
    connections_per_address: int
    requests_per_key: int


class ConnectionCount:
    """The connections that are open, of all clients and of each address."""

    def __init__(self, limits: HttpLimits, proxies: Proxies) -> None:
        self.total = 0
        self.connections = limits.connections
        """The most connections at once."""
        self._per_address = limits.connections_per_address
        self._proxies = proxies
        self._counts = Counter[str]()

    @property
    def is_full(self) -> bool:
        """True if a further connection is to be closed at once."""
        return self.total >= self.connections + _REFUSED_CONNECTIONS

    def enter(self, address: str) -> HttpError | None:
        """Count a connection of an address. Return the answer to it if there are too many."""
        self.total += 1
        self._counts[group_address(address)] += 1
        if self.total > self.connections:
            return HttpError(503, "the server has too many connections; try again in a moment", retry_after_s=_BUSY_S)
        if address not in self._proxies and self._counts[group_address(address)] > self._per_address:
            return HttpError(429, "your address has too many connections; close some", retry_after_s=_BUSY_S)
        return None

    def leave(self, address: str) -> None:
        """Count a connection no longer."""
        self.total -= 1
        self._counts[group_address(address)] -= 1
        if not self._counts[group_address(address)]:
            del self._counts[group_address(address)]


class LimitedProtocol(H11Protocol):
    """One connection.

    `refusal` is the answer to all its requests, for a connection that is one too many. `on_lost` is called at its end.
    """

    def __init__(
        self, config: Config, state: ServerState, limits: HttpLimits, refusal: HttpError | None, on_lost: Callable[[], None]
    ) -> None:
        super().__init__(config, state, {})
        if refusal is not None:
            self.app: Any = _Refusing(refusal)
        self.is_made = False
        self._limits = limits
        self._header_s = limits.header_s if refusal is None else min(_REFUSED_S, limits.header_s)
        self._on_lost = on_lost
        self._header_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn does
        """Wait for the first request."""
        self.is_made = True
        super().connection_made(transport)
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """End all waits."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        for timer in (self._header_timer, self._unread_timer):
            if timer is not None:
                timer.cancel()
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        super().data_received(data)
        self._watch_headers()

    def on_response_complete(self) -> None:
        """Wait for the next request, or until the client has read the last answer."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_reader()

    def pause_writing(self) -> None:
        """Wait until the client reads."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """Write on."""
        super().resume_writing()
        if self._unread_timer is not None and not self.transport.is_closing():
            self._unread_timer.cancel()
            self._unread_timer = None

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, and close the connection. uvicorn calls this while it handles h11's exception."""
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else HTTPStatus.BAD_REQUEST
        if status == _TOO_LARGE:
            self._refuse(_TOO_LARGE, f"the headers have more than {self._limits.header_bytes:,} bytes; send fewer")
        else:
            self._refuse(HTTPStatus.BAD_REQUEST, "the request is no valid HTTP/1.1; correct the client")

    def close(self) -> None:
        """Close the connection as soon as the answer in progress is complete."""
        if not self.transport.is_closing():
            with suppress(h11.LocalProtocolError):
                self.shutdown()
        if self.cycle is None or self.cycle.response_complete:
            self._close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self.transport is not None:
            self.transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that waits for a further request."""
        self._close()

    def _unsupported_upgrade_warning(self) -> None:
        """Ignore the wish for another protocol, as RFC 9110, 7.8 permits. Log nothing, since anyone can send it."""

    def _watch_headers(self) -> None:
        is_waiting = self.conn.their_state is h11.IDLE and not self.transport.is_closing()
        if is_waiting and self._header_timer is None:
            self._header_timer = self.loop.call_later(self._header_s, self._on_slow_headers)
        elif not is_waiting and self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _on_slow_headers(self) -> None:
        if self.conn.trailing_data[0]:
            text = f"the headers were not complete within {self._header_s:g} s; send them at once"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, text)
        else:  # as a browser opens connections that it may need later
            self._close()

    def _watch_reader(self) -> None:
        if self._unread_timer is None:
            self._unread_timer = self.loop.call_later(self._limits.unread_s, self.transport.abort)

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps(make_error_body("", status, message)).encode()
            headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Connection", "close")]
            events = h11.Response(status_code=status, headers=headers, reason=status.phrase), h11.Data(data=body)
            for event in (*events, h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # the application must not answer too
            self.cycle.message_event.set()
        self._close()

    def _close(self) -> None:
        if not self.transport.is_closing():  # asyncio cannot abort a TLS transport that was closed twice
            self.transport.close()
        self._watch_reader()


class _Refusing:
    """An application that gives every request the same answer, and closes the connection."""

    def __init__(self, refusal: HttpError) -> None:
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = make_error_response(path_of(scope), self._refusal)
        response.headers["Connection"] = "close"
        await response(scope, receive, send)


class LimitedRequests:
    """Limit what the application reads of requests, and the time in which it comes.

    A connection is closed after an answer for which its client did not have to send the whole request.
    """

    def __init__(self, app: ASGIApp, limits: HttpLimits) -> None:
        self._app = app
        self._limits = limits
        self.pending_bytes = 0
        """The bytes of all bodies that are not answered yet."""
        self._without_key = Counter[str]()
        """The bytes of bodies of requests without a key, by address."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = _LimitedBody(self, self._limits, scope, receive, send)
        try:
            await self._app(scope, body.receive, body.send)
        finally:
            body.release()

    @property
    def is_full(self) -> bool:
        """True if all clients together send too much at once."""
        return self.pending_bytes > _BODIES_AT_ONCE * self._limits.body_bytes

    def is_full_for(self, stranger: str) -> bool:
        """Return True if clients without a key send too much at once, or one address of theirs does."""
        limit = self._limits.body_bytes
        return self._without_key[stranger] > limit or self._without_key.total() > _BODIES_WITHOUT_KEY * limit

    def count(self, size: int, stranger: str | None) -> None:
        """Count bytes that were received; of `stranger` (an address), if the request has no key."""
        self.pending_bytes += size
        if stranger is not None:
            self._without_key[stranger] += size
            if not self._without_key[stranger]:
                del self._without_key[stranger]


def check_request(scope: Scope, limits: HttpLimits) -> None:
    """Raise HttpError for headers that are too large, and for a body that is too large or not as it seems."""
    headers = scope["headers"]
    size = sum(len(name) + len(value) + 4 for name, value in headers) + len(scope["raw_path"]) + len(scope["query_string"])
    if size > limits.header_bytes:
        raise HttpError(_TOO_LARGE, f"the headers have more than {limits.header_bytes:,} bytes; send fewer")
    names = [name for name, _ in headers]
    # A proxy in front may choose the other one, and see another end of the request (RFC 9112, 6.3).
    if b"transfer-encoding" in names and (b"content-length" in names or scope["http_version"] == "1.0"):
        raise HttpError(400, "the length of the request is ambiguous; send Content-Length or Transfer-Encoding")
    # Nothing unpacks a body, so that none can be larger than it is.
    if any(name == b"content-encoding" and value.strip().lower() != b"identity" for name, value in headers):
        raise HttpError(415, "compressed requests are not accepted; send the body as it is")
    if any(name == b"content-length" and int(value) > limits.body_bytes for name, value in headers):
        raise _too_large(limits)


def _too_large(limits: HttpLimits) -> HttpError:
    return HttpError(413, f"the body has more than {limits.body_bytes:,} bytes, the limit; send less")


def _busy() -> HttpError:
    return HttpError(503, "the server receives too much at once; try again in a moment", retry_after_s=_BUSY_S)


def _find_stranger(scope: Scope) -> str | None:
    """Return the address of a client without a key, which anyone can be, under the name by which it is counted."""
    if "caller" in scope.get("state", {}):
        return None
    return group_address(scope["client"][0]) if scope.get("client") else ""


class _LimitedBody:
    """The body of one request, and whether the answer may leave the connection open."""

    def __init__(self, owner: LimitedRequests, limits: HttpLimits, scope: Scope, receive: Receive, send: Send) -> None:
        self._owner = owner
        self._limits = limits
        self._receive = receive
        self._send = send
        self._deadline = asyncio.get_running_loop().time() + limits.body_s
        self._scope = scope
        self._size = 0
        self._counted = 0
        self._stranger: str | None = None
        headers = dict(scope["headers"])
        self._is_complete = b"transfer-encoding" not in headers and headers.get(b"content-length", b"0").strip(b"0") == b""
        self._awaits_consent = b"expect" in headers  # the client sends nothing before it is told to

    async def receive(self) -> Message:
        """Return the next part. Raise HttpError if the body is too large, or comes too slowly."""
        if self._is_complete:
            return await self._receive()
        if not self._size:
            self._stranger = _find_stranger(self._scope)
        if self._owner.is_full:
            raise _busy()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError as error:
            text = f"the request was not complete within {self._limits.body_s:g} s; send it faster, or less"
            raise HttpError(HTTPStatus.REQUEST_TIMEOUT, text) from error
        size = len(message.get("body", b""))
        self._size += size
        self._counted += size
        self._owner.count(size, self._stranger)
        self._is_complete = not message.get("more_body", False)
        if self._size > self._limits.body_bytes:
            raise _too_large(self._limits)
        if self._stranger is not None and self._owner.is_full_for(self._stranger):
            raise _busy()
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            self.release()
            if not self._is_complete:
                headers = [(name, value) for name, value in message.get("headers", ()) if name.lower() != b"connection"]
                message = {**message, "headers": [*headers, (b"connection", b"close")]}
        elif not self._is_complete and not message.get("more_body", False):
            # If the connection were closed while the client still sends, it would not see the answer.
            await self._send({**message, "more_body": True})
            await self._discard()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)
        # uvicorn waits for no client that reads at once, nor for one that has gone, so a long answer would block all others.
        await asyncio.sleep(0)

    async def _discard(self) -> None:
        if self._awaits_consent:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while (await self._receive()).get("more_body", False):
                    pass

    def release(self) -> None:
        """Count the body no longer."""
        self._owner.count(-self._counted, self._stranger)
        self._counted = 0
