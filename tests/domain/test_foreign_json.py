"""JSON of other accounts: its limits are exact, and nothing in it makes an exception other than ValueError."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from spade_coreason.domain.texts.foreign_json import (
    MAX_JSON_CHARACTERS,
    MAX_JSON_DEPTH,
    MAX_JSON_VALUES,
    TooManyValuesError,
    check_values,
    parse_foreign_json,
)


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


def count_values(value: Any) -> int:
    """Return the number of marks of a value as JSON: a comma, a colon or an opening bracket for each, and two for a list."""
    match value:
        case dict():
            return 1 + len(value) + max(0, len(value) - 1) + sum(map(count_values, value.values()))
        case list():
            return 2 + max(0, len(value) - 1) + sum(map(count_values, value))
    return 0


@pytest.mark.parametrize(
    "value",
    [
        [1] * 50,
        [""] * 50,
        [{}] * 50,
        [{"a": 1, "b": [2]}] * 20,
        {"a,:[{": ",:[{" * 9, "b": ['\\"', "\\", '"', '\\",', "\\\\", ',"', "\n\t"] * 9},
        [["\\\\" * 7, "," * 50, '"' * 50], {"é🎈": "é,🎈"}],
        "," * 1000,
    ],
)
@pytest.mark.parametrize("separators", [(",", ":"), (" , ", " \n\t: ")])
@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_values_are_counted_exactly_and_texts_are_none(value: Any, separators: tuple[str, str], ensure_ascii: bool) -> None:
    data = json.dumps(value, separators=separators, ensure_ascii=ensure_ascii).encode()
    count = count_values(value)
    check_values(data, max(count, data.count(b"\\") // 20 + 1))
    if count > data.count(b"\\") // 20 + 1:
        with pytest.raises(TooManyValuesError, match=rf"^the JSON has more than {count - 1} values, the limit web\.x; "):
            check_values(data, count - 1, "web.x")


@pytest.mark.parametrize(
    "piece", [b"1,", b'"",', b"{},", b'{"":1},', b"[", b'"', b'\\\\"', b'"\\\\",', b'"\\"",', b"\\\\,", b'\\",']
)
def test_counting_takes_a_few_times_the_size_in_memory(piece: bytes) -> None:
    """The text is not divided into more pieces than there may be values, so that counting takes the time of copying."""
    data = b'"%s"' % (b"," * 10_001) + piece * (4_000_000 // len(piece))
    tracemalloc.start()
    try:
        with pytest.raises(TooManyValuesError):
            check_values(data, 10_000)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(data)
    finally:
        tracemalloc.stop()


def test_the_limit_of_the_values_of_others_is_exact() -> None:
    table = [dict.fromkeys("abcdef", "a, b")] * 10_000
    assert parse_foreign_json(json.dumps(table)) == table
    parse_foreign_json(json.dumps([0] * (MAX_JSON_VALUES - 1)))
    with pytest.raises(TooManyValuesError):
        parse_foreign_json(json.dumps([0] * (MAX_JSON_VALUES + 1)))
