"""The text of a reply, piece by piece as its events arrive: no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from ..contracts import DataBlock
from ..contracts.blocks import STEP_TITLE
from ..domain.texts.terminal_text import changes_direction, clean_running_text, remove_controls

if TYPE_CHECKING:
    from ..runtime import PeerEvent


_MARKS = re.compile(r"[\\`*_~<>\[\]&]")
"""Characters that may be marks of Markdown."""


class AnswerPiece(NamedTuple):
    """A piece of the text of a reply. `separator` is the text between it and the part before it; empty within a part."""

    separator: str
    text: str
    is_markdown: bool
    """False for the values of data, which are laid out as plain text already."""


@dataclass(slots=True)
class _QueuedPart:
    is_markdown: bool
    texts: list[str] = field(default_factory=list)


class AnswerText:
    """Turn events into the text to write. One stream at a time is written as it grows; others are queued until it ends."""

    def __init__(self, *, shows_choices: bool = True) -> None:
        self._shows_choices = shows_choices
        self._current: str | None = None
        self._queued: dict[str, _QueuedPart] = {}
        self._ended_streams: set[str] = set()
        self._queued_part_count = 0
        self._has_text = False
        self._is_at_part_start = True
        self._is_markdown = True
        # White space that is written only if text follows.
        self._pending_whitespace = ""

    @property
    def has_text(self) -> bool:
        """True after the first visible text."""
        return self._has_text

    def feed(self, event: PeerEvent) -> str:
        """Return the text that an event adds, with blank lines between the parts of a reply; often empty."""
        return "".join(piece.separator + piece.text for piece in self.feed_pieces(event))

    def feed_pieces(self, event: PeerEvent) -> list[AnswerPiece]:
        """Return the text that an event adds in pieces; often none."""
        data = event.data
        stream = str(data.get("stream_id", ""))
        match event.type:
            case "block.markdown":
                text = str(data.get("content", ""))
                return self._write_part(text if self._shows_choices else _strip_choices(text, event))
            case "block.data":
                return self._write_data(dict(data))
            case "stream.chunk":
                return self._write_chunk(stream, str(data.get("chunk", "")))
            case "stream.abort":
                return self._abort_stream(stream, data.get("reason", ""), data.get("replacement"))
            case "stream.end":
                return self._end_stream(stream)
            case "request.completed" | "request.failed" | "request.refused" | "request.parked":
                return self._flush()
        return []

    def _write_part(self, text: str, *, is_markdown: bool = True) -> list[AnswerPiece]:
        if self._current is not None:
            self._queued_part_count += 1
            name = f"part {self._queued_part_count}"
            self._queued[name] = _QueuedPart(is_markdown, [text])
            self._ended_streams.add(name)
            return []
        self._start_part(is_markdown)
        return self._clean(text)

    def _write_data(self, data: dict[str, Any]) -> list[AnswerPiece]:
        """Write the title as bold Markdown, code as Markdown, and other values as they are."""
        text, title = _render_data({**data, "title": None}), " ".join(str(data.get("title") or "").split())
        is_plain = _MARKS.search(title) is not None
        pieces = self._write_part(title if is_plain else f"**{title}**", is_markdown=not is_plain) if title else []
        return pieces + self._write_part(text, is_markdown=text.startswith("```"))

    def _write_chunk(self, stream: str, text: str) -> list[AnswerPiece]:
        if self._current is None:
            self._current = stream
            self._start_part()
        elif stream != self._current:
            self._queued.setdefault(stream, _QueuedPart(True)).texts.append(text)
            return []
        return self._clean(text)

    def _abort_stream(self, stream: str, reason: object, replacement: object) -> list[AnswerPiece]:
        if replacement is None:
            return self._write_chunk(stream, f"… (interrupted: {reason})") + self._end_stream(stream)
        if stream == self._current:  # the written text stays; its replacement follows it
            return self._write_chunk(stream, f"… ({reason})") + self._end_stream(stream) + self._write_part(str(replacement))
        self._queued.pop(stream, None)
        return self._write_chunk(stream, str(replacement)) + self._end_stream(stream)

    def _end_stream(self, stream: str) -> list[AnswerPiece]:
        self._ended_streams.add(stream)
        if stream != self._current:
            return []
        self._current = None
        written: list[AnswerPiece] = []
        for name in list(self._queued):
            part = self._queued.pop(name)
            self._start_part(part.is_markdown)
            written += self._clean("".join(part.texts))
            if name not in self._ended_streams:
                self._current = name
                break
        return written

    def _flush(self) -> list[AnswerPiece]:
        written: list[AnswerPiece] = []
        while self._current is not None:
            written += self._end_stream(self._current)
        return written

    def _start_part(self, is_markdown: bool = True) -> None:
        self._is_at_part_start = True
        self._is_markdown = is_markdown
        self._pending_whitespace = ""

    def _clean(self, text: str) -> list[AnswerPiece]:
        """Remove control characters, and white space at the beginning and the end of a part."""
        text = self._pending_whitespace + remove_controls(text)
        if self._is_at_part_start:
            text = text.lstrip()
        visible = text.rstrip()
        if not visible:
            self._pending_whitespace = text
            return []
        self._pending_whitespace = text[len(visible) :]
        separator = "\n\n" if self._is_at_part_start and self._has_text else ""
        self._is_at_part_start = False
        self._has_text = True
        return [AnswerPiece(separator, visible, self._is_markdown)]


def parse_steps(event: PeerEvent) -> list[str]:
    """Return the lines of an event that reports what an agent uses now, such as a tool; [] for any other event."""
    if event.type != "block.thought" or event.data.get("title") != STEP_TITLE:
        return []
    return clean_running_text(str(event.data.get("content", ""))).split("\n")


def parse_thought(event: PeerEvent) -> str:
    """Return the first line of a thought, printable; "" for any other event."""
    if event.type != "block.thought" or parse_steps(event):
        return ""
    first, *_ = clean_running_text(str(event.data.get("content", ""))).strip().split("\n")
    return " ".join(first.split())


def parse_choices(event: PeerEvent) -> list[str]:
    """Return the choices that an event offers, except those that would be sent otherwise than they are shown."""
    choices = event.data.get("choices")
    values = [choice.get("value") for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
    return [
        value
        for value in values
        if isinstance(value, str) and value == remove_controls(value) and "\n" not in value and not changes_direction(value)
    ]


def lists_choices(event: PeerEvent) -> bool:
    """Return True if the text of an event has its choices with their numbers, as that of a question to a person."""
    choices = parse_choices(event)
    listed = "\n".join(f"{number}. {choice}" for number, choice in enumerate(choices, 1))
    return bool(choices) and listed in str(event.data.get("content", ""))


def _strip_choices(text: str, event: PeerEvent) -> str:
    """Remove the list of choices at the end of the text, for a chat that shows them separately."""
    listed = "\n".join(f"- {choice}" for choice in parse_choices(event))
    return text.removesuffix(listed) if listed else text


def _render_data(data: dict[str, Any]) -> str:
    from ..xmpp import render_block

    try:
        return render_block(DataBlock.model_validate(data))
    except ValidationError:  # another program's idea of a block
        return str(data.get("data", ""))
