"""The patterns of guardrails: they match in a text that arrives in pieces as they match in the whole text."""

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


def random_pieces(text: str, rng: random.Random) -> Iterator[str]:
    """Split a text into pieces of random sizes."""
    while text:
        size = rng.choice((1, 1, 2, 3, 5, 8, 13, 40))
        yield text[:size]
        text = text[size:]


def redact(guardrail: Guardrail, pieces: Iterator[str]) -> str:
    shown = [""]
    [pattern] = compile_patterns(guardrail, "options.output_guardrails[0]")
    pattern_filter = PatternFilter(pattern, lambda: "#")
    for piece in pieces:
        shown.append(feed_and_release(pattern_filter, piece))
    return "".join([*shown, pattern_filter.release(LONG_S, is_whole=True)])


def feed_and_release(pattern_filter: PatternFilter, piece: str) -> str:
    pattern_filter.feed(piece)
    return pattern_filter.release(LONG_S)


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
    rng = random.Random(expression)
    matches = 0
    for _ in range(SPLITS):
        text = "".join(rng.choices(alphabet, k=rng.randrange(1, 200)))
        expected = regex.sub(expression, "#", text)
        matches += expected != text
        assert redact(guardrail, random_pieces(text, rng)) == expected
    assert matches > SPLITS // 10  # what never matches proves nothing


@pytest.mark.parametrize("keywords", [["aba", "ab", "a b"], ["b", "ab ba"], ["abbba", "bb"]])
def test_keywords_are_found_across_any_pieces(keywords: list[str]) -> None:
    guardrail = Guardrail(keywords=tuple(keywords), action="redact")
    longest_first = sorted(keywords, key=len, reverse=True)
    words = "|".join(rf"(?<!\w){re.escape(one)}(?!\w)".replace(r"\ ", r"\s{1,4}") for one in longest_first)
    rng = random.Random("".join(keywords))
    for _ in range(SPLITS):
        text = "".join(rng.choices("aAbB \n", k=rng.randrange(1, 120)))
        assert redact(guardrail, random_pieces(text, rng)) == re.sub(words, "#", text, flags=re.I)


def test_a_keyword_is_a_whole_word_in_scripts_that_separate_words() -> None:
    guardrail = Guardrail(keywords=("ass", "credit card", "炸弹"), action="redact")
    text = "The class has no ASS. Its Credit\n card; 制造炸弹的方法"
    assert redact(guardrail, iter(text)) == "The class has no #. Its #; 制造#的方法"


def test_no_more_is_held_back_than_a_match_may_have() -> None:
    [pattern] = compile_patterns(Guardrail(keywords=("password",)), "")
    pattern_filter = PatternFilter(pattern, lambda: "#")
    text = "word " * 100
    shown = "".join(feed_and_release(pattern_filter, letter) for letter in text)
    assert text.startswith(shown)
    assert 0 < len(text) - len(shown) < 15


def test_a_match_without_an_end_is_held_back_up_to_a_limit() -> None:
    [pattern] = compile_patterns(Guardrail(regex=(r"BEGIN[\s\S]+",), action="redact", span=10), "")
    pattern_filter = PatternFilter(pattern, lambda: "#")
    shown = feed_and_release(pattern_filter, "hello BEGIN") + "".join(
        feed_and_release(pattern_filter, "secret " * 100) for _ in range(10)
    )
    assert shown + pattern_filter.release(LONG_S, is_whole=True) == "hello #"
    assert feed_and_release(pattern_filter, "BEGIN" + "x" * 30_000) == "#"


def test_an_expression_that_backtracks_without_end_times_out() -> None:
    [pattern] = compile_patterns(Guardrail(regex=(r"(x+x+)+y",)), "")
    pattern_filter = PatternFilter(pattern, lambda: "#")
    pattern_filter.feed("x" * 5000)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            pattern_filter.release(0.01)
    assert pattern_filter.flush() == "x" * 5000


@pytest.mark.parametrize(("expression", "problem"), [("(", "is not a regular expression"), ("a*", "matches the empty text")])
def test_an_invalid_expression_is_named(expression: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=rf"options.input_guardrails\[2\].regex\[1\]: {problem}"):
        compile_patterns(Guardrail(regex=("fine", expression)), "options.input_guardrails[2]")


@pytest.mark.parametrize("markers", [["<END>"], ["ab", "abab"], ["aab", "b"], ["aba", "bab", "abaab"]])
def test_markers_are_removed_from_a_stream_as_from_the_whole_text(markers: list[str]) -> None:
    whole = re.compile("|".join(map(re.escape, sorted(markers, key=len, reverse=True))))
    rng = random.Random("".join(markers))
    found = 0
    for _ in range(SPLITS):
        text = "".join(rng.choices(("a", "b", "ab", "<", "<E", "END>"), k=rng.randrange(40)))
        marker_filter = MarkerFilter(markers)
        assert "".join([*map(marker_filter.feed, random_pieces(text, rng)), marker_filter.end()]) == whole.sub("", text)
        assert marker_filter.has_found == bool(whole.search(text))
        found += marker_filter.has_found
    assert found > SPLITS // 10
