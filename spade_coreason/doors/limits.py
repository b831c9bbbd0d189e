"""The limits of HTTP requests and connections.

`LimitedRequests` limits what the application reads. `LimitedProtocol` limits what no application sees: slow headers, answers
that the client does not read, and invalid HTTP.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import h11
from pydantic_core import from_json, to_json
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from ..concurrency import Timer
from ..config import WebLimits
from ..domain.texts.foreign_json import TooManyValuesError, check_values
from .addresses import group_address
from .connections import ConnectionSlot
from .errors import HttpError, make_error_body, path_of
from .unread import STEP_BYTES, UnreadBytes

_BUSY_S = 5.0
_LINGER_S = 5.0
_PER_KEY, _PER_STRANGER = 8, 1
"""The number of bodies of the largest size that one key may send at once, and one address without a key."""
_TOGETHER = {_PER_KEY: 16, _PER_STRANGER: 4}
"""The same for all with a key, and for all without."""
_ALL = "*"
"""The name under which all with the same share are counted."""
_TOO_LARGE = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
MAX_TEXT_CHARACTERS = 262_144
"""The most characters of the text of a message."""
MAX_PAYLOAD_BYTES = 5 * MAX_TEXT_CHARACTERS
"""The most bytes of all data of a message, as JSON. Files do not count."""


class LimitedProtocol(H11Protocol):
    """One connection, and its slot. `on_lost` is called at its end."""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        limits: WebLimits,
        slot: ConnectionSlot,
        on_lost: Callable[[LimitedProtocol], None],
    ) -> None:
        super().__init__(config, state, {"slot": slot})
        self.is_made = False
        self.slot = slot
        self._limits = limits
        self._on_lost = on_lost
        self._header_timer = Timer()
        self._unread_timer = Timer()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn does
        """Wait for the first request."""
        self.is_made = True
        super().connection_made(transport)
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """End all waits."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._header_timer.cancel()
        self._unread_timer.cancel()
        self._on_lost(self)

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
        if not self.transport.is_closing():
            self._unread_timer.cancel()

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
        if not is_waiting:
            self._header_timer.cancel()
        elif self._header_timer.handle is None:
            self._header_timer.start(self._limits.header_s, self._on_slow_headers)

    def _on_slow_headers(self) -> None:
        if self.conn.trailing_data[0]:
            text = f"the headers were not complete within {self._limits.header_s:g} s; send them at once"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, text)
        else:  # as a browser opens connections that it may need later
            self._close()

    def _watch_reader(self) -> None:
        if self._unread_timer.handle is None:
            self._unread_timer.start(self._limits.unread_s, self.transport.abort)

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


