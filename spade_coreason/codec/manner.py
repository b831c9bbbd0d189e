"""How an answer is shown to a person."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ..values import value

ChainedTo: TypeAlias = Callable[[], str | None]


@value
class Manner:
    """What the devices of a person show of one turn, and what they want to see of it."""

    grows: bool = False
    """Every device of theirs shows corrections (XEP-0308)."""
    chained_to: ChainedTo = lambda: None
    """Names, whenever it is called, the one device of theirs where each correction has to name the version before it."""
    is_rerun: bool = False
    """Of the same turn something may have been said before."""
    thoughts: bool = False
    """They read thoughts."""
    steps: bool = False
    """They read which tools are used."""
    refers: bool = False
    """The device that asked shows replies (XEP-0461)."""


PLAIN = Manner()
