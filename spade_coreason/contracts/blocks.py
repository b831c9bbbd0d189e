"""The blocks of a reply (seed: Agent Behavior Protocols, `ResponseHandler`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

from pydantic import Field

from .base import CoReasonBaseModel


class Block(CoReasonBaseModel):
    """Base class of the blocks: an id and an optional title."""

    id: UUID = Field(default_factory=uuid4)
    title: str | None = None


STEP_TITLE = "step"
"""The title of a thought that every person sees: a short line that names what the agent is using at the moment."""


class ThinkingBlock(Block):
    """A thought: a text about what the agent is doing at the moment."""

    block_type: Literal["THOUGHT"] = "THOUGHT"
    content: str
    status: Literal["IN_PROGRESS", "COMPLETE"] = "IN_PROGRESS"


class DataBlock(Block):
    """Structured data. `view_hint` suggests how to show it; a table is `{"columns": [...], "rows": [{...}]}`."""

    block_type: Literal["DATA"] = "DATA"
    data: dict[str, Any]
    view_hint: Literal["TABLE", "JSON", "LIST", "KEY_VALUE"] = "JSON"


class MarkdownBlock(Block):
    """A text in Markdown."""

    block_type: Literal["MARKDOWN"] = "MARKDOWN"
    content: str


class UserErrorBlock(Block):
    """An error for the user to read.

    `technical_details` are not for people. `recoverable` is true if another try may succeed. `code` is an `ErrorCode`.
    """

    block_type: Literal["ERROR"] = "ERROR"
    user_message: str
    technical_details: dict[str, Any] | None = None
    recoverable: bool = False
    code: int | None = None


AnyBlock = Annotated[ThinkingBlock | DataBlock | MarkdownBlock | UserErrorBlock, Field(discriminator="block_type")]
