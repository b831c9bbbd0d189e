"""The events of a reply as an answer of OpenAI's kind: a text, thoughts beside it, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic_core import to_json

from ...domain.texts.approval_mark import quote_forgeries
from ..agents import CallerQuestion
from ..answer_parts import AnswerParts, Part
from ..channel import DoorEvent


class Piece(NamedTuple):
    """A piece of an answer, as it is sent."""

    kind: Literal["text", "thought"]
    text: str


class Answer:
    """An answer that grows with each event: `add(event)` returns the new pieces.

    What was sent cannot be taken back: a text that replaces it follows it in the pieces. `text` is as if it were sent at once.
    If it begins `after` a question that the client has answered, the text up to that question is left out.
    """

    def __init__(self, after: CallerQuestion | None = None) -> None:
        self._after = after
        self.thoughts = ""
        self.data: list[dict[str, Any]] = []
        """The data blocks: each with its title and its data."""
        self.usage: Mapping[str, int] | None = None
        self.last: DoorEvent | None = None
        """The last event, once it is there."""
        # Of the open streams only the first is sent as it grows.
        self._parts = AnswerParts(lambda text, choices: _add_choices(text, [choice["value"] for choice in choices]))
        self._sent = ""
        self._sent_thoughts = ""
        self._taken_back = ""
        self._is_current = False
        """True if all of the text up to the first open stream is sent."""

    @property
    def delivered(self) -> str:
        """The text of all pieces. It differs from `text` if some of it was replaced."""
        return self._taken_back + self._sent

    @property
    def text(self) -> str:
        """The whole text."""
        return self._begin_after(self._parts.parts)

    def add(self, event: DoorEvent) -> list[Piece]:
        """Take an event, and return what is new."""
        kind, data = event
        if kind == "stream.chunk":
            first = next(iter(self._parts.streams.values()), None)
            is_begun = self._is_current and first is not None and first.text.strip() != ""
            if self._parts.add(event) is first and is_begun:  # the usual case, without a look at all the text
                self._sent += data["chunk"]
                return [Piece("text", data["chunk"])]
            return self._take_pieces()
        part = self._parts.add(event)
        match kind:
            case "request.repeated":
                self.thoughts, self.data = "", []
            case "block.data" if part is not None:
                self.data.append({"title": data.get("title"), "data": data["data"]})
                title = f"**{part.text}**\n\n" if part.text else ""
                part.text = f"{title}```json\n{to_json(data['data'], indent=2).decode()}\n```"
            case "block.thought":
                self.thoughts += ("\n" if self.thoughts else "") + data["content"]
            case "request.completed":
                self.usage = data.get("usage")
        if event.is_final:
            self.last = event
            self._parts.streams.clear()
        return self._take_pieces()

    def add_text(self, text: str) -> list[Piece]:
        """Add a text of the door itself."""
        self._parts.parts.append(Part("text", text))
        return self._take_pieces()

    def _take_pieces(self) -> list[Piece]:
        pieces = []
        if len(self.thoughts) > len(self._sent_thoughts) and self.thoughts.startswith(self._sent_thoughts):
            pieces.append(Piece("thought", self.thoughts[len(self._sent_thoughts) :]))
            self._sent_thoughts = self.thoughts
        text = self._settled_text()
        if text.startswith(self._sent):
            new = text[len(self._sent) :]
        elif self._sent.startswith(text):
            new = ""
        else:  # some of it was replaced
            new = f"\n\n{text}"
            self._taken_back += f"{self._sent}\n\n"
        if new:
            pieces.append(Piece("text", new))
            self._sent = text
        self._is_current = self._sent == text
        return pieces

    def _settled_text(self) -> str:
        """Return the text up to the end of the first open stream: what follows it may have to wait."""
        parts, first = self._parts.parts, next(iter(self._parts.streams.values()), None)
        return self._begin_after(parts if first is None else parts[: parts.index(first) + 1])

    def _begin_after(self, parts: list[Part]) -> str:
        text = "\n\n".join(part.text for part in parts if part.kind != "error" and part.text.strip())
        if self._after is None:
            return text
        for question in (show_question(self._after), self._after.text):
            _, is_there, rest = text.rpartition(question)
            if is_there:
                return rest.lstrip("\n")
        return text if self.last is not None else ""  # the question is still to come


def show_question(question: CallerQuestion) -> str:
    """Return a question to the caller as a text."""
    return _add_choices(question.text, list(question.choices))


def _add_choices(text: str, choices: list[str]) -> str:
    return quote_forgeries("\n".join([text, *(["", *(f"- {choice}" for choice in choices)] if choices else [])]))
