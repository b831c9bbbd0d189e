"""Turns in memory, in their stored form. They are parsed as Interactions on first use."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from typing import Any, overload

from pydantic_core import from_json, to_json

from ..contracts import Interaction

log = logging.getLogger(__name__)


class StoredTurn:
    """One turn as its JSON text. It is parsed at most once, on first use, because most turns are never read."""

    __slots__ = ("_interaction", "_is_parsed", "text", "tokens")

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = 0
        """The size of the turn if it has been counted, else 0."""
        self._interaction: Interaction | None = None
        self._is_parsed = False

    @property
    def interaction(self) -> Interaction | None:
        """The parsed turn; None for one that was erased.

        A turn that cannot be read is None too, and logged as an error; the other turns remain usable.
        """
        if not self._is_parsed:
            self._is_parsed = True
            if not self.text:
                return None
            try:
                self._interaction = Interaction.model_validate_json(self.text)
            except ValueError as error:  # JSON may be written with deeper nesting or longer numbers than can be read
                problem = str(error).partition("\n")[0]
                log.error("a stored turn cannot be read (%d characters): %s", len(self.text), problem)
        return self._interaction

    def erase(self) -> None:
        """Forget the content, in all places that refer to the turn."""
        self.text, self._interaction, self._is_parsed, self.tokens = "", None, True, 1

    def with_meta(self, name: str, value: Any) -> StoredTurn:
        """Return the same turn with one more value in its `meta`."""
        turn = from_json(self.text)
        turn["meta"][name] = value
        return StoredTurn(to_json(turn).decode())


class RecentTurns(Sequence[StoredTurn]):
    """The newest turns of a conversation, oldest first.

    Appending a turn leaves this value unchanged, because sessions show it. It costs no copy: both values share one list.
    """

    __slots__ = ("_begin", "_end", "_shared", "characters")

    def __init__(self, turns: list[StoredTurn], characters: int | None = None) -> None:
        self._shared, self._begin, self._end = turns, 0, len(turns)
        self.characters = _count_characters(turns) if characters is None else characters
        """The characters in memory: of these turns, and of dropped ones that the list still holds."""

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
        """Return these turns followed by a newer one."""
        if self._end < len(self._shared):  # the shared list already has a next turn: one that was not stored
            return RecentTurns([*self[:], turn])
        self._shared.append(turn)
        turns = RecentTurns(self._shared, self.characters + len(turn.text))
        turns._begin = self._begin
        return turns

    def truncate(self, count: int) -> None:
        """Drop all turns but the newest `count`. Only a value that no other code holds yet may be truncated."""
        begin = self._end - count
        if begin > self._begin:
            self._begin = begin
            if begin > count // 2:  # rarely, because it copies; until then the list still holds the dropped turns
                self._shared = self._shared[begin : self._end]
                self._begin, self._end = 0, count
                self.characters = _count_characters(self._shared)


def _count_characters(turns: Iterable[StoredTurn]) -> int:
    return sum([len(turn.text) for turn in turns])


def parse_turns(turns: Iterable[StoredTurn]) -> list[Interaction]:
    """Parse turns, leaving out those that cannot be read."""
    return [interaction for turn in turns if (interaction := turn.interaction) is not None]


def parse_interactions(texts: Iterable[str]) -> list[Interaction]:
    """Parse turns from their JSON texts, leaving out those that cannot be read."""
    return parse_turns(map(StoredTurn, texts))


def request_text(turn: Interaction) -> str:
    """Return the text of the request: its query, else its JSON. A summary has no request, which gives ""."""
    if turn.input is None:
        return ""
    query = turn.input.get("query") if isinstance(turn.input, dict) else None
    return query if isinstance(query, str) else json.dumps(turn.dump()["input"], ensure_ascii=False)


def reply_text(turn: Interaction) -> str:
    """Return the text of the reply."""
    return str(turn.output.get("text", ""))


def turn_text(turn: Interaction) -> str:
    """Return the request and the reply, one below the other."""
    return f"{request_text(turn)}\n{reply_text(turn)}".strip()


def turn_lines(turn: Interaction) -> list[str]:
    """Return the request and the reply as lines that begin with "User: " and "Agent: ". An empty text has no line."""
    texts = {"User": request_text(turn), "Agent": reply_text(turn)}
    return [f"{speaker}: {text}" for speaker, text in texts.items() if text.strip()]
