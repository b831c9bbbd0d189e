"""The text of an answer, piece by piece as its events come: no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ..contracts import DataBlock
from ..contracts.blocks import STEP
from .console import printable

if TYPE_CHECKING:
    from ..runtime import PeerEvent


class AnswerText:
    """What to write for each event. One stream at a time is written as it grows; others wait until it is complete."""

    def __init__(self, *, names_choices: bool = True) -> None:
        self._names_choices = names_choices
        self._current: str | None = None
        self._waiting: dict[str, list[str]] = {}
        self._ended: set[str] = set()
        self._parts = 0
        self._has_text = False
        self._is_at_beginning = True
        # White space that is written only if text comes behind it.
        self._blank = ""

    @property
    def has_text(self) -> bool:
        """Whether anything was written yet."""
        return self._has_text

    def feed(self, event: PeerEvent) -> str:
        """The text that an event adds, blank lines between the parts of an answer included; often empty."""
        data = event.data
        stream = str(data.get("stream_id", ""))
        match event.type:
            case "block.markdown":
                text = str(data.get("content", ""))
                return self._part(text if self._names_choices else _without_choices(text, event))
            case "block.data":
                return self._part(_data_text(dict(data)))
            case "stream.chunk":
                return self._chunk(stream, str(data.get("chunk", "")))
            case "stream.abort":
                return self._abort(stream, data.get("reason", ""), data.get("replacement"))
            case "stream.end":
                return self._end(stream)
            case "request.completed" | "request.failed" | "request.refused":
                return self._flush()
        return ""

    def _part(self, text: str) -> str:
        if self._current is not None:
            self._parts += 1
            name = f"part {self._parts}"
            self._waiting[name] = [text]
            self._ended.add(name)
            return ""
        self._begin()
        return self._clean(text)

    def _chunk(self, stream: str, text: str) -> str:
        if self._current is None:
            self._current = stream
            self._begin()
        elif stream != self._current:
            self._waiting.setdefault(stream, []).append(text)
            return ""
        return self._clean(text)

    def _abort(self, stream: str, reason: object, replacement: object) -> str:
        if replacement is None:
            return self._chunk(stream, f"… (interrupted: {reason})") + self._end(stream)
        if stream == self._current:  # what is written stays; what takes its place comes behind it
            return self._chunk(stream, f"… ({reason})") + self._end(stream) + self._part(str(replacement))
        self._waiting.pop(stream, None)
        return self._chunk(stream, str(replacement)) + self._end(stream)

    def _end(self, stream: str) -> str:
        self._ended.add(stream)
        if stream != self._current:
            return ""
        self._current = None
        written = ""
        for name in list(self._waiting):
            self._begin()
            written += self._clean("".join(self._waiting.pop(name)))
            if name not in self._ended:
                self._current = name
                break
        return written

    def _flush(self) -> str:
        written = ""
        while self._current is not None:
            written += self._end(self._current)
        return written

    def _begin(self) -> None:
        self._is_at_beginning = True
        self._blank = ""

    def _clean(self, text: str) -> str:
        """Without control characters, and without white space at the beginning and the end of a part."""
        text = self._blank + printable(text)
        if self._is_at_beginning:
            text = text.lstrip()
        said = text.rstrip()
        if not said:
            self._blank = text
            return ""
        self._blank = text[len(said) :]
        between = "\n\n" if self._is_at_beginning and self._has_text else ""
        self._is_at_beginning = False
        self._has_text = True
        return between + said


def steps_of(event: PeerEvent) -> list[str]:
    """The lines of an event that says what an agent uses just now, such as a tool; none of any other."""
    if event.type != "block.thought" or event.data.get("title") != STEP:
        return []
    return printable(str(event.data.get("content", ""))).splitlines()


def thought_of(event: PeerEvent) -> str:
    """The first line of a thought, printable; "" for anything else."""
    if event.type != "block.thought" or steps_of(event):
        return ""
    first, *_ = printable(str(event.data.get("content", ""))).strip().splitlines() or [""]
    return " ".join(first.split())


def choices_of(event: PeerEvent) -> list[str]:
    """What an event offers as answers, printable; nothing of those that would not be said as they are shown."""
    offered = event.data.get("choices")
    values = [one.get("value") for one in offered if isinstance(one, dict)] if isinstance(offered, list) else []
    return [value for value in values if isinstance(value, str) and value == printable(value) and "\n" not in value]


def _without_choices(text: str, event: PeerEvent) -> str:
    """The text without the list of what it offers at its end, for whoever shows that otherwise."""
    listed = "\n".join(f"- {choice}" for choice in choices_of(event))
    return text.removesuffix(listed) if listed else text


def _data_text(data: dict[str, Any]) -> str:
    from ..codec import block_text

    try:
        return block_text(DataBlock.model_validate(data))
    except ValidationError:  # another program's idea of a block
        return str(data.get("data", ""))
