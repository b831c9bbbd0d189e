"""The words of the full-text search, and the chunks of a document."""

from __future__ import annotations

import pytest

from spade_coreason.domain.text import extract_keywords, keyword_coverage, split_words
from spade_coreason.memory.knowledge.chunking import chunk


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("What is the Refund-Policy?", ["what", "is", "the", "refund", "policy"]),
        ("Straße, ÉCOLE naïve", ["strasse", "ecole", "naive"]),
        ("返金ポリシー v2", ["返", "金", "ポ", "リ", "シ", "ー", "v2"]),
        ("snake_case 'quoted' \"or\" AND* NEAR(", ["snake", "case", "quoted", "or", "and", "near"]),
        ("", []),
    ],
)
def test_words_have_no_case_and_no_accents(text: str, words: list[str]) -> None:
    assert split_words(text) == words


def test_a_question_is_about_its_uncommon_words() -> None:
    assert extract_keywords("What is the refund policy for subscriptions?") == ["refund", "policy", "subscriptions"]
    assert extract_keywords("Wie ist die Rückgabe geregelt?") == ["ruckgabe", "geregelt"]
    assert extract_keywords("who is it?") == ["who", "is", "it"]


@pytest.mark.parametrize(
    ("query", "text", "share"),
    [
        ("refund policy", "our policies on refunds", 1.0),
        ("refund policy", "refunds are slow", 0.5),
        ("planes", "my plane", 1.0),
        ("cats", "the cat", 1.0),
        ("cat", "a category", 0.0),
        ("refund", "nothing of it", 0.0),
    ],
)
def test_forms_of_a_word_count_as_the_word(query: str, text: str, share: float) -> None:
    assert keyword_coverage(extract_keywords(query), " ".join(split_words(text))) == share


# Cutting


def test_passages_end_at_paragraphs_and_sentences() -> None:
    text = "One is short.\n\n" + "Two has a sentence. " * 30 + "\n\nThree."
    passages = chunk(text, max_characters=200)
    assert all(0 < len(passage) <= 200 for passage in passages)
    assert passages[0].startswith("One is short.")
    assert all(passage.endswith(".") for passage in passages)
    assert "".join("".join(passages).split()) == "".join(text.split())


@pytest.mark.parametrize("text", ["x" * 5000, "word " * 1000, "日本語。" * 1000, "\n" * 100, "a\n" * 3000, "", "…" * 2001])
def test_passages_lose_no_text_and_are_never_too_long(text: str) -> None:
    for max_characters in (10, 100, 1000):
        passages = chunk(text, max_characters=max_characters)
        assert all(0 < len(passage) <= max_characters for passage in passages)
        assert "".join("".join(passages).split()) == "".join(text.split())


def test_a_passage_of_markdown_begins_with_its_headings() -> None:
    text = "Before.\n\n# Shop\n\n## Refunds\n\nWithin 14 days.\n\n```\n# no heading\n```\n\n## Hours\n\nNine to five.\n"
    assert chunk(text, is_markdown=True) == [
        "Before.",
        "Shop › Refunds\nWithin 14 days.\n\n```\n# no heading\n```",
        "Shop › Hours\nNine to five.",
    ]
    long = "# " + "title " * 100 + "\n" + "word " * 500
    assert all(len(passage) <= 300 for passage in chunk(long, is_markdown=True, max_characters=300))


def test_a_heading_of_many_spaces_takes_no_time() -> None:
    text = f"# one{' ' * 100_000}two ##\nthe text"  # a regular expression that goes back takes minutes
    assert len(chunk(text, is_markdown=True)) == 1
