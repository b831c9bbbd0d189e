"""Names in a sentence."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def join_names(names: Iterable[str], last: str = "and") -> str:
    """Join names as in a sentence: "a", "a and b", "a, b and c". `last` is the word before the last one."""
    *first, name = names
    return f"{', '.join(first)} {last} {name}" if first else name


def find_closest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the name among `names` that is most like `name`; None if none is like it by at least `cutoff`."""
    return next(iter(get_close_matches(name, list(names), 1, cutoff)), None)


def did_you_mean(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """Return the question for the name among `names` that is most like `name`, or `otherwise`."""
    closest = find_closest(name, names)
    return otherwise if closest is None else f'did you mean "{closest}"?'
