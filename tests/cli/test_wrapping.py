"""Text as wide as a terminal."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from prompt_toolkit.utils import get_cwidth

from spade_coreason.cli.terminal.wrapping import IncrementalWrapper, truncate, wrap_hanging

TEXTS = [
    "the quick brown fox jumps over the lazy dog, twice",
    "an address: https://example.org/a/very/long/path/that/fits/nowhere and more",
    "wide 漢字かな交じり文 and 👩‍👩‍👧 and café",
    "two  blanks,   three\n- a list\n\n- with a blank line",
    "漢字かな交じり文は空白を持たない。" * 4,
    "x" * 200,
    " " * 100,
]


def fixed_width(width: int | None) -> Callable[[], int | None]:
    return lambda: width


def wrap(text: str, width: int | None) -> str:
    wrap = IncrementalWrapper(fixed_width(width))
    return wrap.feed(text) + wrap.end()


@pytest.mark.parametrize(
    ("line", "fits"),
    [("", ""), ("a" * 10, "a" * 10), ("a" * 11, "a" * 9 + "…"), ("世" * 5, "世" * 5), ("世" * 6, "世" * 4 + "…")],
)
def test_a_line_is_cut_where_the_terminal_ends(line: str, fits: str) -> None:
    assert truncate(line, 10) == fits


def test_a_line_breaks_between_words_and_the_next_is_indented() -> None:
    assert wrap("one two three four", 12) == "  one two \n  three \n  four"


def test_a_word_that_ends_with_the_line_stays_in_it() -> None:
    assert wrap("one two three", 10) == "  one two \n  three"


def test_a_word_longer_than_a_line_is_cut_at_the_width() -> None:
    assert wrap("a bcdefghijklmn", 8) == "  a bcd\n  efghi\n  jklmn"


def test_a_line_break_begins_an_indented_line() -> None:
    assert wrap("one\ntwo\n\nthree", 80) == "  one\n  two\n  \n  three"


def test_wide_characters_take_two_columns() -> None:
    assert wrap("漢字漢字漢字", 9) == "  漢字漢\n  字漢字"


def test_a_tab_goes_to_the_next_multiple_of_eight() -> None:
    assert wrap("a\tbc d", 13) == "  a\tbc d"
    assert wrap("a\tbc de", 13) == "  a\tbc \n  de"


def test_without_a_width_nothing_is_wrapped() -> None:
    assert wrap("word " * 100 + "\nend", None) == "  " + "word " * 100 + "\n  end"


def test_a_word_that_comes_in_pieces_is_moved_as_a_whole() -> None:
    text = IncrementalWrapper(fixed_width(20))
    pieces = ["one two three ", "fo", "urt", "een fif", "teen"]
    assert [text.feed(piece) for piece in pieces] == ["  one two three ", "", "\n  fourt", "een ", ""]
    assert text.end() == "fifteen"


def test_far_from_the_end_of_the_line_a_piece_of_a_word_is_written_at_once() -> None:
    text = IncrementalWrapper(fixed_width(80))
    assert [text.feed("Wait"), text.feed("ing"), text.feed("…")] == ["  Wait", "ing", "…"]
    assert text.end() == ""


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("width", [3, 5, 20, 33, 80])
def test_however_a_text_is_cut_no_line_is_too_long_and_nothing_is_lost(text: str, width: int) -> None:
    rng = random.Random(7)
    for _ in range(20):
        wrapper = IncrementalWrapper(fixed_width(width))
        written, position = "", 0
        while position < len(text):
            size = rng.randint(1, 9)
            written += wrapper.feed(text[position : position + size])
            position += size
        written += wrapper.end()
        lines = written.split("\n")
        assert all(line.startswith("  ") for line in lines)
        assert all(get_cwidth(line) <= max(width, 5) for line in lines)
        assert "".join(line[2:] for line in lines) == text.replace("\n", "")


def test_a_terminal_that_changes_its_width_loses_nothing() -> None:
    widths = iter([80, 10, 40, None, 5, 80])
    text = IncrementalWrapper(lambda: next(widths))
    pieces = ["the quick brown fox ", "jumps over", " the lazy", " dog and", " sleeps"]
    written = "".join(text.feed(piece) for piece in pieces) + text.end()
    assert "".join(line[2:] for line in written.split("\n")) == "".join(pieces)


def test_a_long_text_beside_its_head_goes_on_below_its_beginning() -> None:
    assert (
        wrap_hanging("echo   ", "Repeats what you say, word by word", 30)
        == "echo   Repeats what you say, \n       word by word"
    )


def test_a_narrow_terminal_has_no_column_beside_a_head() -> None:
    assert wrap_hanging("echo   ", "Repeats what you say", 20) == "echo   Repeats what you say"
