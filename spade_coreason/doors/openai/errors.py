"""Errors as OpenAI's clients expect them."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any
from uuid import UUID

from starlette.responses import JSONResponse

from ...contracts import ErrorCode
from ..channel import DoorEvent
from ..errors import HttpError, find_openai_kind

_STOP_S = 5.0
_PAUSE_S = 60.0


class AnswerError(HttpError):
    """A request fails, or is refused.

    `fields` are further values of the error object, such as the number of an incident. A client should not send the request
    again by itself if it `is_final`.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        is_final: bool = True,
        fields: dict[str, Any] | None = None,
    ) -> None:
        # OpenAI's clients ask again after each 409, 429 and 5xx.
        super().__init__(status, message, retry_after_s=retry_after_s, headers={"x-should-retry": "false"} if is_final else {})
        kind, default_code = find_openai_kind(status)
        self.code = code or default_code
        self.fields = fields or {}
        self.body = {"message": message, "type": kind, "param": param, "code": self.code, **self.fields}
        """The error object."""

    def make_response(self) -> JSONResponse:
        """Make the response to a request."""
        return JSONResponse({"error": self.body}, self.status_code, self.headers)


def not_running() -> AnswerError:
    """Return the error for an agent that does not run."""
    text = "the agent does not run at the moment; try again"
    return AnswerError(HTTPStatus.SERVICE_UNAVAILABLE, text, retry_after_s=_STOP_S, is_final=False)


def paused() -> AnswerError:
    """Return the error for an agent that an operator has paused."""
    text = "an operator has paused the agent; try again later, or send a response with `background`, which waits for it"
    return AnswerError(HTTPStatus.SERVICE_UNAVAILABLE, text, "paused", retry_after_s=_PAUSE_S)


def not_stored() -> AnswerError:
    """Return the error for a database that fails."""
    text = "the request cannot be stored at the moment; try again"
    return AnswerError(HTTPStatus.SERVICE_UNAVAILABLE, text, retry_after_s=_STOP_S, is_final=False)


def reused_key() -> AnswerError:
    """Return the error for a key that was used for something else."""
    text = "this Idempotency-Key was used for another request; send this one with a new key"
    return AnswerError(HTTPStatus.UNPROCESSABLE_ENTITY, text, "idempotency_key_reused", param="Idempotency-Key")


def not_readable(refusal: DoorEvent) -> AnswerError:
    """Return the error for an answer that cannot be fetched at the moment. `refusal` is the event that says so."""
    data = refusal.data
    return AnswerError(data["code"], data["message"], "interrupted", retry_after_s=data["retry_after_s"], is_final=False)


def response_id(request_id: UUID) -> str:
    """Return the id of the response to a request, also to a chat."""
    return f"resp_{request_id.hex}"


def find_error(event: DoorEvent, request_id: UUID) -> AnswerError | None:
    """Return the error in the last event of a reply to the request with an id; None if it is an answer."""
    data = event.data
    match event.type:
        case "request.failed":
            is_known = data["code"] in (ErrorCode.NOT_FOUND, ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT)
            status = data["code"] if is_known else HTTPStatus.INTERNAL_SERVER_ERROR
            return AnswerError(status, data["message"], fields={"incident": data.get("incident")})
        case "request.refused":
            retry_after_s = data.get("retry_after_s")
            is_final = retry_after_s is None
            return AnswerError(data["code"], data["message"], retry_after_s=retry_after_s, is_final=is_final)
        case "request.cancelled":
            return AnswerError(HTTPStatus.CONFLICT, "the request was cancelled", "cancelled")
        case "request.interrupted":
            way = f"send it again with its Idempotency-Key, or GET /v1/responses/{response_id(request_id)}"
            return AnswerError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{data['message']}; {way}",
                "interrupted",
                retry_after_s=_STOP_S,
                is_final=False,
                fields={"request_id": str(request_id)},
            )
    return None
