"""What happens in one turn, as frozen values that have no language yet."""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

from ..contracts import DataBlock, ThinkingBlock, UserErrorBlock
from ..values import value


@value
class SaidText:
    """A text of the answer, in Markdown: to a program a block with the id that `named` gives to its number.

    `choices` are what may be said to it: a value and its label each.
    """

    content: str
    number: int
    text: str | None = None
    """What a person reads of it, where that is not all."""
    links: tuple[str, ...] = ()
    """To files in it, or to all of it: for a person each is a message of its own, which clients show as the file."""
    choices: tuple[tuple[str, str], ...] = ()


@value
class Said:
    """One block of the answer that is more than a text."""

    block: ThinkingBlock | DataBlock | UserErrorBlock
    text: str | None = None
    links: tuple[str, ...] = ()
    """As of a text."""


@value
class StreamStarted:
    """A stream is open. Several of one turn may interleave."""

    stream_id: str
    title: str | None = None


@value
class StreamChunk:
    """The next piece of a stream; `seq` counts from 0."""

    stream_id: str
    seq: int
    chunk: str


@value
class StreamEnded:
    """The stream is complete."""

    stream_id: str
    text: str | None = None
    links: tuple[str, ...] = ()
    """As of a text."""


@value
class StreamAborted:
    """The stream ends before its time. It concerns this stream only."""

    stream_id: str
    reason: str
    replacement: str | None = None
    """What stands in the place of all that it said."""


@value
class Completed:
    """The turn is over, and went well."""

    conversation_id: str
    state: str


@value
class Failed:
    """The turn is over, and did not go well. `code` is one of the contract's error codes."""

    message: str
    code: int
    recoverable: bool
    incident: str | None = None
    reported: bool = False
    """Whether an error block has said so already."""


@value
class Refused:
    """The request was not run. `retry_after_s` says when it is worth another try, None that it is not."""

    message: str
    code: int
    retry_after_s: float | None = None


TurnEvent: TypeAlias = (
    SaidText | Said | StreamStarted | StreamChunk | StreamEnded | StreamAborted | Completed | Failed | Refused
)


def named(key: UUID, number: int) -> UUID:
    """The id of a block or a stream of a turn, by the inbox key of the request and its number, from 1.

    A turn that runs again gives the same ids.
    """
    return UUID(int=key.int ^ number)
