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
from ..channel import DoorEvent

META_PREFIX = "ai.coreason/"
"""The prefix of our keys in `_meta` of a result."""


class ToolAnswer:
    """The answer of an agent so far. Add the events of a reply in their order."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        self._streams: dict[str, _Part] = {}

    @property
    def text(self) -> str:
        """The texts of the answer."""
        return "\n\n".join(part.text for part in self._parts if part.kind == "text" and part.text)

    @property
    def data(self) -> list[Any]:
        """The values of the data blocks."""
        return [part.data for part in self._parts if part.kind == "data"]

    @property
    def is_error(self) -> bool:
        """True if the agent has reported errors and nothing else."""
        kinds = {part.kind for part in self._parts if part.text or part.kind == "data"}
        return kinds == {"error"}

    def add(self, event: DoorEvent) -> str | None:
        """Add an event. Return a text about the progress, if it has one."""
        data = event.data
        match event.type:
            case "block.markdown":
                self._parts.append(_Part("text", _with_choices(data["content"], data.get("choices", ()))))
            case "block.data":
                title = data.get("title")
                self._parts.append(_Part("data", title or "", data["data"]))
            case "block.error":
                self._parts.append(_Part("error", data["user_message"]))
            case "block.thought":
                return str(data["content"])
            case "stream.start":
                self._streams[data["stream_id"]] = part = _Part("text", "")
                self._parts.append(part)
            case "stream.chunk":
                self._streams[data["stream_id"]].text += data["chunk"]
            case "stream.abort":
                if (replacement := data.get("replacement")) is not None:
                    self._streams[data["stream_id"]].text = replacement
            case "request.repeated":  # the whole stored reply follows
                self._parts.clear()
                self._streams.clear()
        return None

    def make_content(self) -> list[ContentBlock]:
        """Return the content of the result."""
        return [block for part in self._parts for block in part.make_blocks()]

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


class _Part:
    """A part of an answer: its kind ("text", "data" or "error"), its text and its data."""

    def __init__(self, kind: str, text: str, data: Any = None) -> None:
        self.kind = kind
        self.text = text
        self.data = data

    def make_blocks(self) -> list[ContentBlock]:
        if self.kind == "data":
            title = [TextContent(text=self.text)] if self.text else []
            return [*title, TextContent(text=json.dumps(self.data, ensure_ascii=False))]
        if self.kind == "text" and (name := _find_link_name(self.text)) is not None:
            return [ResourceLink(name=name, uri=self.text.strip())]
        return [TextContent(text=self.text)] if self.text else []


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
