"""What a person reads of a call: nothing in it is hidden."""

from __future__ import annotations

import json
import unicodedata

import pytest

from spade_coreason.domain.questions import describe_call, escape_hidden


@pytest.mark.parametrize("codes", [range(0x3400), range(0xA000, 0xAC00), range(0xD7A4, 0x10000), range(0xE0000, 0xE0200)])
def test_no_character_that_is_not_seen_is_shown_as_it_is(codes: range) -> None:
    text = "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)
    shown = escape_hidden(text)
    assert {char for char in shown if unicodedata.category(char)[0] in "CZ"} <= {" "}
    assert not set(shown) & set("\u034f\u115f\u1160\u2800\u3164\uffa0\ufe0f\u180b\U000e0100")


def test_a_call_shows_all_arguments_as_canonical_json() -> None:
    arguments = {"b": ["\u202e", "\\u202e"], "a": {"é": 'q"\n'}}
    shown = describe_call("pay", arguments)
    assert shown == 'pay({"a":{"é":"q\\"\\n"},"b":["\\u202e","\\\\u202e"]})'
    assert json.loads(shown[4:-1]) == arguments
