"""Text of others for a terminal: escapes in labels, and running text that ends the changes of direction that it began."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given, strategies as st

from spade_coreason.domain.texts.terminal_text import (
    DirectionRestorer,
    clean_running_text,
    escape_json,
    escape_label,
    escape_lines,
)

RLM, RLE, PDF, RLO, RLI, FSI, PDI = "\u200f", "\u202b", "\u202c", "\u202e", "\u2067", "\u2068", "\u2069"


def test_every_format_and_control_character_of_a_label_is_an_escape() -> None:
    visible_formats = {
        "\u0600",
        "\u0601",
        "\u0602",
        "\u0603",
        "\u0604",
        "\u0605",
        "\u06dd",
        "\u070f",
        "\u0890",
        "\u0891",
        "\u08e2",
    }
    for character in map(chr, range(0x110000)):
        category = unicodedata.category(character)
        is_hieroglyph_or_number = "\U00011000" <= character <= "\U00013fff"  # they are drawn, or change how signs are drawn
        if category in {"Cc", "Cf", "Cs", "Zl", "Zp"} and character not in visible_formats and not is_hieroglyph_or_number:
            assert escape_label(f"a{character}b") == f"a{character.encode('unicode_escape').decode()}b"


@pytest.mark.parametrize("label", ["alice@example.org", "עדה@example.org", "Łódź 2", "日本語", "👩‍💻 ❤️ 👍🏽", "a\\u202eb"])
def test_a_label_that_can_be_seen_stays_as_it_is(label: str) -> None:
    assert escape_label(label) == label


def test_a_joiner_outside_of_an_emoji_is_an_escape() -> None:
    assert escape_label("al\u200dice ❤\ufe0f\ufe0f") == "al\\u200dice ❤\ufe0f\\ufe0f"


def test_a_line_break_in_a_label_is_an_escape_and_between_labels_it_is_not() -> None:
    assert escape_label("a\nb\x85c\u2028d") == r"a\nb\x85c\u2028d"
    assert escape_lines("a\x1b\nb\r") == "a\\x1b\nb\\r"


@given(st.recursive(st.text() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_has_no_hidden_characters_and_the_same_value(value: object) -> None:
    text = escape_json(json.dumps(value, ensure_ascii=False, indent=1))
    assert json.loads(text) == value
    assert escape_lines(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("שלום", "שלום"),
        (f"a {RLM}(b)", f"a {RLM}(b)"),  # a mark has no end
        (f"{RLE}שלום{PDF}!", f"{RLE}שלום{PDF}!"),
        (f"{RLO}evil", f"{RLO}evil{PDF}"),
        (f"{RLI}{RLO}x{FSI}", f"{RLI}{RLO}x{FSI}{PDI}{PDF}{PDI}"),
        (f"{RLI}{RLO}x{PDI}y", f"{RLI}{RLO}x{PDI}y"),  # the end of an isolate ends the embedding in it
        (f"{RLE}{RLI}{PDF}x", f"{RLE}{RLI}{PDF}x{PDI}{PDF}"),  # an embedding cannot be ended in an isolate
        (f"{PDF}{PDI}x", f"{PDF}{PDI}x"),
        (f"{RLO}one\ntwo{RLI}\u2029three", f"{RLO}one{PDF}\ntwo{RLI}{PDI}\nthree"),
        ("red \x1b[31m\x9b1m\r\n\ttab\b\x85", "red [31m1m\n\ttab"),
    ],
)
def test_running_text_ends_on_each_line_the_changes_of_direction_that_it_began(text: str, shown: str) -> None:
    assert clean_running_text(text) == shown
    assert clean_running_text(shown) == shown
    restorer = DirectionRestorer()
    assert len("".join(map(restorer.feed, shown)) + restorer.end()) == len(shown)


def test_a_text_of_many_changes_of_direction_is_read_in_linear_time() -> None:
    size = 300_000  # an hour in quadratic time
    assert clean_running_text(RLO * size + PDI * size) == RLO * size + PDI * size + PDF * size
    assert clean_running_text((RLI + RLO) * size + PDI * size) == (RLI + RLO) * size + PDI * size
