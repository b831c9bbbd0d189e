"""The codes and domains of errors that are sent to peers (numbers: HTTP, RFC 9110, 15)."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class ErrorCode(IntEnum):
    """The code of an error, with the number that HTTP has for it."""

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
        """True if the same request may succeed later."""
        return self in (ErrorCode.TOO_MANY_REQUESTS, ErrorCode.UNAVAILABLE)


class ErrorDomain(StrEnum):
    """The part of the system that an error comes from."""

    SYSTEM = "SYSTEM"
    LLM = "LLM"
    TOOL = "TOOL"
    LOGIC = "LOGIC"
    SECURITY = "SECURITY"
