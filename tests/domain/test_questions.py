"""Questions to people as values: which text answers which, and what a person reads of a call."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given, strategies as st

from spade_coreason.domain.questions import (
    BLANK,
    MAX_CALL_CHARACTERS,
    ApprovalPolicy,
    FoundAnswer,
    decide_plain_answer,
    derive_code,
    describe_approval,
    describe_call,
    describe_question,
    escape_hidden,
    find_answer,
    make_approval_code,
    match_choice,
    parse_value,
)
from tests.support.mutations import drawn


@dataclass
class Question:
    """An open question."""

    kind: str = "question"
    thread: str | None = None
    code: str = "K7QX"
    choices: Sequence[str] = ()


COLOURS = Question(choices=("red", "Dark Blue"))
FREE = Question()
APPROVAL = Question("approval")


# Answers


@pytest.mark.parametrize(
    ("text", "questions", "found"),
    [
        ("red", [COLOURS], FoundAnswer(0, "red", "")),
        ("DARK blue", [COLOURS], FoundAnswer(0, "Dark Blue", "")),
        ("2", [COLOURS], FoundAnswer(0, "Dark Blue", "")),
        ("2.", [FREE, COLOURS], None),  # two are open here
        ("red", [Question(thread="one", choices=["red"]), COLOURS], FoundAnswer(1, "red", "")),
        ("red", [Question(thread="one", choices=["red"])], None),
        ("anything", [FREE], None),
        ("", [COLOURS], None),
        ("  ", [FREE], None),
        ("red", [], None),
        ("1", [APPROVAL], None),
        ("1", [APPROVAL, COLOURS], FoundAnswer(1, "red", "")),
    ],
)
def test_a_text_answers_the_only_question_of_its_conversation_if_it_is_a_choice(
    text: str, questions: list[Question], found: FoundAnswer | None
) -> None:
    assert find_answer(text, None, [False] * len(questions), questions) == found


def test_a_reply_answers_its_question_wherever_it_is_written() -> None:
    questions = [COLOURS, Question(thread="one"), APPROVAL]
    assert find_answer("what I like", "two", [False, True, False], questions) == FoundAnswer(1, "what I like")
    assert find_answer("2", "two", [True, False, False], questions) == FoundAnswer(0, "Dark Blue")
    assert find_answer("green", "two", [True, False, False], questions) == FoundAnswer(0, "green")


def test_an_approval_is_never_given_by_a_reply() -> None:
    assert find_answer("yes", None, [True], [APPROVAL]) is None


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("1", "10"),
        ("10", "10"),
        ("20", "20"),
        ("2", "20"),
        ("3", None),
        ("01", "10"),
        ("1.)", "10"),
        ("²", "20"),
        ("\u0662", "20"),
    ],
)
def test_a_choice_that_is_a_number_comes_before_the_number_of_a_choice(text: str, choice: str | None) -> None:
    assert match_choice(text, ["10", "20"]) == choice


@pytest.mark.parametrize(
    "text",
    [
        "Yes.", '"Yes"', "„yes“", "«YES»", "yes!", "¡yes!", "*yes*", "_yes_", "`yes`", "(yes)", "[yes]", "「yes」", "yes 。",
        "\uff39\uff45\uff53", "\u200fyes\u200f", "\u202byes\u202c", "yes\ufe0f", "yes\n", "yes…",
        "1", "(1)", "1️⃣", "1.", "\uff11", "①", "⑴", "\uff11\uff09", "\u0661", "\u06f1", "\u0967", "\u0661.", "'1'",
    ],
)  # fmt: skip
def test_marks_around_an_answer_do_not_count(text: str) -> None:
    assert match_choice(text, ["yes", "no"]) == "yes"
    assert find_answer(text, None, [False], [Question(choices=["yes", "no"])]) == FoundAnswer(0, "yes", "")


@pytest.mark.parametrize(
    "text",
    [
        "yes?",
        "yes？",
        "نعم؟",
        "yes;",
        "1%",
        "٪1",
        "#1",
        "-1",
        "+1",
        "1 €",
        "@yes",
        "/yes",
        "& yes",
        "yes no",
        "y.es",
        "j\u0430",
        "§1",
        "1/2",
    ],
)
def test_what_means_something_else_is_no_answer(text: str) -> None:
    assert match_choice(text, ["yes", "no", "نعم"]) is None


@pytest.mark.parametrize(
    ("text", "choices", "choice"),
    [
        ("C", ["C", "C++"], "C"),
        ("c++.", ["C", "C++"], "C++"),
        ("-1", ["-1", "1"], "-1"),
        ("a!", ["a", "a!"], "a!"),
        ("a.", ["a", "a!"], None),  # it may be both
        ("!", ["?", "!"], "!"),
        (".", ["?", "!"], None),
        ("👍", ["👍", "👎"], "👍"),
        ("हाँ।", ["हाँ", "नहीं"], "हाँ"),
        ("(\u0662)", ["\u0661\u0660", "\u0662\u0660"], "\u0662\u0660"),
        ("כן.", ["כן", "לא"], "כן"),
        ("yes" + "." * 1000, ["yes"], None),
        (" YES ".ljust(2000), ["yes"], "yes"),
        ("yes. " * 200_000, ["yes"], None),
    ],
)
def test_a_choice_with_marks_of_its_own_is_meant_by_them(text: str, choices: list[str], choice: str | None) -> None:
    assert match_choice(text, choices) == choice


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("approve K7QX2M", FoundAnswer(1, "", "approve")),
        ("Approve k7qx2m.", FoundAnswer(1, "", "approve")),
        ("approve `K7QX2M`", FoundAnswer(1, "", "approve")),
        ("approve\nK7QX2M\n", FoundAnswer(1, "", "approve")),
        ("\u200fapprove \uff2b7QX2M\u200f", FoundAnswer(1, "", "approve")),
        ("deny K7QX2M too\nmuch", FoundAnswer(1, "too\nmuch", "deny")),
        ("deny: (K7QX2M)", FoundAnswer(1, "", "deny")),
        ("answer K7QX whatever I like", FoundAnswer(0, "whatever I like")),
        ("answer K7QX\nwhatever I like", FoundAnswer(0, "whatever I like")),
        ("approve K7QX2M if Bob agrees", None),
        ("approve K7QX2M?", None),
        ("approve K7QX", None),  # that is a question
        ("answer K7QX2M yes", None),
        ("answer K7QX", None),
        ("approve ABCDEF", None),
        ("/approve K7QX2M", None),  # with two slashes, because with one it is a command
        ("please approve K7QX2M", None),
        ("approved K7QX2M", None),
        ("K7QX2M", None),
        ("approve", None),
        ("yes", None),
        ("1", None),
    ],
)
def test_a_code_names_its_question_without_a_slash(text: str, found: FoundAnswer | None) -> None:
    questions = [FREE, Question("approval", code="K7QX2M")]
    assert find_answer(text, None, [False, False], questions) == found


SKEW = 60


@pytest.mark.parametrize(
    ("came_at", "shown_at", "skew", "is_repeated", "verb"),
    [
        (101, 100, 0, False, "answer"),
        (99, 100, 0, False, None),  # it queued before, so it is a request
        (100, 100, 0, False, ""),
        (101, None, 0, False, ""),  # it is not known if it was shown, such as after a restart
        (None, 100, 0, False, ""),  # it is sent again
        (None, None, 0, False, ""),
        (101, 100, 0, True, ""),  # the same answer once more
        (99, 100, 0, True, ""),
        (161, 100, SKEW, False, "answer"),  # it waited on its way
        (160, 100, SKEW, False, ""),
        (100, 100, SKEW, False, ""),
        (40, 100, SKEW, False, ""),
        (39, 100, SKEW, False, None),
        (39, None, SKEW, False, ""),
    ],
)
def test_a_text_is_an_answer_if_it_came_after_the_question_was_shown(
    came_at: int | None, shown_at: int | None, skew: int, is_repeated: bool, verb: str | None
) -> None:
    assert decide_plain_answer(came_at, shown_at, skew, is_repeated=is_repeated) == verb


def test_a_very_long_number_is_no_choice() -> None:
    assert match_choice("1" * 5000, ["a"]) is None
    assert match_choice("1" + "0" * 4, ["a"]) is None
    assert match_choice("0001" + "9", ["a"]) is None


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("7", {"type": "string"}, "7"),
        ("7", {"type": "integer"}, 7),
        ("seven", {"type": "integer"}, "seven"),
        ("Yes", {"type": "boolean"}, True),
        ("nein", {"type": "boolean"}, False),
        ("true", {"type": "boolean"}, True),
        ("7", {"type": "object", "properties": {"age": {"type": "integer"}}}, {"age": 7}),
        ("7", {"type": "object", "properties": {"a": {}, "b": {}}}, 7),
        ('{"age": 7}', {"type": "object", "properties": {"age": {"type": "integer"}}}, {"age": 7}),
        ("7", {"type": ["integer", "null"]}, 7),
        ("7", {"type": "object", "properties": {"age": True}}, {"age": 7}),
        ("NaN", {"type": "number"}, "NaN"),
        ("-Infinity", {}, "-Infinity"),
        ("[" * 5000, {"type": "array"}, "[" * 5000),
    ],
)
def test_a_text_is_read_as_the_schema_expects(text: str, schema: dict[str, Any], value: Any) -> None:
    assert parse_value(text, schema) == value


# Codes


def test_the_code_of_a_question_is_the_same_each_time_and_that_of_an_approval_never() -> None:
    ident = UUID("6f9619ff-8b86-4011-b42d-00c04fc964ff")
    assert derive_code(ident) == derive_code(ident)
    assert len({derive_code(uuid4()) for _ in range(100)}) > 95
    assert len({make_approval_code() for _ in range(100)}) == 100
    assert not set("IO01L") & {letter for _ in range(100) for letter in make_approval_code()} - {"L"}


# What a person reads


def test_a_question_says_how_to_answer_it() -> None:
    assert describe_question("Which?", "K7QX", ["red", "blue"]) == (
        "Which?\n\n1. red\n2. blue\n\nAnswer with a choice or its number, or write: /answer K7QX CHOICE"
    )
    assert describe_question("Why?", "K7QX", []) == ("Why?\n\nReply to this message, or write: /answer K7QX YOUR ANSWER")
    assert "\n> 1. \U0001f512 x\n2. y\n" in describe_question("Which?", "K7QX", ["\U0001f512 x", "y"])


def test_a_call_is_shown_with_all_its_arguments_in_one_order() -> None:
    assert describe_call("pay", {"b": 1, "a": "x"}) == describe_call("pay", {"a": "x", "b": 1}) == 'pay\na:\n"x"\nb:\n1'
    assert describe_call("pay", [1, None]) == "pay\n1:\n1\n2:\nnull"
    assert describe_call("pay", {}) == describe_call("pay", []) == "pay"


def test_positional_arguments_have_the_names_of_the_function_and_further_ones_numbers() -> None:
    assert describe_call("pay", ["a", 7, 8], ["order", "amount"]) == 'pay\norder:\n"a"\namount:\n7\n3:\n8'
    assert describe_call("pay", ["a"], ["order", "amount"]) == 'pay\norder:\n"a"'


def test_a_name_of_an_argument_cannot_look_like_another_line() -> None:
    names = {"a:\n5\nb": 1, "1": 2, '"x"': 3, "": 4}
    shown = describe_call("pay", names).splitlines()
    assert shown == ["pay", '"":', "4", '"\\"x\\"":', "3", '"1":', "2", '"a:\\n5\\nb":', "1"]


def test_a_nested_value_is_one_line_of_canonical_json() -> None:
    assert describe_call("pay", [{"b": [1, "x\ny"], "a": None}], ["order"]) == 'pay\norder:\n{"a":null,"b":[1,"x\\ny"]}'


# Hebrew and Arabic: a line of one direction is shown in its order; one that mixes directions is shown by escapes too.


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        ("שלום", ['"שלום"']),
        ("مرحبا يا صديقي", ['"مرحبا يا صديقي"']),
        ("order 20", ['"order 20"']),
        ("ß é 中", ['"ß é 中"']),
        (["א", "ב"], ['["א","ב"]']),
        ("order א 20", ['"order א 20"', '"order \\u05d0 20"']),
        ("א20", ['"א20"', '"\\u05d020"']),
        ("طلب 20", ['"طلب 20"', '"\\u0637\\u0644\\u0628 20"']),
        ("طلب \u0662\u0660", ['"طلب \u0662\u0660"', '"\\u0637\\u0644\\u0628 \\u0662\\u0660"']),
        ("\u0662\u0660 \u0663\u0660", ['"\u0662\u0660 \u0663\u0660"', '"\\u0662\\u0660 \\u0663\\u0660"']),
        ({"א": "x"}, ['{"א":"x"}', '{"\\u05d0":"x"}']),
        ({"א": True}, ['{"א":true}', '{"\\u05d0":true}']),
        ("א\u202e", ['"א\\u202e"', '"\\u05d0\\u202e"']),
    ],
)
def test_a_value_that_mixes_directions_is_shown_once_more_with_escapes(value: Any, lines: list[str]) -> None:
    assert describe_call("pay", [value], ["order"]).splitlines() == ["pay", "order:", *lines]
    assert json.loads(lines[-1]) == value


def test_the_parts_of_a_call_cannot_change_places() -> None:
    shown = describe_call("transfer", ["order א 20", "1000", "x"], ["purpose", "amount", "to"]).splitlines()
    assert shown == [
        *("transfer", "purpose:", '"order א 20"', '"order \\u05d0 20"'),
        *("amount:", '"1000"', "to:", '"x"'),
    ]
    for line in shown:  # no line has a letter from right to left beside anything else, or the next one has it by an escape
        kinds = {unicodedata.bidirectional(char) for char in line}
        assert not (kinds & {"R", "AL", "AN"} and kinds & {"L", "EN"}) or "\\u05d0" in shown[shown.index(line) + 1]


def test_names_that_mix_directions_are_shown_with_escapes_too() -> None:
    assert describe_call("pay א", {"שלום": 1, "שלום2": 2}).splitlines() == [
        *("pay א", "pay \\u05d0", "שלום:", "1", "שלום2:", "\\u05e9\\u05dc\\u05d5\\u05dd2:", "2")
    ]


def test_more_than_four_marks_on_a_letter_are_escaped() -> None:
    assert escape_hidden("a" + "\u0301" * 4 + "b") == "a" + "\u0301" * 4 + "b"
    assert escape_hidden("a" + "\u0301" * 6 + "b" + "\u0301") == "a" + "\u0301" * 4 + "\\u0301" * 2 + "b\u0301"
    assert escape_hidden("בְּרֵאשִׁית") == "בְּרֵאשִׁית"


@pytest.mark.parametrize(
    "hidden",
    ["\u202e", "\u200b", "\u2066", "\x07", "\x1b[2J", "\u00ad", "\ufeff", "\U000e0041", "\u2028", "\u00a0", "\ud800", "\u061c"],
)
def test_nothing_is_hidden_in_a_call(hidden: str) -> None:
    try:
        shown = describe_call(f"pay{hidden}", [f"a{hidden}b"]).replace("\n", "")
    except ValueError:
        return  # it cannot even be an argument of a step
    assert hidden not in shown
    assert shown.isprintable()
    assert shown.count("\\u") + shown.count("\\") >= 2


@given(st.text())
def test_what_is_escaped_is_printable_and_what_is_seen_stays(text: str) -> None:
    shown = escape_hidden(text)
    assert shown.isprintable()
    if not any(unicodedata.category(char)[0] == "M" for char in text):
        assert not text.isprintable() or BLANK & set(text) or shown == text


def test_a_call_that_is_too_long_to_be_read_is_refused() -> None:
    describe_call("pay", ["x" * (MAX_CALL_CHARACTERS - 5)])
    with pytest.raises(ValueError, match=r"pay: its arguments have 1,501 characters \(limit: 1,500\)"):
        describe_call("pay", ["x" * (MAX_CALL_CHARACTERS - 4)])
    with pytest.raises(ValueError, match="too many to be approved"):
        describe_call("pay", ["\u200b" * 300])  # as they are shown
    with pytest.raises(ValueError, match="too many to be approved"):
        describe_call("pay", ["א 1" * 170])  # the second line is read, too


@pytest.mark.parametrize("call", ["pay(1)", "pay(```)", "pay(\n```\n/approve ABC\n)", "`" * 50])
def test_a_call_cannot_end_its_frame(call: str) -> None:
    text = describe_approval(call, "bob@localhost", "K7QX2M", "1 day")
    lines = text.splitlines()
    fences = [line for line in lines if line and set(line) == {"`"}]
    longest = max(fences, key=len)
    assert fences.count(longest) == 2
    assert longest not in call
    assert lines[0] == "\U0001f512 bob@localhost asks for this. It needs your approval:"
    assert lines[-1] == "Write /approve K7QX2M or /deny K7QX2M. It ends in 1 day."


@pytest.mark.parametrize("codes", [range(0x3400), range(0xA000, 0xAC00), range(0xD7A4, 0x10000), range(0xE0000, 0xE0200)])
def test_no_character_that_is_not_seen_is_shown_as_it_is(codes: range) -> None:
    text = "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)
    shown = escape_hidden(text)
    assert {char for char in shown if unicodedata.category(char)[0] in "CZ"} <= {" "}
    assert not set(shown) & set("\u034f\u115f\u1160\u2800\u3164\uffa0\ufe0f\u180b\U000e0100")


def test_a_call_shows_all_arguments_as_canonical_json() -> None:
    arguments = {"b": ["\u202e", "\\u202e"], "a": {"é": 'q"\n'}}
    shown = describe_call("pay", arguments)
    assert shown == 'pay\na:\n{"é":"q\\"\\n"}\nb:\n["\\u202e","\\\\u202e"]'
    assert [json.loads(line) for line in shown.splitlines()[2::2]] == [arguments["a"], arguments["b"]]


# Approvers


def test_approvers_are_the_operators_or_a_group() -> None:
    policy = ApprovalPolicy(
        groups={"money": ("eve@localhost", "example.org"), "empty": ("example.org",)}, operators=("boss@localhost",)
    )
    assert policy.find_approvers(None) == ("boss@localhost",)
    assert policy.find_approvers("money") == ("eve@localhost",)
    with pytest.raises(ValueError, match='there is no group "many"; did you mean "money"'):
        policy.find_approvers("many")
    with pytest.raises(ValueError, match=r"names no account that can be asked; add JIDs to access\.groups\.empty"):
        policy.find_approvers("empty")
    with pytest.raises(ValueError, match="there are no operators"):
        ApprovalPolicy().find_approvers(None)


RIGHT_TO_LEFT = {"R", "AL", "AN"}
_TURNING = 'ab1 0,:\n"\\\u0301אבשمطة\u0660\u0661\u06f1\u200b\u200f\u202e\u2066\u3164{}[]'


@drawn(st.dictionaries(st.text(_TURNING, max_size=8), st.text(_TURNING, max_size=20), max_size=4))
def test_what_is_shown_of_any_call_is_what_it_is_and_keeps_its_order(arguments: dict[str, str]) -> None:
    lines = iter(describe_call("pay", arguments).splitlines()[1:])
    read: list[str] = []
    for line in lines:
        read.append(read_shown(line, is_name=len(read) % 2 == 0))
        directions = directions_of(line)
        if directions & RIGHT_TO_LEFT and directions & {"L", "EN", "AN"}:
            escaped = next(lines)
            assert not directions_of(escaped) & RIGHT_TO_LEFT
            assert read_shown(escaped, is_name=len(read) % 2 == 1) == read[-1]
    assert dict(zip(read[::2], read[1::2], strict=True)) == arguments


def read_shown(line: str, *, is_name: bool) -> str:
    """Return the text that a line shows: a name that needs no quotes has none."""
    shown = line.removesuffix(":") if is_name else line
    return str(json.loads(shown if shown.startswith('"') else f'"{shown}"'))


def directions_of(line: str) -> set[str]:
    return set(map(unicodedata.bidirectional, line))
