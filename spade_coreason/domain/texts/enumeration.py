"""Names in a sentence."""

from __future__ import annotations

from collections.abc import Iterable


def join_names(names: Iterable[str], last: str = "and") -> str:
    """Join names as in a sentence: "a", "a and b", "a, b and c". `last` is the word before the last one."""
    *first, name = names
    return f"{', '.join(first)} {last} {name}" if first else name
