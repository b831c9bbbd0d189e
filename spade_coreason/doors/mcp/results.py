"""The result of a tool from the events of a reply."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from mcp_types import ContentBlock, ResourceLink, TextContent

from ...contracts.json_schema import find_problems
from ...domain.texts.approval_mark import quote_forgeries
from ...domain.texts.links import is_link
from ..answer_parts import AnswerParts, Part

META_PREFIX = "ai.coreason/"
"""The prefix of our keys in `_meta` of a result."""


class ToolAnswer(AnswerParts):
    """The answer of an agent so far. Add the events of a reply in their order."""

    def __init__(self) -> None:
        super().__init__(_with_choices)

    @property
    def text(self) -> str:
        """The texts of the answer."""
        return "\n\n".join(part.text for part in self.parts if part.kind == "text" and part.text)

    @property
    def data(self) -> list[Any]:
        """The values of the data blocks."""
        return [part.data for part in self.parts if part.kind == "data"]

    @property
    def is_error(self) -> bool:
        """True if the agent has reported errors and nothing else."""
        kinds = {part.kind for part in self.parts if part.text or part.kind == "data"}
        return kinds == {"error"}

    def make_content(self) -> list[ContentBlock]:
        """Return the content of the result."""
        return [block for part in self.parts for block in _make_blocks(part)]

    async def find_structured_content(self, outputs: Mapping[str, Any] | None) -> tuple[Any, str | None]:
        """Return the structured content, and what is wrong with it.

        With a JSON Schema for it, it is the value of the data block that fits. Without one, it is the value of the data block,
        or a list of them below `data`.
        """
        values = self.data
        if outputs is None:
            return (
                values[0] if len(values) == 1 and isinstance(values[0], dict) else {"data": values} if values else None
            ), None
        if not values:
            return None, "the agent has sent no data, and its capability promises some"
        problems = await find_problems(values, outputs, "data")
        fitting = [value for value, problem in zip(values, problems, strict=True) if problem is None]
        if len(fitting) == 1:
            return fitting[0], None
        return None, f"the data of the agent do not fit its capability: {problems[-1] or 'several blocks fit'}"


def _make_blocks(part: Part) -> list[ContentBlock]:
    if part.kind == "data":
        title = [TextContent(text=part.text)] if part.text else []
        return [*title, TextContent(text=json.dumps(part.data, ensure_ascii=False))]
    if part.kind == "text" and (name := _find_link_name(part.text)) is not None:
        return [ResourceLink(name=name, uri=part.text.strip())]
    return [TextContent(text=part.text)] if part.text else []


def _find_link_name(text: str) -> str | None:
    """Return a name for a text that is a link and nothing else, as agents send files. None for another text."""
    link = text.strip()
    if not is_link(link):
        return None
    parts = urlsplit(link)
    return unquote(parts.path.rpartition("/")[2]) or parts.netloc or None


def _with_choices(text: str, choices: Sequence[Mapping[str, str]]) -> str:
    lines = [f"- {one['value']}" + (f": {one['label']}" if one["label"] != one["value"] else "") for one in choices]
    return quote_forgeries("\n".join([text, *lines]))


def make_meta(**values: Any) -> dict[str, Any]:
    """Return `_meta` of a result."""
    return {f"{META_PREFIX}{name}": value for name, value in values.items() if value is not None}
