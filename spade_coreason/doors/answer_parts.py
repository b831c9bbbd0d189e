"""The parts of an answer, folded from the events of its reply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from .channel import DoorEvent


class Part:
    """A part of an answer: a text, data with their title as the text, or an error."""

    __slots__ = ("data", "is_cut", "kind", "text")

    def __init__(self, kind: Literal["text", "data", "error"], text: str, data: Any = None) -> None:
        self.kind = kind
        self.text = text
        self.data = data
        self.is_cut = False
        """True for a stream that was aborted, and whose text nothing replaces."""


class AnswerParts:
    """An answer so far. Add the events of its reply in their order.

    `show` returns a text with the answers that it offers, each with its `value` and `label`.
    """

    def __init__(self, show: Callable[[str, Sequence[Mapping[str, str]]], str] = lambda text, choices: text) -> None:
        self._show = show
        self.parts: list[Part] = []
        self.streams: dict[str, Part] = {}
        """The open streams, in the order of their parts."""

    def add(self, event: DoorEvent) -> Part | None:
        """Add an event. Return the part that it begins or changes."""
        data = event.data
        match event.type:
            case "block.markdown":
                part = Part("text", self._show(data["content"], data.get("choices", ())))
            case "block.data":
                part = Part("data", data.get("title") or "", data["data"])
            case "block.error":
                part = Part("error", data["user_message"])
            case "stream.start":
                part = self.streams[data["stream_id"]] = Part("text", "")
            case "stream.chunk" if data["stream_id"] in self.streams:
                part = self.streams[data["stream_id"]]
                part.text += data["chunk"]
                return part
            case "stream.end" | "stream.abort" if data["stream_id"] in self.streams:
                part = self.streams.pop(data["stream_id"])
                part.is_cut = event.type == "stream.abort" and "replacement" not in data
                part.text = data.get("replacement", part.text)
                return part
            case "request.repeated":  # the whole stored reply follows
                self.parts.clear()
                self.streams.clear()
                return None
            case _:
                return None
        self.parts.append(part)
        return part
