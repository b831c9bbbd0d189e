"""Blocks as people read them."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest

from spade_coreason.contracts import DataBlock, ThinkingBlock, UserErrorBlock
from spade_coreason.xmpp.codec.encoders.text import render_block

Hint = Literal["TABLE", "JSON", "LIST", "KEY_VALUE"]


def render(data: dict[str, Any], hint: Hint = "JSON", title: str | None = None) -> str:
    return render_block(DataBlock(data=data, view_hint=hint, title=title))


def json_block(data: dict[str, Any]) -> str:
    return "```\n" + json.dumps(data, indent=2, ensure_ascii=False) + "\n```"


def test_a_thought_is_no_text() -> None:
    assert render_block(ThinkingBlock(content="Looking out of the window…")) == ""


def test_an_error_shows_its_message_and_no_technical_details() -> None:
    block = UserErrorBlock(user_message="No weather today.", technical_details={"host": "10.0.0.7"}, code=503)
    assert render_block(block) == "No weather today."


def test_a_table_is_aligned() -> None:
    rows = [{"city": "Berlin", "°C": 7, "wet": True}, {"city": "Valencia", "°C": 21.5}]
    assert render({"columns": ["city", "°C", "wet"], "rows": rows}, "TABLE").splitlines() == [
        "```",
        "city      °C    wet",
        "Berlin    7     true",
        "Valencia  21.5",
        "```",
    ]


def test_a_table_shows_its_columns_only_in_their_order() -> None:
    assert render({"columns": ["b", "a"], "rows": [{"a": 1, "b": None, "secret": 3}]}, "TABLE") == "```\nb     a\nnull  1\n```"


def test_a_table_without_rows_has_its_head() -> None:
    assert render({"columns": ["a", "b"], "rows": []}, "TABLE") == "```\na  b\n```"


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"columns": ["a"]},
        {"rows": [{"a": 1}]},
        {"columns": "ab", "rows": []},
        {"columns": ["a"], "rows": {"a": 1}},
        {"columns": ["a"], "rows": [["1"]]},
        {"columns": ["a"], "rows": [{"a": 1}, None]},
        {"columns": [{"key": "a", "label": "A"}], "rows": [{"a": 1}]},
        {"columns": [["a"]], "rows": [{"a": 1}]},
    ],
    ids=str,
)
def test_data_that_are_no_table_are_shown_as_json(data: dict[str, Any]) -> None:
    assert render(data, "TABLE") == json_block(data)


def test_a_list_has_a_line_for_each_item() -> None:
    assert render({"items": ["a", 1, None, {"b": "ñ"}]}, "LIST") == '- a\n- 1\n- null\n- {"b": "ñ"}'


@pytest.mark.parametrize("data", [{"items": "ab", "n": 1}, {"one": 1, "two": 2}])
def test_a_list_without_items_is_shown_by_its_keys(data: dict[str, Any]) -> None:
    assert render(data, "LIST") == render(data, "KEY_VALUE")


def test_keys_stand_before_their_values() -> None:
    assert render({"city": "Berlin", "°C": 7, "tags": ["wet"], "wind": None}, "KEY_VALUE") == (
        'city: Berlin\n°C: 7\ntags: ["wet"]\nwind: null'
    )


def test_json_is_readable() -> None:
    assert render({"ciudad": "Málaga", "n": [1]}) == '```\n{\n  "ciudad": "Málaga",\n  "n": [\n    1\n  ]\n}\n```'


@pytest.mark.parametrize("hint", ["TABLE", "JSON", "LIST", "KEY_VALUE"])
def test_a_title_is_the_first_line(hint: Hint) -> None:
    data = {"columns": ["a"], "rows": [], "items": ["x"]}
    assert render(data, hint, "Weather") == f"*Weather*\n{render(data, hint)}"


@pytest.mark.parametrize(
    ("title", "head"), [("5 * 3", "5 * 3\n"), (" two\nlines ", "*two lines*\n"), ("", ""), (" \n", ""), ("\x00", "")]
)
def test_a_title_is_bold_only_if_the_marks_can_be_parsed(title: str, head: str) -> None:
    assert render({"a": 1}, "KEY_VALUE", title) == f"{head}a: 1"


def test_wide_characters_take_two_columns_of_a_table() -> None:
    rows = [{"city": "東京", "sky": "\N{WHITE SUN WITH SMALL CLOUD}\ufe0f", "°C": 7}, {"city": "Rom", "sky": "-", "°C": 21}]
    lines = render({"columns": ["city", "sky", "°C"], "rows": rows}, "TABLE").splitlines()
    assert lines[1:-1] == ["city  sky  °C", "東京  \N{WHITE SUN WITH SMALL CLOUD}\ufe0f   7", "Rom   -    21"]


def test_line_breaks_and_code_fences_in_values_do_not_break_the_layout() -> None:
    assert render({"columns": ["a"], "rows": [{"a": "x\ny"}, {"a": "```"}]}, "TABLE") == "```\na\nx y\n ```\n```"
    assert render({"items": ["one\ntwo"]}, "LIST") == "- one\n  two"


def test_data_are_not_read_as_markdown() -> None:
    assert render({"code": "**x**"}, "KEY_VALUE") == "code: **x**"
    assert render({"items": ["[a](b.c)"]}, "LIST") == "- [a](b.c)"


@pytest.mark.parametrize("hint", ["TABLE", "JSON", "LIST", "KEY_VALUE"])
@pytest.mark.parametrize("value", [float("inf"), 10**40, b"bytes", {1, 2}, object, "\x00\ud800", {"a": {"b": {}}}], ids=repr)
def test_a_value_of_any_kind_is_shown_somehow(hint: Hint, value: object) -> None:
    data = {"a": value, "items": [value], "columns": ["a"], "rows": [{"a": value}]}
    assert render(data, hint).strip("`\n -a")