class LimitedRequests:
    """Limit what the application reads of requests, and the time in which it comes.

    A connection is closed after an answer for which its client did not have to send the whole request.
    """

    def __init__(self, app: ASGIApp, limits: WebLimits) -> None:
        self._app = app
        self._limits = limits
        self.pending_bytes = 0
        """The bytes of all bodies whose answers are not complete: streams keep their messages."""
        self._sent = Counter[tuple[int, str]]()
        """The bytes of them by their sender: its share and its name."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})["limits"] = self._limits
        body = _LimitedBody(self, self._limits, scope, receive, send)
        try:
            await self._app(scope, body.receive, body.send)
        finally:
            body.release()

    def is_full_for(self, sender: tuple[int, str]) -> bool:
        """Return True if a sender sends too much at once, or all with the same share do."""
        share, limit = sender[0], self._limits.body_bytes
        return self._sent[sender] > share * limit or self._sent[share, _ALL] > _TOGETHER[share] * limit

    def count(self, size: int, sender: tuple[int, str]) -> None:
        """Count bytes that were received."""
        self.pending_bytes += size
        for each in (sender, (sender[0], _ALL)):
            self._sent[each] += size
            if not self._sent[each]:
                del self._sent[each]


def check_request(scope: Scope, limits: WebLimits) -> None:
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
    for name, value in headers:
        if name == b"content-length":
            _check_size(int(value), scope, limits)


async def read_json(scope: Scope, receive: Receive, setting: str = "values") -> tuple[bytes, Receive]:
    """Read the body of a request. Return it, and the function by which an application receives it.

    Raise HttpError if it has more values than that key of `web.limits`.
    """
    body = await Request(scope, receive).body()
    check_json(body, scope["state"]["limits"], setting)
    messages = [{"type": "http.request", "body": body}]

    async def receive_again() -> Message:
        return messages.pop() if messages else await receive()

    return body, receive_again


def find_rpc_id(body: bytes) -> str | int | None:
    """Return the id of a request of JSON-RPC; None for what is none."""
    with suppress(ValueError):
        match from_json(body):
            case {"method": _, "id": str() | int() as found} if not isinstance(found, bool):
                return found
    return None


def check_json(data: bytes, limits: WebLimits, setting: str = "values") -> None:
    """Raise HttpError if JSON has more values than a key of `web.limits`."""
    try:
        check_values(data, getattr(limits, setting), f"web.limits.{setting}")
    except TooManyValuesError as error:
        raise HttpError(413, str(error)) from error


def check_payload(payload: Mapping[str, Any]) -> None:
    """Raise HttpError if a text of a message is too long, or all its data are."""
    texts = [value for value in payload.values() if isinstance(value, str)]
    if max(map(len, texts), default=0) > MAX_TEXT_CHARACTERS or len(to_json(payload)) > MAX_PAYLOAD_BYTES:
        raise too_long()


def too_long() -> HttpError:
    """Return the error for a text that is too long."""
    return HttpError(413, f"the message has more than {MAX_TEXT_CHARACTERS:,} characters; send it as a file")


def _check_size(size: int, scope: Scope, limits: WebLimits) -> None:
    setting = "webhook_bytes" if path_of(scope).startswith("/webhooks/") else "body_bytes"
    if size > (limit := getattr(limits, setting)):
        raise HttpError(413, f"the body has more than {limit:,} bytes, the limit web.limits.{setting}; send less")


def _busy() -> HttpError:
    return HttpError(503, "the server receives too much at once; try again in a moment", retry_after_s=_BUSY_S)


def _find_sender(scope: Scope) -> tuple[int, str]:
    """Return the share and the name of a key, or of the address of a client without one, which anyone can be."""
    if (caller := scope["state"].get("caller")) is not None:
        return _PER_KEY, caller.name
    return _PER_STRANGER, group_address(scope["client"][0]) if scope.get("client") else ""


class _LimitedBody:
    """The body of one request, and whether the answer may leave the connection open."""

    def __init__(self, owner: LimitedRequests, limits: WebLimits, scope: Scope, receive: Receive, send: Send) -> None:
        self._owner = owner
        self._limits = limits
        self._receive = receive
        self._send = send
        self._deadline = asyncio.get_running_loop().time() + limits.body_s
        self._scope = scope
        self._size = 0
        self._counted = 0
        self._sender = (_PER_STRANGER, "")
        headers = dict(scope["headers"])
        self._is_complete = b"transfer-encoding" not in headers and headers.get(b"content-length", b"0").strip(b"0") == b""
        self._awaits_consent = b"expect" in headers  # the client sends nothing before it is told to

    async def receive(self) -> Message:
        """Return the next part. Raise HttpError if the body is too large, or comes too slowly."""
        if self._is_complete:
            return await self._receive()
        if not self._size:
            self._sender = _find_sender(self._scope)
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError as error:
            text = f"the request was not complete within {self._limits.body_s:g} s; send it faster, or less"
            raise HttpError(HTTPStatus.REQUEST_TIMEOUT, text) from error
        size = len(message.get("body", b""))
        self._size += size
        self._counted += size
        self._owner.count(size, self._sender)
        self._is_complete = not message.get("more_body", False)
        _check_size(self._size, self._scope, self._limits)
        if self._owner.is_full_for(self._sender):
            raise _busy()
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            if not self._is_complete:
                self.release()
                headers = [(name, value) for name, value in message.get("headers", ()) if name.lower() != b"connection"]
                message = {**message, "headers": [*headers, (b"connection", b"close")]}
        elif not self._is_complete and not message.get("more_body", False):
            # If the connection were closed while the client still sends, it would not see the answer.
            await self._send_and_wait({**message, "more_body": True})
            await self._discard()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send_and_wait(message)
        # uvicorn waits for no client that reads at once, nor for one that has gone, so a long answer would block all others.
        await asyncio.sleep(0)

    async def _send_and_wait(self, message: Message) -> None:
        """Send a part of the answer. Count a large one until the client has read it."""
        body = message.get("body", b"")
        if len(body) > STEP_BYTES:
            unread = UnreadBytes(_find_sender(self._scope)[1])
            unread.add(len(body))
            await self._send({**message, "more_body": True})
            message = {**message, "body": b""}  # uvicorn takes this once the client has read the rest
        await self._send(message)

    async def _discard(self) -> None:
        if self._awaits_consent:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while (await self._receive()).get("more_body", False):
                    pass

    def release(self) -> None:
        """Count the body no longer."""
        self._owner.count(-self._counted, self._sender)
        self._counted = 0
