"""The authentication of HTTP requests: one key in the header `Authorization`, and nothing else, from loopback too."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Protocol

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from .addresses import group_address
from .caller import Caller
from .errors import HttpError

log = logging.getLogger(__name__)

_OTHER_KEY_HEADERS = ("x-api-key", "api-key", "x-auth-token", "proxy-authorization")
_KEY_PARAMETER = re.compile(rb"(^|&)(key|api[_-]?key|access[_-]?token|token|authorization)=|\bsc_[\w-]{20}", re.IGNORECASE)
_USER_HEADERS = ("x-forwarded-user", "x-openwebui-user-id")
_MAX_USER_CHARACTERS = 200
_WRONG_KEYS = 30
_WRONG_KEYS_S = 60.0
_MAX_ADDRESSES = 4096
_BUSY_S = 2.0
_REMEDY = "send one header, Authorization: Bearer KEY; `spade-coreason keys create` makes a key"


class FindCaller(Protocol):
    """A function that returns the caller with a key, or None if there is no such key."""

    def __call__(self, secret: str, /) -> Caller | None: ...


def caller_of(connection: HTTPConnection) -> Caller:
    """Return who sends a request. Only for routes that need a key."""
    caller: Caller = connection.state.caller
    return caller


class Authentication:
    """Let only requests with a key reach the application, which finds the caller by `caller_of`.

    Loopback needs a key too, and no path is excepted: routes without a key are not in the application.
    """

    def __init__(self, app: ASGIApp, find: FindCaller, requests_per_key: int) -> None:
        self._app = app
        self._find = find
        self._requests_per_key = requests_per_key
        self._running = Counter[str]()
        self._wrong_keys = WrongSecrets("key")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = self._identify(scope)
        limits = {caller.name: self._requests_per_key, caller.address: self._requests_per_key}
        if caller.names_users:
            limits[caller.address] = max(1, self._requests_per_key // 2)  # so that one user leaves some to the others
        for name, limit in limits.items():
            if self._running[name] >= limit:
                whose = "with this key" if name == caller.name else "of this user"
                text = f"{limit} requests {whose} run already; wait for the end of one"
                raise HttpError(429, text, retry_after_s=_BUSY_S)
        self._running.update(limits.keys())
        scope["state"]["caller"] = caller
        scope["state"]["slot"].show_key(caller.name)
        try:
            await self._app(scope, receive, send)
        finally:
            self._running.subtract(limits.keys())
            for name in limits:
                if not self._running[name]:
                    del self._running[name]

    def _identify(self, scope: Scope) -> Caller:
        """Return the caller. Raise HttpError without exactly one valid key."""
        headers = Headers(scope=scope)
        secret = _read_key(headers, scope["query_string"])
        caller = self._find(secret)
        if caller is None:
            address = scope["client"][0] if scope.get("client") else "unknown"
            wait_s = self._wrong_keys.count(address)
            if wait_s is not None:
                raise HttpError(429, "too many wrong keys from your address; try again later", retry_after_s=wait_s)
            text = "the key is wrong, has expired or was revoked; ask the operator for another one"
            raise _unauthorized(text, ' error="invalid_token"')
        return caller.for_user(_read_user(headers)) if caller.names_users else caller


def _read_key(headers: Headers, query: bytes) -> str:
    """Return the key of a request. A second one is refused, since other programs on the way may take that one."""
    if any(name in headers for name in _OTHER_KEY_HEADERS):
        raise _unauthorized(f"the request has a key in another header; {_REMEDY}")
    if _KEY_PARAMETER.search(query):
        raise _unauthorized(f"a key in an address is stored by browsers and proxies; {_REMEDY}")
    values = headers.getlist("authorization")
    if len(values) != 1:
        raise _unauthorized(f"the request has {'several keys' if values else 'no key'}; {_REMEDY}")
    scheme, _, secret = values[0].partition(" ")
    if scheme.lower() != "bearer" or not secret.isascii() or not secret.strip() or re.search(r"[\s,]", secret.strip()):
        raise _unauthorized(f"the header Authorization has no key; {_REMEDY}")
    return secret.strip()


def _read_user(headers: Headers) -> str:
    """Return the user that a front end names. Raise HttpError without exactly one."""
    values = [value for name in _USER_HEADERS for value in headers.getlist(name)]
    if len(values) != 1:
        given = "several headers name a user" if values else "this key is for a front end, and no header names the user"
        raise HttpError(400, f"{given}; let the front end send X-Forwarded-User or X-OpenWebUI-User-Id, once")
    try:
        user = values[0].encode("latin-1").decode().strip()
    except UnicodeDecodeError as error:
        raise HttpError(400, "the header with the user is no UTF-8; send an id of letters and digits") from error
    if not user or len(user) > _MAX_USER_CHARACTERS:
        text = f"the header with the user must have 1 to {_MAX_USER_CHARACTERS} characters; send an id"
        raise HttpError(400, text)
    return user


def _unauthorized(message: str, challenge: str = "") -> HttpError:
    return HttpError(
        401, message, headers={"WWW-Authenticate": f'Bearer realm="spade-coreason"{"," if challenge else ""}{challenge}'}
    )


@dataclass(slots=True)
class _Minute:
    ends: float
    count: int = 0


class WrongSecrets:
    """The wrong keys or signatures of each address within a minute. A right one is never refused for those of others.

    `what` is the noun for the log.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._minutes: OrderedDict[str, _Minute] = OrderedDict()

    def count(self, address: str) -> float | None:
        """Count a wrong one. Return the seconds until the next minute if there were too many."""
        group, now = group_address(address), time.monotonic()
        minute = self._minutes.get(group)
        if minute is None or minute.ends <= now:
            minute = _Minute(now + _WRONG_KEYS_S)
        self._minutes[group] = minute
        self._minutes.move_to_end(group)
        if len(self._minutes) > _MAX_ADDRESSES:
            self._minutes.popitem(last=False)
        minute.count += 1
        if minute.count == 1:
            log.warning("a request from %s has a wrong %s", address, self._what)
        if minute.count <= _WRONG_KEYS:
            return None
        if minute.count == _WRONG_KEYS + 1:
            text = "more than %d requests from %s within a minute have a wrong %s"
            log.warning(text, _WRONG_KEYS, address, self._what)
        return minute.ends - now
