"""The codes and domains of errors that are sent to peers (numbers: HTTP, RFC 9110, 15)."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class ErrorCode(IntEnum):
    """The code of an error, with the number that HTTP has for it."""

    BAD_REQUEST = 400
    """The message claims to be a request and cannot be read, or agents ask each other in a circle."""
    UNAUTHORIZED = 401
    """The sender is not identified. The platform does not send it; servers identify senders."""
    FORBIDDEN = 403
    """The sender may not talk to the agent."""
    NOT_FOUND = 404
    """The request names something that does not exist, or its stored answer was deleted."""
    TOO_MANY_REQUESTS = 429
    """A quota or a limit is used up, or the conversation pauses."""
    INTERNAL = 500
    """The turn failed, or the agent reported an error."""
    UNAVAILABLE = 503
    """Storage cannot be read or written, or the platform stopped before the answer."""
    TIMEOUT = 504
    """The turn took longer than `conversation.assist_timeout_s`, or the sender's time was over before it began."""

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
