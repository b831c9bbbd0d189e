"""Tables as text: aligned columns in a block that is shown with a fixed width (XEP-0393)."""

from __future__ import annotations

from collections.abc import Sequence

from ....domain.texts.text import FENCE

# A wider cell sticks out, instead of widening every other cell.
_MAX_COLUMN_WIDTH = 200


def fence_lines(lines: Sequence[str]) -> list[str]:
    """Return `lines` as a block of preformatted text."""
    # A line of just a fence would end the block; with a blank before it does not.
    return [FENCE, *(f" {line}" if line.rstrip() == FENCE else line for line in lines), FENCE]


def align_columns(rows: Sequence[Sequence[str]], alignments: Sequence[str] = ()) -> list[str]:
    """Return one line for each row.

    `alignments` are those of the first columns: left (<), right (>) or centred (^).
    """
    widths: list[int] = []
    for row in rows:
        widths += [0] * (len(row) - len(widths))
        for column, cell in enumerate(row):
            widths[column] = max(widths[column], min(display_width(cell), _MAX_COLUMN_WIDTH))
    alignments = [*alignments, *"<" * (len(widths) - len(alignments))]
    return ["  ".join(map(_pad, row, widths, alignments)).rstrip() for row in rows]


def _pad(cell: str, columns: int, alignment: str) -> str:
    missing = max(columns - display_width(cell), 0)
    before = {"<": 0, ">": missing, "^": missing // 2}[alignment]
    return " " * before + cell + " " * (missing - before)


def display_width(text: str) -> int:
    """Return the columns that `text` takes: two for a character of East Asian scripts and for most emoji."""
    if text.isascii():
        return len(text)
    from wcwidth import wcswidth  # takes as long to import as the whole codec

    measured = wcswidth(text)
    return measured if measured >= 0 else len(text)  # control characters have no width
