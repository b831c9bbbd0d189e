"""The codes and domains of errors that reach a peer (numbers: HTTP, RFC 9110, 15)."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class ErrorCode(IntEnum):
    """What went wrong, by the numbers of HTTP."""

    BAD_REQUEST = 400
    UNAUTHORIZED = 401
    FORBIDDEN = 403
    NOT_FOUND = 404
    TOO_MANY_REQUESTS = 429
    INTERNAL = 500
    UNAVAILABLE = 503
    TIMEOUT = 504

    @property
    def may_retry(self) -> bool:
        """Whether the same request is worth another try later."""
        return self in (ErrorCode.TOO_MANY_REQUESTS, ErrorCode.UNAVAILABLE)


class ErrorDomain(StrEnum):
    """Where it went wrong."""

    SYSTEM = "SYSTEM"
    LLM = "LLM"
    TOOL = "TOOL"
    LOGIC = "LOGIC"
    SECURITY = "SECURITY"
