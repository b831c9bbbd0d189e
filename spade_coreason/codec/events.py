"""What happens in one turn, as frozen values that have no language yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ..contracts import DataBlock, MarkdownBlock, ThinkingBlock, UserErrorBlock


@dataclass(frozen=True, slots=True)
class Said:
    """One block of the answer."""

    block: ThinkingBlock | DataBlock | MarkdownBlock | UserErrorBlock


@dataclass(frozen=True, slots=True)
class StreamStarted:
    """A stream is open. Several of one turn may interleave."""

    stream_id: str
    title: str | None = None


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """The next piece of a stream; `seq` counts from 0."""

    stream_id: str
    seq: int
    chunk: str


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """The stream is complete."""

    stream_id: str


@dataclass(frozen=True, slots=True)
class StreamAborted:
    """The stream ends before its time. It concerns this stream only."""

    stream_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Completed:
    """The turn is over, and went well."""

    conversation_id: str
    state: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The turn is over, and did not go well. `code` is one of the contract's error codes."""

    message: str
    code: int
    recoverable: bool
    incident: str | None = None
    reported: bool = False
    """Whether an error block has said so already."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The request was not run. `retry_after_s` says when it is worth another try, None that it is not."""

    message: str
    code: int
    retry_after_s: float | None = None


TurnEvent: TypeAlias = Said | StreamStarted | StreamChunk | StreamEnded | StreamAborted | Completed | Failed | Refused
