"""The screen of a terminal: what a person sees after a program has written to it."""

from __future__ import annotations

import re

from wcwidth import wcwidth

_SEQUENCE = re.compile(r"\x1b\[(?P<number>\d*)(?:;\d+)*(?P<kind>[A-Za-z])")


class Screen:
    """A screen with a scroll-back. It knows the sequences of a chat, and fails at any other control character.

    A character in the last column stays the last one of its line until another follows, as in xterm.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = columns
        self.rows = rows
        self.lines: list[list[str]] = [[]]
        """All lines, those above the screen too. The cell after a wide character is empty."""
        self._row = self._column = 0

    @property
    def text(self) -> str:
        """The text of all lines, without blanks at their ends."""
        return "\n".join("".join(line).rstrip() for line in self.lines)

    def write(self, text: str) -> None:
        position = 0
        while position < len(text):
            if match := _SEQUENCE.match(text, position):
                self._run(match["kind"], int(match["number"] or 0))
                position = match.end()
            else:
                self._put(text[position])
                position += 1

    def _run(self, kind: str, number: int) -> None:
        match kind:
            case "m":
                pass
            case "A":
                assert self._row - number >= len(self.lines) - self.rows, "a line above the screen is out of reach"
                self._row -= number
            case "K":
                del self.lines[self._row][self._column :]
            case "J":
                del self.lines[self._row][self._column :]
                for line in self.lines[self._row + 1 :]:
                    line.clear()
            case _:
                raise AssertionError(f"a sequence that ends with {kind}")

    def _put(self, character: str) -> None:
        if character == "\n":
            self._column = 0
            self._row += 1
            if self._row == len(self.lines):
                self.lines.append([])
        elif character == "\r":
            self._column = 0
        else:
            width = wcwidth(character)
            assert width >= 0, f"the control character {character!r}"
            if self._column + width > self.columns:
                self._put("\n")
            line = self.lines[self._row]
            line += [" "] * (self._column - len(line))
            if width:
                line[self._column : self._column + width] = [character, *[""] * (width - 1)]
            elif self._column:
                line[self._column - 1] += character
            self._column += width
