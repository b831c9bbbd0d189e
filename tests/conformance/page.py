"""The page with the results of the kits: each kit writes the part between its two marks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "development" / "conformance.md"


def write_section(name: str, lines: Sequence[str]) -> None:
    """Replace the results of a kit in the page."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    PAGE.write_text(head + "\n".join([begin, "", *lines, "", end]) + tail, encoding="utf-8")
