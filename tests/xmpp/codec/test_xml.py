"""Text for XML: escaped, without forbidden characters, and split at sensible boundaries."""

from __future__ import annotations

import random
from xml.etree.ElementTree import fromstring

import pytest

from spade_coreason.domain.texts.text import hold_open_character, replace_lone_surrogates
from spade_coreason.xmpp.codec.xml import clean, escape, escape_attribute, split_text, wire_size

FAMILY = "👩‍👩‍👧‍👦"
HARMLESS = [
    "",
    "plain",
    "tab\tand\nline",
    "שלום, עולם",
    "¿qué?",
    FAMILY,
    "\u202eright to left",
    "\x85\xa0\u200b\u2028",
    "\ufffd\ufdd0",
]
FORBIDDEN = ["\x00", "\x08", "\x0b", "\x0c", "\x1b", "\x1f", "\ud800", "\udfff", "\ufffe", "\uffff"]
HOSTILE = [
    "<b>&amp;</b>",
    "]]>",
    "<!-- -->",
    "<![CDATA[x]]>",
    "&#0;",
    "</body></message><message to='x'>",
    "'\"",
    "a & b < c > d",
]


def read_as_body(text: str) -> str:
    """Parse `text` as character data."""
    return fromstring(f"<body>{escape(text)}</body>").text or ""


def read_as_attribute(text: str) -> str | None:
    """Parse `text` as an attribute."""
    return fromstring(f"<field var='{escape_attribute(text)}'/>").get("var")


@pytest.mark.parametrize("text", [*HARMLESS, *HOSTILE])
def test_text_that_xml_allows_arrives_unchanged(text: str) -> None:
    assert read_as_body(text) == text
    assert read_as_attribute(text) == text


@pytest.mark.parametrize("character", FORBIDDEN)
def test_characters_that_xml_forbids_are_removed(character: str) -> None:
    text = f"a{character}<{character}b"
    assert clean(text) == read_as_body(text) == read_as_attribute(text) == "a<b"


@pytest.mark.parametrize("character", ["\t", "\n", "\r", " ", "\ud7ff", "\ue000", "\ufffd", "\U00010000", "\U0010ffff"])
def test_characters_at_the_edges_of_the_allowed_ranges_stay(character: str) -> None:
    assert clean(character) == character


@pytest.mark.parametrize("text", ["a\r\nb", "a\rb", "a\nb"])
def test_a_line_ends_in_one_way_only(text: str) -> None:
    assert read_as_body(text) == read_as_attribute(text) == "a\nb"


def test_white_space_in_an_attribute_is_not_normalised_away() -> None:
    assert read_as_attribute("a\tb\nc  d") == "a\tb\nc  d"


@pytest.mark.parametrize(("text", "size"), [("abc", 3), ("&", 5), ("<>", 8), ("é", 2), ("\N{ROCKET}", 4), ("a\r\nb\r", 4)])
def test_the_wire_size_of_a_text_is_its_size_in_escaped_bytes(text: str, size: int) -> None:
    assert wire_size(text) == len(escape(text).encode()) == size


def test_forbidden_characters_count_as_if_they_were_sent() -> None:
    assert wire_size("\x00a\ud800") == 5


def test_two_halves_of_a_character_are_joined() -> None:
    assert clean("a\ud83d\ude80b\ud83d") == "a\N{ROCKET}b"
    assert replace_lone_surrogates(["\ud83d\ude80", "\ude80\ud83d"]) == ["\N{ROCKET}", "??"]


FAMILY = "👩\u200d👩\u200d👧"


@pytest.mark.parametrize("whole", [FAMILY, "🇩🇪", "e\u0301\u0323", "👍🏽", "❤\ufe0f", "각", "1\ufe0f⃣"])
@pytest.mark.parametrize("limit", [40, 41, 50, 64])
def test_a_character_of_several_code_points_is_never_cut(whole: str, limit: int) -> None:
    text = whole * 40
    parts = list(split_text(text, limit))
    assert len(parts) > 1
    assert "".join(parts) == text
    assert all(part == whole * (len(part) // len(whole)) and len(part.encode()) <= limit for part in parts)


def test_a_character_that_is_longer_than_a_part_is_cut() -> None:
    text = "a" + "\u0301" * 100
    assert "".join(split_text(text, 32)) == text


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("Hi 👩\u200d", "Hi 👩"),
        ("🇩🇪🇫", "🇩🇪"),
        ("🇩🇪", "🇩🇪"),
        ("Hi 👩", "Hi 👩"),
        ("\N{ROCKET}", "\N{ROCKET}"),
        ("🇩", "🇩"),
        ("é", "é"),
        ("", ""),
    ],
)
def test_of_a_text_that_grows_an_emoji_that_is_not_whole_is_not_shown_yet(text: str, held: str) -> None:
    assert hold_open_character(text) == held


def test_lone_surrogates_in_json_become_question_marks_everywhere() -> None:
    assert replace_lone_surrogates({"a\ud800": ["\udc00b", ("c", {"d": "\ud800"})], "n": 1, "none": None}) == {
        "a?": ["?b", ["c", {"d": "?"}]],
        "n": 1,
        "none": None,
    }


# Splitting


