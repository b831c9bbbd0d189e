"""Markdown as lines for a terminal."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st
from rich.cells import cell_len

from spade_coreason.cli.terminal.markdown import MarkdownRenderer
from spade_coreason.domain.texts.terminal_text import clean_running_text, remove_controls

_STYLE = re.compile(r"\x1b\[[0-9;]*m")

MARKDOWN = st.lists(
    st.one_of(
        st.sampled_from(
            ["**", "_", "~~", "`", "```\n", "```py\n", "~~~\n", "- ", "  - ", "1. ", "> ", "# ", "| a | b |\n|---|--:|\n", "| "]
        ),
        st.sampled_from(
            [
                "\n",
                "\n\n",
                "---\n",
                "[a](https://b.org)",
                "<b>",
                "&#27;[31m",
                "\u202e",
                "\u2069",
                "日本語",
                "e\u0301",
                "👩‍👩‍👧",
                "\t",
                "\\*",
            ]
        ),
        st.text(max_size=30),
    ),
    max_size=30,
).map(lambda parts: remove_controls("".join(parts)))


def lines_of(text: str, columns: int = 40) -> list[str]:
    return MarkdownRenderer().render(text, columns).lines


def plain_lines_of(text: str, columns: int = 40) -> list[str]:
    return [_STYLE.sub("", line) for line in lines_of(text, columns)]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("**bold**", "\x1b[1mbold\x1b[0m"),
        ("_it_ and *it*", "\x1b[3mit\x1b[0m and \x1b[3mit\x1b[0m"),
        ("~~gone~~", "\x1b[9mgone\x1b[0m"),
        ("a `x = 1`", "a \x1b[36mx = 1\x1b[0m"),
        ("**a _b_**", "\x1b[1ma \x1b[0m\x1b[1;3mb\x1b[0m"),
        ("## Title", "\x1b[1mTitle\x1b[0m"),
        ("# Title", "\x1b[1;4mTitle\x1b[0m"),
        ("- item", "\x1b[36m• \x1b[0mitem"),
        ("2. item", "\x1b[36m2. \x1b[0mitem"),
        ("> said", "\x1b[2m│ \x1b[0msaid"),
    ],
)
def test_marks_are_styles(text: str, line: str) -> None:
    assert lines_of(text) == [line]


def test_code_keeps_its_lines_and_blanks_also_before_its_fence_is_closed() -> None:
    for text in ("```py\nif x:\n    y\n\n\tz\n```", "```py\nif x:\n    y\n\n\tz"):
        assert plain_lines_of(text) == ["  if x:", "      y", "", "          z"]


def test_lists_are_indented_below_their_items() -> None:
    text = "- one\n  1. two that is longer than a line of it\n     - three\n\n- four"
    assert plain_lines_of(text, 24) == [
        "• one",
        "  1. two that is longer",
        "     than a line of it",
        "     • three",
        "",
        "• four",
    ]


def test_a_table_has_columns_and_its_cells_are_wrapped() -> None:
    text = "| city | weather |\n|---|--:|\n| Berlin | sunny and **warm** until the evening |"
    assert plain_lines_of(text, 60) == [
        "city                              weather",
        "─" * 41,
        "Berlin   sunny and warm until the evening",
    ]
    assert [line.split() for line in plain_lines_of(text, 20)][2:] == [
        ["Berlin", "sunny", "and"],
        ["warm", "until"],
        ["the", "evening"],
    ]


def test_a_table_that_does_not_fit_is_shown_as_it_was_written() -> None:
    text = "|a|b|c|d|\n|-|-|-|-|\n|1|2|3|4|"
    assert plain_lines_of(text, 19) == text.split("\n")


def test_a_link_shows_its_address_and_never_hides_it() -> None:
    [line] = lines_of("[your bank](https://evil.example/x)", 60)
    assert line == "your bank (https://evil.example/x)"
    assert "\x1b]8" not in "".join(lines_of("[a](https://b.org) <https://b.org> ![c](https://d.org)"))


@pytest.mark.parametrize(
    "text",
    ["&#27;[31mred", "&#x9b;5m", "&#8238;txt &NewLine;", "<b>raw</b> <script>", "__init__ 2**3**4 *.py,*.txt", r"\x1b[1m"],
)
def test_entities_of_controls_html_and_names_are_text(text: str) -> None:
    assert lines_of(text, 60) == [text]


def test_an_entity_is_shown_as_its_character_except_in_code() -> None:
    assert plain_lines_of("AT&amp;T &lt;b&gt; it&#39;s 5&nbsp;km `&amp;`") == ["AT&T <b> it's 5\N{NO-BREAK SPACE}km &amp;"]
    assert plain_lines_of("```\n&amp;\n```") == ["  &amp;"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("**「重要」**です", "\x1b[1m「重要」\x1b[0mです"),
        ("これは**「重要」**です", "これは\x1b[1m「重要」\x1b[0mです"),
        ("**注意：**请", "\x1b[1m注意：\x1b[0m请"),
        ("请按**A**键", "请按\x1b[1mA\x1b[0m键"),
    ],
)
def test_bold_text_ends_beside_the_punctuation_of_scripts_without_spaces(text: str, line: str) -> None:
    assert lines_of(text) == [line]


def test_lines_of_plain_text_stay_lines() -> None:
    text = "/help   what there is\n/new   another conversation\n\n2026-11-23 10:00"
    assert lines_of(text) == text.split("\n")


def test_without_unicode_there_are_only_characters_of_ascii() -> None:
    text = "- a\n\n> b\n\n---\n\n| a | b |\n|---|---|\n| 1 | 2 |"
    assert "\n".join(MarkdownRenderer(is_unicode=False).render(text, 30).lines).isascii()


@given(MARKDOWN, st.integers(15, 80))
def test_any_text_fits_and_loses_no_letter(text: str, columns: int) -> None:
    rendered = MarkdownRenderer().render(text, columns)
    assert all(cell_len(_STYLE.sub("", line)) <= columns for line in rendered.lines)
    shown = _STYLE.sub("", "\n".join(rendered.lines))
    assert "\x1b" not in shown
    assert clean_running_text(shown) == shown
    if not re.search("```|~~~", text):  # a language behind a fence is not shown
        assert sorted(re.findall(r"[日本語👩]", shown)) == sorted(re.findall(r"[日本語👩]", text))
    assert rendered.finished_lines <= len(rendered.lines)
