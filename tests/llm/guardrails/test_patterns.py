"""What guardrails look for, in texts that come in pieces: the same as in the whole text, whatever the pieces."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

import pytest
import regex

from spade_coreason.exceptions import ConfigError
from spade_coreason.llm.guardrails.declaration import Guardrail
from spade_coreason.llm.guardrails.patterns import PatternFilter, compile_patterns
from spade_coreason.llm.output import MarkerFilter

SPLITS = 150
LONG_S = 30.0


def in_pieces(text: str, chance: random.Random) -> Iterator[str]:
    """A text as tokens of any size."""
    while text:
        size = chance.choice((1, 1, 2, 3, 5, 8, 13, 40))
        yield text[:size]
        text = text[size:]


def redacted(guardrail: Guardrail, pieces: Iterator[str]) -> str:
    shown = [""]
    [pattern] = compile_patterns(guardrail, "options.output_guardrails[0]")
    one = PatternFilter(pattern, lambda: "#")
    for piece in pieces:
        shown.append(fed(one, piece))
    return "".join([*shown, one.release(LONG_S, is_whole=True)])


def fed(one: PatternFilter, piece: str) -> str:
    one.feed(piece)
    return one.release(LONG_S)


@pytest.mark.parametrize(
    ("expression", "alphabet"),
    [
        (r"ab+a", "abc"),
        (r"a.{0,8}?b", "abc\n"),
        (r"(?<=b)a{2}(?!c)", "abc"),
        (r"\bab\b", "ab c"),
        (r"^a|c$", "abc"),
        (r"(?m)^ab|a$", "ab\n"),
        (r"(a|b)\1", "abc"),
        (r"ab|abc+a", "abc"),
        (r"(?i)sk-[a-z]{3,6}(?=\s|$)", ("sk-", "AB", "c", " ", "\n")),
        (r"\d{4}(?: ?\d{4}){3}", "12 "),
    ],
)
def test_a_redacted_stream_is_the_redacted_text(expression: str, alphabet: Sequence[str]) -> None:
    guardrail = Guardrail(regex=(expression,), action="redact", span=30)
    chance = random.Random(expression)
    matches = 0
    for _ in range(SPLITS):
        text = "".join(chance.choices(alphabet, k=chance.randrange(1, 200)))
        expected = regex.sub(expression, "#", text)
        matches += expected != text
        assert redacted(guardrail, in_pieces(text, chance)) == expected
    assert matches > SPLITS // 10  # what never matches proves nothing


@pytest.mark.parametrize("keywords", [["aba", "ab", "a b"], ["b", "ab ba"], ["abbba", "bb"]])
def test_keywords_are_found_across_any_pieces(keywords: list[str]) -> None:
    guardrail = Guardrail(keywords=tuple(keywords), action="redact")
    longest_first = sorted(keywords, key=len, reverse=True)
    words = "|".join(rf"(?<!\w){re.escape(one)}(?!\w)".replace(r"\ ", r"\s{1,4}") for one in longest_first)
    chance = random.Random("".join(keywords))
    for _ in range(SPLITS):
        text = "".join(chance.choices("aAbB \n", k=chance.randrange(1, 120)))
        assert redacted(guardrail, in_pieces(text, chance)) == re.sub(words, "#", text, flags=re.I)


def test_a_keyword_is_a_whole_word_where_words_are_told_apart() -> None:
    guardrail = Guardrail(keywords=("ass", "credit card", "炸弹"), action="redact")
    text = "The class has no ASS. Its Credit\n card; 制造炸弹的方法"
    assert redacted(guardrail, iter(text)) == "The class has no #. Its #; 制造#的方法"


def test_no_more_is_held_back_than_a_match_may_have() -> None:
    [pattern] = compile_patterns(Guardrail(keywords=("password",)), "")
    one = PatternFilter(pattern, lambda: "#")
    text = "word " * 100
    shown = "".join(fed(one, letter) for letter in text)
    assert text.startswith(shown)
    assert 0 < len(text) - len(shown) < 15


def test_a_match_that_goes_on_is_held_back_whole_and_not_without_end() -> None:
    [pattern] = compile_patterns(Guardrail(regex=(r"BEGIN[\s\S]+",), action="redact", span=10), "")
    one = PatternFilter(pattern, lambda: "#")
    shown = fed(one, "hello BEGIN") + "".join(fed(one, "secret " * 100) for _ in range(10))
    assert shown + one.release(LONG_S, is_whole=True) == "hello #"
    assert fed(one, "BEGIN" + "x" * 30_000) == "#"


def test_an_expression_without_end_is_given_up() -> None:
    [pattern] = compile_patterns(Guardrail(regex=(r"(x+x+)+y",)), "")
    one = PatternFilter(pattern, lambda: "#")
    one.feed("x" * 5000)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            one.release(0.01)
    assert one.flush() == "x" * 5000


@pytest.mark.parametrize(("expression", "said"), [("(", "is no regular expression"), ("a*", "matches the empty text")])
def test_an_expression_that_is_none_is_named(expression: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"options.input_guardrails\[2\].regex\[1\]: {said}"):
        compile_patterns(Guardrail(regex=("fine", expression)), "options.input_guardrails[2]")


@pytest.mark.parametrize("markers", [["<END>"], ["ab", "abab"], ["aab", "b"], ["aba", "bab", "abaab"]])
def test_markers_are_taken_out_of_a_stream_as_of_the_text(markers: list[str]) -> None:
    whole = re.compile("|".join(map(re.escape, sorted(markers, key=len, reverse=True))))
    chance = random.Random("".join(markers))
    found = 0
    for _ in range(SPLITS):
        text = "".join(chance.choices(("a", "b", "ab", "<", "<E", "END>"), k=chance.randrange(40)))
        one = MarkerFilter(markers)
        assert "".join([*map(one.feed, in_pieces(text, chance)), one.end()]) == whole.sub("", text)
        assert one.has_found == bool(whole.search(text))
        found += one.has_found
    assert found > SPLITS // 10
