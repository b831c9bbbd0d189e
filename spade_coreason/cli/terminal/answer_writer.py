"""Writers of a reply on standard output: as plain text, or on a terminal as Markdown that is laid out while it grows."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from .console import has_colours, is_foreground, is_unicode, status_line, terminal_rows, terminal_width, write

if TYPE_CHECKING:
    from ..answers import AnswerPiece
    from .markdown import MarkdownRenderer

MAX_BLOCK_CHARACTERS = 50_000
"""A longer text that comes at once, or a longer block, is a log or a dump. The rest of its part is written as plain text."""
# Narrower terminals show plain text.
_MIN_COLUMNS = 16
# The last block is drawn again at most this often, and drawing takes at most a tenth of the time.
_MIN_INTERVAL_S = 0.03
_IDLE_TO_COST = 9
_CLEAR_TO_LINE_END, _CLEAR_TO_SCREEN_END = "\x1b[K", "\x1b[J"


class AnswerWriter(Protocol):
    """A writer of one reply."""

    def feed(self, pieces: Sequence[AnswerPiece]) -> None:
        """Write the next pieces."""
        ...

    def interject(self, lines: str) -> None:
        """Write whole lines that are not part of the reply."""
        ...

    def end(self) -> None:
        """Write what is left, and end the line if there was a text."""
        ...


def shows_markdown() -> bool:
    """Return True if standard output is a terminal with colours, wide enough, and this program is not in its background."""
    return has_colours(sys.stdout) and (terminal_width() or 0) >= _MIN_COLUMNS and is_foreground()


def open_answer(indent: str = "", *, wraps: bool = True) -> AnswerWriter:
    """Return the writer for standard output as it is. `wraps` is about plain text; laid out Markdown always fits.

    While Markdown is shown, typing must not appear (`disable_echo`), and other code writes lines inside `status_line.suspend`.
    """
    return MarkdownWriter(indent, wraps=wraps) if shows_markdown() else PlainWriter(indent, wraps=wraps)


class PlainWriter:
    """Writer of a reply as its agent wrote it, wrapped to the width of a terminal if `wraps` is set."""

    def __init__(self, indent: str, *, wraps: bool) -> None:
        from .wrapping import IncrementalWrapper  # it loads wcwidth

        self._wrapper = IncrementalWrapper(terminal_width, indent) if wraps else None
        self._has_text = False

    def feed(self, pieces: Sequence[AnswerPiece]) -> None:
        """Write the next pieces."""
        for piece in pieces:
            self._has_text = True
            self.write_text(piece.separator + piece.text)

    def write_text(self, text: str) -> None:
        """Write a text, except a last word that may still grow."""
        if written := text if self._wrapper is None else self._wrapper.feed(text):
            write(written)

    def flush(self) -> None:
        """Write what is left."""
        if self._wrapper is not None:
            write(self._wrapper.end())

    def interject(self, lines: str) -> None:
        """Write whole lines that are not part of the reply."""
        self.flush()
        write(f"\n{lines}" if self._has_text else f"{lines}\n")

    def end(self) -> None:
        """Write what is left, and end the line if there was a text."""
        if self._has_text:
            self.flush()
            write("\n")


class MarkdownWriter:
    """Writer of a reply on a terminal, with its Markdown laid out.

    A finished block (a paragraph, a list, code, a table) stays as it is. The last block is drawn again when it grows: its lines
    from the first that has changed on, as far as they are still on the screen. Nothing above is touched, so that the lines
    that scrolled away stay as they are. If other code has written lines, or the width has changed, the rest of the block
    begins on a new line. With `is_immediate` every piece is drawn, however long that takes.
    """

    def __init__(self, indent: str, *, wraps: bool, is_immediate: bool = False) -> None:
        self._indent = indent
        self._wraps = wraps
        self._is_immediate = is_immediate
        self._renderer: MarkdownRenderer | None = None
        self._width = terminal_width()
        self._suspend_count = status_line.suspend_count
        self._has_text = False
        self._needs_line_break = False
        self._plain: PlainWriter | None = None  # of a part that is not laid out
        self._source = ""  # of the blocks that are not finished
        self._drawn_characters = 0  # … of these
        self._shown: list[str] = []  # … and their lines
        self._open_fence = ""
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._load_renderer)  # a tenth of a second, in which the request is on its way
        self._timer: asyncio.TimerHandle | None = None
        self._next_draw_at = 0.0

    def feed(self, pieces: Sequence[AnswerPiece]) -> None:
        """Add the next pieces to what is drawn, at once or a moment later."""
        for piece in pieces:
            if piece.separator or not self._has_text:
                self._finish_part()
                write(piece.separator)
                self._plain = None if piece.is_markdown else PlainWriter(self._indent, wraps=self._wraps)
            elif self._needs_line_break:
                write("\n")
            self._has_text, self._needs_line_break = True, False
            if self._plain is None:
                self._source += piece.text
            else:
                self._plain.write_text(piece.text)
        if len(self._source) > self._drawn_characters and self._timer is None:
            if (delay_s := self._next_draw_at - self._loop.time()) > 0 and not self._is_immediate:
                self._timer = self._loop.call_later(delay_s, self._draw)
            else:
                self._draw()

    def interject(self, lines: str) -> None:
        """Write whole lines that are not part of the reply."""
        self._finish_part()
        write(f"\n{lines}" if self._has_text else f"{lines}\n")
        self._needs_line_break = self._has_text

    def end(self) -> None:
        """Write what is left, and end the line if there was a text."""
        self._finish_part()
        if self._has_text:
            write("\n")

    def _load_renderer(self) -> MarkdownRenderer:
        if self._renderer is None:
            from .markdown import MarkdownRenderer

            self._renderer = MarkdownRenderer(is_unicode=is_unicode())
        return self._renderer

    def _finish_part(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if len(self._source) > self._drawn_characters:
            self._draw()
        self._timer = None
        if self._plain is not None:
            self._plain.flush()
        self._plain, self._source, self._drawn_characters, self._shown, self._open_fence = None, "", 0, [], ""

    def _draw(self) -> None:
        self._timer = None
        width = terminal_width() or self._width
        if self._suspend_count != status_line.suspend_count:  # the cursor is at the beginning of a line
            self._break_block()
        elif width != self._width and self._shown:
            self._break_block()
            write("\n")
        self._width, self._suspend_count = width, status_line.suspend_count
        if len(self._source) > MAX_BLOCK_CHARACTERS:
            self._continue_as_plain_text()
            return
        if not self._source:
            return
        begin = self._loop.time()
        rendered = self._load_renderer().render(self._source, max((width or 0) - len(self._indent), _MIN_COLUMNS) - 1)
        lines = [f"{self._indent}{line}".rstrip() for line in rendered.lines]
        first_on_screen = max(len(self._shown) - terminal_rows() + 1, 0)
        if first_on_screen and len(lines) <= first_on_screen:  # it is much shorter now; what it was is out of reach
            self._break_block()
            write("\n")
            self._draw()
            return
        self._replace_lines(lines, first_on_screen)
        self._source = self._source[rendered.finished_characters :]
        self._shown = lines[rendered.finished_lines :]
        self._drawn_characters = len(self._source)
        self._open_fence = rendered.open_fence
        end = self._loop.time()
        self._next_draw_at = end + max(_MIN_INTERVAL_S, _IDLE_TO_COST * (end - begin))

    def _replace_lines(self, lines: list[str], first_on_screen: int) -> None:
        """Change the shown lines, at the end of which the cursor is, into `lines`."""
        shown = self._shown
        if shown == lines:
            return
        changes = (number for number, (before, after) in enumerate(zip(shown, lines, strict=False)) if before != after)
        same = next(changes, min(len(shown), len(lines)))
        first = max(min(same, len(lines) - 1), first_on_screen)
        if first == len(shown):
            write(("\n" if shown else "") + "\n".join(lines[first:]))
        elif first == len(shown) - 1 and lines[first].startswith(shown[first]):
            write("\n".join(lines[first:])[len(shown[first]) :])
        else:
            up = len(shown) - 1 - first
            move = f"\r\x1b[{up}A" if up else "\r"
            write(move + f"{_CLEAR_TO_LINE_END}\n".join(lines[first:]) + _CLEAR_TO_SCREEN_END)

    def _break_block(self) -> None:
        """Leave the shown lines as they are. What is not drawn yet becomes a block of its own, code a block of code."""
        if self._drawn_characters:
            rest = self._source[self._drawn_characters :].removeprefix("\n")
            self._source = f"{self._open_fence}\n{rest}" if self._open_fence and rest else rest
        self._drawn_characters, self._shown, self._open_fence = 0, [], ""

    def _continue_as_plain_text(self) -> None:
        was_shown, rest = bool(self._shown), self._source[self._drawn_characters :]
        write("\n" if was_shown else "")
        self._plain = PlainWriter(self._indent, wraps=self._wraps)
        self._plain.write_text(rest.removeprefix("\n") if was_shown else rest)
        self._source, self._drawn_characters, self._shown, self._open_fence = "", 0, [], ""
