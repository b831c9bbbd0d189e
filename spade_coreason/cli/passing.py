"""The line that a terminal shows until there is something to say; what is logged meanwhile stands above it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .console import CLEAR_LINE, end_line, write


class PassingLine:
    """At most one line, where the cursor is. Whoever writes anything else clears it, or writes `aside`."""

    def __init__(self) -> None:
        self._text = ""

    def show(self, text: str) -> None:
        """Shows the line, instead of the one before."""
        if text != self._text:
            self.clear()
            self._text = text
            write(text)

    def clear(self) -> None:
        """Takes the line away, if there is one."""
        if self._text:
            self._text = ""
            with contextlib.suppress(BrokenPipeError):
                write(CLEAR_LINE)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Whole lines may be written in the block; they stand above."""
        text = self._text
        self.clear()
        with contextlib.suppress(BrokenPipeError):
            end_line()
        try:
            yield
        finally:
            if text:
                self.show(text)


passing = PassingLine()
"""That of standard output."""
