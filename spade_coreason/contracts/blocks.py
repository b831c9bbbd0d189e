"""What a response is made of (seed: Agent Behavior Protocols, `ResponseHandler`)."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

from pydantic import Field

from .base import CoReasonBaseModel


class Block(CoReasonBaseModel):
    """What every block has."""

    id: UUID = Field(default_factory=uuid4)
    title: str | None = None


STEP_TITLE = "step"
"""The title of a thought that is for everybody: a short line that says what the agent uses just now."""


class ThinkingBlock(Block):
    """What the agent does at the moment."""

    block_type: Literal["THOUGHT"] = "THOUGHT"
    content: str
    status: Literal["IN_PROGRESS", "COMPLETE"] = "IN_PROGRESS"


class DataBlock(Block):
    """Structured data; a table is `{"columns": [...], "rows": [{...}]}`."""

    block_type: Literal["DATA"] = "DATA"
    data: dict[str, Any]
    view_hint: Literal["TABLE", "JSON", "LIST", "KEY_VALUE"] = "JSON"


class MarkdownBlock(Block):
    """Text."""

    block_type: Literal["MARKDOWN"] = "MARKDOWN"
    content: str


class UserErrorBlock(Block):
    """An error as the user may see it; `technical_details` are not for people."""

    block_type: Literal["ERROR"] = "ERROR"
    user_message: str
    technical_details: dict[str, Any] | None = None
    recoverable: bool = False
    code: int | None = None


AnyBlock = Annotated[ThinkingBlock | DataBlock | MarkdownBlock | UserErrorBlock, Field(discriminator="block_type")]
