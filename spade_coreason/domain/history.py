"""Turns that are held in memory: as they are stored, and read as Interactions when somebody looks at them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from typing import Any, overload

from pydantic_core import from_json, to_json

from ..contracts import Interaction

log = logging.getLogger(__name__)


class StoredTurn:
    """One turn as its JSON text. It is read once at most: most turns are only kept."""

    __slots__ = ("_interaction", "_is_parsed", "text", "tokens")

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = 0
        """Its size, where somebody has counted; else 0."""
        self._interaction: Interaction | None = None
        self._is_parsed = False

    @property
    def interaction(self) -> Interaction | None:
        """The turn. None for one that cannot be read, and the log says so: the others are still there."""
        if not self._is_parsed:
            self._is_parsed = True
            try:
                self._interaction = Interaction.model_validate_json(self.text)
            except ValueError as error:  # what was written goes deeper, or has longer numbers, than can be read
                problem = str(error).partition("\n")[0]
                log.error("a stored turn cannot be read (%d characters): %s", len(self.text), problem)
        return self._interaction

    def with_meta(self, name: str, value: Any) -> StoredTurn:
        """The same turn with something more in its `meta`."""
        turn = from_json(self.text)
        turn["meta"][name] = value
        return StoredTurn(to_json(turn).decode())


class RecentTurns(Sequence[StoredTurn]):
    """The newest turns of a conversation, oldest first.

    They stay as they are when another follows, for sessions show them; but that costs no copy: both share a list.
    """

    __slots__ = ("_begin", "_end", "_shared")

    def __init__(self, turns: list[StoredTurn]) -> None:
        self._shared, self._begin, self._end = turns, 0, len(turns)

    def __len__(self) -> int:
        return self._end - self._begin

    @overload
    def __getitem__(self, index: int) -> StoredTurn: ...

    @overload
    def __getitem__(self, index: slice) -> list[StoredTurn]: ...

    def __getitem__(self, index: int | slice) -> StoredTurn | list[StoredTurn]:
        if isinstance(index, slice):
            return self._shared[self._begin : self._end][index]
        return self._shared[range(self._begin, self._end)[index]]

    def with_appended(self, turn: StoredTurn) -> RecentTurns:
        """These and another, which is the newest."""
        if self._end < len(self._shared):  # another follows these already: one that was not stored
            return RecentTurns([*self[:], turn])
        self._shared.append(turn)
        turns = RecentTurns(self._shared)
        turns._begin = self._begin
        return turns

    def truncate(self, count: int) -> None:
        """Lets all go but so many; for what nobody else has seen yet."""
        begin = self._end - count
        if begin > self._begin:
            self._begin = begin
            if begin > count // 2:  # only now and then, for it copies; until then what was let go is held with the others
                self._shared = self._shared[begin : self._end]
                self._begin, self._end = 0, count


def parse_turns(turns: Iterable[StoredTurn]) -> list[Interaction]:
    """The turns, those that can be read."""
    return [interaction for turn in turns if (interaction := turn.interaction) is not None]


def parse_interactions(texts: Iterable[str]) -> list[Interaction]:
    """Turns from their JSON texts, those that can be read."""
    return parse_turns(map(StoredTurn, texts))


def request_text(turn: Interaction) -> str:
    """What was asked; JSON where it is no question, "" of a summary, which nobody asked for."""
    if turn.input is None:
        return ""
    asked = turn.input.get("query") if isinstance(turn.input, dict) else None
    return asked if isinstance(asked, str) else json.dumps(turn.dump()["input"], ensure_ascii=False)


def reply_text(turn: Interaction) -> str:
    """The text of the answer."""
    return str(turn.output.get("text", ""))


def turn_text(turn: Interaction) -> str:
    """Both, one below the other."""
    return f"{request_text(turn)}\n{reply_text(turn)}".strip()


def turn_lines(turn: Interaction) -> list[str]:
    """Both, each with who said it."""
    said = {"User": request_text(turn), "Agent": reply_text(turn)}
    return [f"{who}: {text}" for who, text in said.items() if text.strip()]
