"""The answers to HTTP requests that are refused or fail, as JSON in the shape that clients of the door expect."""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import Scope

_OPENAI_PATH = "/v1/"
_OPENAI_TYPES = {
    HTTPStatus.UNAUTHORIZED: ("authentication_error", "invalid_api_key"),
    HTTPStatus.FORBIDDEN: ("permission_error", None),
    HTTPStatus.TOO_MANY_REQUESTS: ("rate_limit_error", "rate_limit_exceeded"),
}


_DOORS = "/v1, /a2a/NAME, /mcp and /webhooks/NAME"
_TEXTS = {
    HTTPStatus.NOT_FOUND: f"there is nothing at this path; the doors are {_DOORS}, and no path ends with a slash",
}
"""The texts of errors for which Starlette has only the name of the status."""


class HttpError(HTTPException):
    """A request is refused with a status of HTTP and a sentence with the remedy. It quotes nothing that the client sent.

    Doors raise it too. `retry_after_s` is rounded up to whole seconds.
    """

    def __init__(
        self, status: int, message: str, *, retry_after_s: float | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        found = dict(headers or {})
        if retry_after_s is not None:
            found["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
        super().__init__(int(status), message, found)


def make_error_response(path: str, error: HTTPException) -> JSONResponse:
    """Make the response to a request for a path: OpenAI's shape below /v1, else `{"error": {"message": …}}`."""
    status = error.status_code
    is_bare = error.detail == HTTPStatus(status).phrase
    text = _TEXTS.get(HTTPStatus(status), error.detail) if is_bare else error.detail
    if is_bare and status == HTTPStatus.METHOD_NOT_ALLOWED:
        text = f"this path is for other methods: {(error.headers or {}).get('Allow', 'the header Allow names them')}"
    body = make_error_body(path, status, text)
    return JSONResponse(body, status, error.headers)


def make_error_body(path: str, status: int, message: str) -> dict[str, object]:
    """Return the body of an error as a JSON value, in the shape that clients of this path expect."""
    if not path.startswith(_OPENAI_PATH):
        return {"error": {"message": message}}
    kind, code = find_openai_kind(status)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def find_openai_kind(status: int) -> tuple[str, str | None]:
    """Return the type and the code that an error of OpenAI has by its status."""
    default = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    return _OPENAI_TYPES.get(HTTPStatus(status), (default, None))


def path_of(scope: Scope) -> str:
    """Return the path of a request."""
    return str(scope["path"])
