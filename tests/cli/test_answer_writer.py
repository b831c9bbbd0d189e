"""Answers on a terminal: what a person sees while they grow, and at their end."""

from __future__ import annotations

import asyncio
import gc
import os
import pty
import re
import sys
import termios
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings, strategies as st

from spade_coreason.cli.answers import AnswerPiece
from spade_coreason.cli.terminal.answer_writer import MAX_BLOCK_CHARACTERS, MarkdownWriter
from spade_coreason.cli.terminal.console import status_line, write
from spade_coreason.cli.terminal.markdown import MarkdownRenderer
from tests.cli.test_markdown import MARKDOWN
from tests.support.screen import Screen
from tests.support.wait import TIMEOUT_S

_STYLE = re.compile(r"\x1b\[[0-9;]*m")
Step = str | Callable[[], None]


class PseudoTerminal:
    """A terminal that is standard output inside of `as_stdout`, and all that was written to it."""

    def __init__(self, columns: int, rows: int) -> None:
        self._controller, self._tty = pty.openpty()
        attributes = termios.tcgetattr(self._tty)
        attributes[1] &= ~termios.OPOST
        termios.tcsetattr(self._tty, termios.TCSANOW, attributes)
        self.rows = rows
        self.resize(columns)
        self.written = ""

    def resize(self, columns: int) -> None:
        termios.tcsetwinsize(self._tty, (self.rows, columns))

    @contextmanager
    def as_stdout(self) -> Iterator[None]:
        reader = threading.Thread(target=self._read)
        reader.start()
        before = sys.stdout
        try:
            with open(self._tty, "w", encoding="utf-8") as sys.stdout:
                yield
        finally:
            sys.stdout = before
            reader.join(TIMEOUT_S)
            os.close(self._controller)

    def _read(self) -> None:
        data = bytearray()
        try:
            while piece := os.read(self._controller, 65536):
                data += piece
        except OSError:  # the other end is closed
            self.written = data.decode()


def show(steps: Iterable[Step], *, columns: int = 40, rows: int = 10, terminal: PseudoTerminal | None = None) -> str:
    """Show the pieces of one part, with actions between them, and return all that was written."""
    terminal = terminal or PseudoTerminal(columns, rows)

    async def write_steps() -> None:
        writer = MarkdownWriter("  ", wraps=True, is_immediate=True)
        for step in steps:
            if isinstance(step, str):
                writer.feed([AnswerPiece("", step, True)])
            else:
                step()
        writer.end()

    with terminal.as_stdout():
        asyncio.run(write_steps())
    return terminal.written


def seen(written: str, columns: int = 40, rows: int = 10) -> str:
    """Return what a person sees, without the indent of each line."""
    screen = Screen(columns, rows)
    screen.write(written)
    return re.sub("^  ", "", screen.text, flags=re.MULTILINE)


def expected(text: str, columns: int = 40) -> str:
    lines = MarkdownRenderer().render(text, columns - 3).lines
    return "\n".join([*(_STYLE.sub("", line).rstrip() for line in lines), ""])


def pieces_of(text: str, size: int) -> list[str]:
    return [text[begin : begin + size] for begin in range(0, len(text), size)]


MIXED = """# Weather

In **Berlin** it is _sunny_:

- warm, and that is a line that has to be wrapped here
- dry
  1. without clouds

```py
def sun() -> bool:
    return True
```

| city | weather |
|---|---|
| Berlin | sun |
| Valencia | sun, and more of it |

> said [the forecast](https://example.org/forecast)
"""


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize(("columns", "rows"), [(80, 40), (40, 10), (20, 5)])
def test_an_answer_in_pieces_looks_like_the_same_in_one(size: int, columns: int, rows: int) -> None:
    # A table that grows wider draws all its lines again, as far as they are on the screen.
    text = (MIXED if rows == 40 else MIXED.partition("| city")[0]).strip()
    written = show(pieces_of(text, size), columns=columns, rows=rows)
    assert seen(written, columns, rows) == expected(text, columns)


@settings(max_examples=60)
@given(MARKDOWN, st.integers(1, 9))
def test_any_answer_writes_nothing_but_styles_and_moves_on_the_screen(text: str, size: int) -> None:
    seen(show(pieces_of(text.strip(), size), rows=6), rows=6)


def test_text_that_grows_is_not_written_again() -> None:
    text = " ".join(f"word{number}" for number in range(300))
    written = show(pieces_of(text, 5))
    assert len(written) < 3 * len(text)  # the last line again, where its last word has grown too long for it
    assert not re.search(r"\x1b\[\d*A", written)


def test_a_block_that_is_higher_than_the_screen_loses_no_line() -> None:
    text = "\n".join(f"- **item** {number}" for number in range(50))
    assert seen(show(pieces_of(text, 4))) == expected(text)


def test_a_line_of_the_log_stands_between_the_lines_of_an_answer() -> None:
    def log() -> None:
        with status_line.suspend():
            write("warning: something\n")

    assert seen(show(["one **two", log, "** three\n\n```\nfour\n", "five", log, "\nsix\n```\n\nseven"])) == (
        "one **two\nwarning: something\n** three\n\n  four\n  five\nwarning: something\n  six\n\nseven\n"
    )


def test_after_a_change_of_the_width_the_rest_is_laid_out_anew() -> None:
    terminal = PseudoTerminal(40, 10)
    words = " ".join(["word"] * 12)
    written = show([f"{words} ", lambda: terminal.resize(20), f"**{words}**"], terminal=terminal)
    assert max(map(len, seen(written).partition("word\n")[2].split("\n"))) <= 40
    assert seen(written).count("word") == 24
    assert all(len(line) <= 20 for line in seen(written).split("\n")[2:])


def test_a_part_of_data_is_not_laid_out_and_steps_stand_between_parts() -> None:
    terminal = PseudoTerminal(40, 10)

    async def write_parts() -> None:
        writer = MarkdownWriter("  ", wraps=True)
        writer.feed([AnswerPiece("", "**one**", True), AnswerPiece("\n\n", "*two*\n```\na  b\n```", False)])
        writer.interject("  Using recall…")
        writer.feed([AnswerPiece("\n\n", "```\nthree", True), AnswerPiece("\n\n", "**four**", True)])
        writer.end()

    with terminal.as_stdout():
        asyncio.run(write_parts())
    assert seen(terminal.written) == "one\n\n*two*\n```\na  b\n```\nUsing recall…\n\n  three\n\nfour\n"
    assert "\x1b[1mfour" in terminal.written


def test_an_answer_that_has_ended_is_not_drawn_again() -> None:
    terminal = PseudoTerminal(40, 10)

    async def write_and_forget() -> bool:
        writer = MarkdownWriter("  ", wraps=True)
        await asyncio.sleep(0)  # it has loaded its renderer
        writer.feed([AnswerPiece("", "one", True)])
        writer.feed([AnswerPiece("", " two", True)])  # is drawn a moment later
        writer.end()
        ended = weakref.ref(writer)
        del writer
        gc.collect()
        return ended() is None

    with terminal.as_stdout():
        assert asyncio.run(write_and_forget()), "a timer still holds the writer"
    assert seen(terminal.written) == "one two\n"


def test_an_enormous_answer_is_plain_text() -> None:
    text = "**word** " * (1_000_000 // 9)
    written = show([text])
    assert re.sub(r"\s+", " ", written).strip() == text.strip()


def test_an_enormous_block_goes_on_as_plain_text() -> None:
    text = "- **item**\n" * (MAX_BLOCK_CHARACTERS // 10)
    assert seen(show(pieces_of(text.strip(), 20_000))).count("item") == text.count("item")
