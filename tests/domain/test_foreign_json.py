"""JSON of other accounts: its limits are exact, and nothing in it makes an exception other than ValueError."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spade_coreason.domain.texts.foreign_json import MAX_JSON_CHARACTERS, MAX_JSON_DEPTH, parse_foreign_json


@pytest.mark.parametrize(
    "value",
    [
        7,
        None,
        "",
        {},
        [],
        {"a": {"a": [{"a": 1}, {"a": 2}]}, "b": {"a": 3}},
        {'"': 1, '":': 2, "a\\": '":"', "json": json.dumps({"a": 1, "b": {"a": 2}})},
        [1.7e308, -1.7e308, 10**308, -(10**308), 5e-324, 0.1234567890123456789],
        {"é🎈": "\n\t"},
    ],
)
@pytest.mark.parametrize("separators", [(",", ":"), (" , ", " \n\t: ")])
def test_valid_json_is_its_value(value: Any, separators: tuple[str, str]) -> None:
    assert parse_foreign_json(json.dumps(value, separators=separators)) == value


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[{"a":1},', "]")])
def test_the_limit_of_the_depth_is_exact(opening: str, closing: str) -> None:
    inner = "{}" if "{" in opening else "[]"
    parse_foreign_json(opening * (MAX_JSON_DEPTH - 1) + inner + closing * (MAX_JSON_DEPTH - 1))
    with pytest.raises(ValueError, match="levels"):
        parse_foreign_json(opening * MAX_JSON_DEPTH + inner + closing * MAX_JSON_DEPTH)


@pytest.mark.parametrize("depth", [65, 199, 201, 5_000, 1_000_000])
@pytest.mark.parametrize("closing", ["]", ""])
def test_deeper_json_is_malformed(depth: int, closing: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_foreign_json("[" * depth + closing * depth)


@pytest.mark.parametrize(
    "number",
    ["NaN", "Infinity", "-Infinity", "1e309", "-1e309", "1e999999", "1E+999999", "9" * 309, "-" + "9" * 4300, "9" * 3_000_000],
)
@pytest.mark.parametrize("place", ["{}", "[{}]", '{{"a":{}}}'])
def test_a_number_beyond_floats_is_malformed(number: str, place: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_foreign_json(place.format(number))


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":1}',
        '{"a":1,"\\u0061":2}',
        '{"a" :1,"a"\n:2}',
        '{"a" :1,"a":2}',
        '{"":1,"":2}',
        '[{"b":{"a":1,"b":[],"a":2}}]',
        '{"json":"{\\"a\\":1}","a":1,"a":2}',
    ],
)
def test_a_key_that_stands_twice_in_an_object_is_malformed(text: str) -> None:
    with pytest.raises(ValueError, match="same key twice"):
        parse_foreign_json(text)


def test_the_limit_of_the_size_is_exact() -> None:
    assert len(parse_foreign_json('"' + "x" * (MAX_JSON_CHARACTERS - 2) + '"')) == MAX_JSON_CHARACTERS - 2
    with pytest.raises(ValueError, match="characters"):
        parse_foreign_json('"' + "x" * (MAX_JSON_CHARACTERS - 1) + '"')