def test_a_text_that_fits_is_one_part() -> None:
    assert list(split_text("a b", 100)) == ["a b"]
    assert list(split_text("", 100)) == []


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("one two three\n\nfour\nfive. six", ["one two three", "four\nfive. six"]),
        ("one two three\nfour. five six", ["one two three", "four. five six"]),
        ("one two three. four five six", ["one two three.", "four five six"]),
        ("one two three four five six", ["one two three four five", "six"]),
        ("one " + "x" * 30, ["one " + "x" * 20, "x" * 10]),
        ("x" * 50, ["x" * 24, "x" * 24, "xx"]),
        ("x" * 20 + " " * 40 + "y", ["x" * 20, "y"]),
    ],
    ids=["paragraph", "line", "sentence", "word", "too long a word", "no boundary", "only white space between"],
)
def test_a_text_is_cut_at_the_best_boundary_in_the_last_half(text: str, parts: list[str]) -> None:
    assert list(split_text(text, 24)) == parts


@pytest.mark.parametrize("at_boundaries", [True, False])
@pytest.mark.parametrize("limit", [-1, 0, 1, 15])
def test_splitting_ends_even_if_no_character_fits_the_limit(limit: int, at_boundaries: bool) -> None:
    parts = list(split_text("&\N{ROCKET}" * 10, limit, at_boundaries=at_boundaries))
    assert "".join(parts) == "&\N{ROCKET}" * 10
    assert max(map(wire_size, parts)) <= 16


ALPHABETS = [
    "abc ",
    "ab \n",
    "&<>",
    'a"\\',
    "é\N{ROCKET}a",
    "x\u0301 \u200d👩",
    "a\r\n",
    "ab. \t&\n\N{ROCKET}\x00\ud800\ufffe",
]


def random_texts(seed: int, count: int) -> list[tuple[str, int]]:
    """Texts that change their alphabet on the way, and a limit for each."""
    rng = random.Random(seed)
    samples = []
    for _ in range(count):
        runs = ("".join(rng.choices(rng.choice(ALPHABETS), k=rng.randrange(120))) for _ in range(rng.randrange(1, 6)))
        samples.append(("".join(runs), rng.choice([16, 17, 23, 64, 100, 333])))
    return samples


@pytest.mark.parametrize("seed", range(4))
def test_no_part_is_too_long_and_together_they_are_the_text(seed: int) -> None:
    for text, limit in random_texts(seed, 100):
        parts = list(split_text(text, limit, at_boundaries=False))
        assert "".join(parts) == text
        assert all(0 < len(escape(part).encode()) <= limit for part in parts if clean(part)), (text, limit)


@pytest.mark.parametrize("seed", range(4))
def test_sensible_parts_lose_white_space_only_and_only_at_their_edges(seed: int) -> None:
    for text, limit in random_texts(seed, 100):
        text = clean(text)
        parts = list(split_text(text, limit))
        rest = text
        for part in parts:
            assert part == part.strip() != ""
            assert len(escape(part).encode()) <= limit
            gap, found, rest = rest.partition(part)
            assert found
            assert gap.strip() == "", (text, limit)
        assert rest.strip() == ""


CODE = [f"{' ' * (4 * (n % 3))}line_{n} = `{n}` & {n}" for n in range(60)]


def blocks_in(part: str) -> tuple[list[str], list[str]]:
    """Return the lines within blocks of preformatted text, and those outside; a block that is open at the end is an error."""
    inside: list[str] = []
    outside: list[str] = []
    is_open = False
    for line in part.split("\n"):
        if line.startswith("```"):
            is_open = not is_open
        else:
            (inside if is_open else outside).append(line)
    assert not is_open, part
    return inside, outside


@pytest.mark.parametrize("limit", [90, 133, 200, 311, 700, 1500, 5000])
@pytest.mark.parametrize("before", [0, 1, 2, 7])
def test_a_block_of_code_that_is_cut_is_one_in_every_part(limit: int, before: int) -> None:
    """The rest of a program was shown as prose, without its indentation."""
    prose = [f"Some words, number {n}." for n in range(before)]
    text = "\n".join([*prose, "```python", *CODE, "```", "", "And so on.", "```", *CODE, "```"])
    parts = list(split_text(text, limit))
    inside, outside = zip(*map(blocks_in, parts), strict=True)
    assert [line for lines in inside for line in lines] == CODE * 2
    assert [line for lines in outside for line in lines if line] == [*prose, "And so on."]
    assert all(lines or others for lines, others in zip(inside, outside, strict=True))
    assert max(map(wire_size, parts)) <= limit
    assert "```\n```" not in "\n\n".join(parts)


def test_an_unclosed_block_is_open_only_in_the_last_part() -> None:
    *parts, last = split_text("\n".join(["```", *CODE]), 200)
    assert all(part.startswith("```\n") and part.endswith("\n```") for part in parts)
    assert last.startswith("```\n")
    assert not last.endswith("```")


@pytest.mark.parametrize("character", ["x", "&", "\N{ROCKET}", "\x00"])
def test_parts_are_as_long_as_they_may_be(character: str) -> None:
    """Many small messages would be a flood."""
    text = character * 50_000
    parts = list(split_text(text, 1000, at_boundaries=False))
    assert len(parts) <= wire_size(text) // 900 + 50
