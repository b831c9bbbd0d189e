"""Turns that are held in memory: as they are stored, and read as Interactions when somebody looks at them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from pydantic_core import from_json, to_json

from .contracts import Interaction

log = logging.getLogger(__name__)


class HeldTurn:
    """One turn as its JSON text. It is read once at most: most turns are only kept."""

    __slots__ = ("_interaction", "_is_read", "text", "tokens")

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = 0
        """Its size, where somebody has counted; else 0."""
        self._interaction: Interaction | None = None
        self._is_read = False

    @property
    def interaction(self) -> Interaction | None:
        """The turn. None for one that cannot be read, and the log says so: the others are still there."""
        if not self._is_read:
            self._is_read = True
            try:
                self._interaction = Interaction.model_validate_json(self.text)
            except ValueError as error:  # what was written goes deeper, or has longer numbers, than can be read
                problem = str(error).partition("\n")[0]
                log.error("a stored turn cannot be read (%d characters): %s", len(self.text), problem)
        return self._interaction

    def marked(self, name: str, value: Any) -> HeldTurn:
        """The same turn with something more in its `meta`."""
        turn = from_json(self.text)
        turn["meta"][name] = value
        return HeldTurn(to_json(turn).decode())


def read(turns: Iterable[HeldTurn]) -> list[Interaction]:
    """The turns, those that can be read."""
    return [interaction for turn in turns if (interaction := turn.interaction) is not None]


def interactions(rows: Iterable[str]) -> list[Interaction]:
    """Turns from their JSON texts, those that can be read."""
    return read(map(HeldTurn, rows))
