"""Sessions that are held in memory: their turns as they are stored, and read as Interactions when somebody looks at them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, overload

from pydantic import ConfigDict
from pydantic_core import from_json, to_json

from .contracts import Interaction, SessionState

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


class HeldTurns(Sequence[Interaction]):
    """The `history` of a session, oldest first: each turn is read when it is looked at. A part of it is one as well.

    One that cannot be read is left out where they are gone through, and a LookupError where it is asked for by its index.
    """

    __slots__ = ("held",)

    def __init__(self, held: Iterable[HeldTurn] = ()) -> None:
        self.held = tuple(held)

    @classmethod
    def of(cls, rows: Iterable[str]) -> HeldTurns:
        """Turns from their JSON texts."""
        return cls(map(HeldTurn, rows))

    def __len__(self) -> int:
        return len(self.held)

    @overload
    def __getitem__(self, index: int) -> Interaction: ...

    @overload
    def __getitem__(self, index: slice) -> HeldTurns: ...

    def __getitem__(self, index: int | slice) -> Interaction | HeldTurns:
        if isinstance(index, slice):
            return HeldTurns(self.held[index])
        if (turn := self.held[index].interaction) is None:
            raise LookupError("this turn cannot be read")
        return turn

    def __iter__(self) -> Iterator[Interaction]:
        return (turn for one in self.held if (turn := one.interaction) is not None)


class HeldState(SessionState):
    """The state of a session between two turns: immutable as any, with a `history` that nobody has to read."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    history: HeldTurns = HeldTurns()  # type: ignore[assignment]  # it is no list, and read as one

    @classmethod
    def of(cls, session_id: str, agent_id: str, user_id: str, turns: Iterable[HeldTurn] = ()) -> HeldState:
        """A state with the turns that are stored of it."""
        return cls.model_construct(id=session_id, agent_id=agent_id, user_id=user_id, history=HeldTurns(turns))

    def with_turns(self, turns: Iterable[HeldTurn]) -> Self:
        """A new state with these turns: `add_interaction` and `prune` in one step."""
        return self._with_history(HeldTurns(turns))


def interactions(rows: Iterable[str]) -> list[Interaction]:
    """Turns from their JSON texts; one that cannot be read is missing."""
    return list(HeldTurns.of(rows))
