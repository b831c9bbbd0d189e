"""Text wrapped between words to the width of a terminal: no I/O."""

from __future__ import annotations

import re
from collections.abc import Callable

from wcwidth import wcwidth

_TAB_COLUMNS = 8
# A word that may still grow is not written yet if it ends this close to the end of the line.
_LOOKAHEAD_COLUMNS = 16
# With less room than this for its text, `wrap_hanging` does not indent.
_MIN_TEXT_COLUMNS = 20
_PIECE = re.compile(r"\n|[ \t]+|[^ \t\n]+")


def count_columns(text: str) -> int:
    """Count the columns that a text takes in a terminal. Control characters take none."""
    return sum(max(0, wcwidth(character)) for character in text)


def truncate(line: str, columns: int) -> str:
    """Shorten a line to this number of terminal columns."""
    if count_columns(line) <= columns:
        return line
    line = line[:columns]
    while line and count_columns(line) >= columns:
        line = line[:-1]
    return f"{line}…"


class IncrementalWrapper:
    """Wrap a text that arrives in pieces, so that lines fit in `width()` and begin with `indent`.

    Line breaks are inserted and nothing is removed. `width` is called for every piece, because a terminal can be resized;
    None disables wrapping. A word moves to the next line if it does not fit. It is cut if it would not fit there either, or
    if a part of it is written already. `end` returns the text that is still pending.
    """

    def __init__(self, width: Callable[[], int | None], indent: str = "  ") -> None:
        self._width = width
        self._indent = indent
        self._column: int | None = None  # None before the first text
        self._pending_word = ""
        self._is_in_word = False

    def feed(self, text: str) -> str:
        """Return the text to write for the next piece."""
        return self._write(text, is_end=False)

    def end(self) -> str:
        """Return the pending rest of the text."""
        return self._write("", is_end=True)

    def _write(self, text: str, is_end: bool) -> str:
        pieces = _PIECE.findall(self._pending_word + text)
        self._pending_word = ""
        width = self._width()
        # The last column stays free for the blank after a word: many terminals start a new line once it is written.
        limit = None if width is None else max(width - 1, count_columns(self._indent) + 2)
        written = ""
        for number, piece in enumerate(pieces):
            if self._column is None:
                written += self._start_line()
            if piece == "\n":
                written += f"\n{self._start_line()}"
                self._is_in_word = False
            elif piece[0] in " \t":
                written += self._break_text(piece, None if limit is None else limit + 1)
                self._is_in_word = False
            elif not is_end and number == len(pieces) - 1 and self._may_not_fit(piece, limit):
                self._pending_word = piece
            else:
                written += self._place_word(piece, limit)
                self._is_in_word = True
        return written

    def _start_line(self) -> str:
        self._column = count_columns(self._indent)
        return self._indent

    def _may_not_fit(self, word: str, limit: int | None) -> bool:
        end = (self._column or 0) + count_columns(word)
        return limit is not None and not self._is_in_word and limit - _LOOKAHEAD_COLUMNS < end <= limit

    def _place_word(self, word: str, limit: int | None) -> str:
        width = count_columns(word)
        fits_here = limit is None or (self._column or 0) + width <= limit
        fits_below = limit is None or count_columns(self._indent) + width <= limit
        if self._is_in_word or fits_here or not fits_below:
            return self._break_text(word, limit)
        return f"\n{self._start_line()}{self._break_text(word, limit)}"

    def _break_text(self, text: str, limit: int | None) -> str:
        """Insert a line break wherever the text reaches the end of a line."""
        written = ""
        for character in text:
            column = self._column or 0
            if character == "\t":  # at most to the last column
                stop = (column // _TAB_COLUMNS + 1) * _TAB_COLUMNS
                self._column = stop if limit is None else min(stop, limit)
            else:
                size = count_columns(character)
                if limit is not None and size and column + size > limit:
                    written += f"\n{self._start_line()}"
                self._column = (self._column or 0) + size
            written += character
        return written


def wrap_hanging(head: str, text: str, width: int | None) -> str:
    """Put a text beside its head, and align its further lines with its first."""
    indent = count_columns(head)
    if width is None or width < indent + _MIN_TEXT_COLUMNS:
        return (head + text).rstrip()
    wrapped = IncrementalWrapper(lambda: width, " " * indent)
    return (head + (wrapped.feed(text) + wrapped.end())[indent:]).rstrip()
