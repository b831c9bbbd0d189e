"""The words of the full-text search, and the passages of a document."""

from __future__ import annotations

import pytest

from spade_coreason.domain.texts.languages import detect_languages
from spade_coreason.domain.texts.text import extract_keywords, index_words, keyword_coverage, split_words, text_coverage
from spade_coreason.memory.knowledge.passages import split_passages


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


@pytest.mark.parametrize(
    ("query", "text", "share"),
    [
        ("Where can I park?", "Parking is free behind the building.", 1.0),
        ("parking", "You may park behind the building.", 1.0),
        ("delivery", "We deliver to the door.", 1.0),
        ("Häuser", "Das Haus ist hoch.", 1.0),
        ("rueckgabe", "Die Rückgaben sind frei.", 1.0),
        ("aparcar", "El aparcamiento es gratis.", 1.0),
        ("réserver", "Les réservations sont ouvertes dans le hall.", 1.0),
        ("parking", "Parking", 1.0),
        ("notes", "It is not here.", 0.0),  # in Spanish, "notes" has the stem "not"
        ("number", "The numb hand hurts.", 0.0),  # in German, "number" has the stem "numb"
        ("E4711", "If it shows E4711, restart.", 1.0),
        ("E47111", "If it shows E47112, restart.", 0.0),
        ("invoice2024", "See invoice2025.", 0.0),
        ("Paweł", "Ask Pawła.", 0.0),
        ("返金", "返金ポリシー", 1.0),
    ],
)
def test_a_word_is_found_in_a_text_by_its_stem_in_the_language_of_the_text(query: str, text: str, share: float) -> None:
    keywords = extract_keywords(query)
    assert keyword_coverage(keywords, *index_words([text])) == share
    assert text_coverage(keywords, text) == share


@pytest.mark.parametrize(
    ("text", "languages"),
    [
        ("Parking is free behind the building.", ("en",)),
        ("Die Rückgabe ist kostenlos.", ("de",)),
        ("El aparcamiento está detrás del edificio.", ("es",)),
        ("Les chambres sont dans le jardin avec une piscine.", ("fr",)),
        ("Hotel in Berlin", ("en", "de")),
        ("E4711", ()),
    ],
)
def test_the_language_of_a_text_is_that_of_its_commonest_words(text: str, languages: tuple[str, ...]) -> None:
    assert detect_languages(split_words(text)) == languages


def test_a_passage_without_common_words_has_the_language_of_its_document() -> None:
    words = index_words(["Es gibt Regeln für die Rückgabe.", "Rückgaben: 14 Tage"])
    assert words[1] == "ruckgaben de0ruckgab 14 tage de0tag"
    assert index_words(["Rückgaben"]) == ["ruckgaben en0ruckgaben de0ruckgab es0ruckgab fr0ruckgaben"]


def test_a_long_text_without_common_words_is_in_no_language_whose_words_have_stems() -> None:
    words = "faktury zwroty parkingi " * 20
    assert index_words([words]) == [words.strip()]
    assert text_coverage(["faktura"], words) == 1.0  # they begin alike


# Cutting


def test_passages_end_at_paragraphs_and_sentences() -> None:
    text = "One is short.\n\n" + "Two has a sentence. " * 30 + "\n\nThree."
    passages = split_passages(text, max_characters=200)
    assert all(0 < len(passage) <= 200 for passage in passages)
    assert passages[0].startswith("One is short.")
    assert all(passage.endswith(".") for passage in passages)
    assert "".join("".join(passages).split()) == "".join(text.split())


@pytest.mark.parametrize("text", ["x" * 5000, "word " * 1000, "日本語。" * 1000, "\n" * 100, "a\n" * 3000, "", "…" * 2001])
def test_passages_lose_no_text_and_are_never_too_long(text: str) -> None:
    for max_characters in (10, 100, 1000):
        passages = split_passages(text, max_characters=max_characters)
        assert all(0 < len(passage) <= max_characters for passage in passages)
        assert "".join("".join(passages).split()) == "".join(text.split())


def test_a_passage_of_markdown_begins_with_its_headings() -> None:
    text = "Before.\n\n# Shop\n\n## Refunds\n\nWithin 14 days.\n\n```\n# no heading\n```\n\n## Hours\n\nNine to five.\n"
    assert split_passages(text, is_markdown=True) == [
        "Before.",
        "Shop › Refunds\nWithin 14 days.\n\n```\n# no heading\n```",
        "Shop › Hours\nNine to five.",
    ]
    long = "# " + "title " * 100 + "\n" + "word " * 500
    assert all(len(passage) <= 300 for passage in split_passages(long, is_markdown=True, max_characters=300))


def test_a_heading_of_many_spaces_takes_no_time() -> None:
    text = f"# one{' ' * 100_000}two ##\nthe text"  # a regular expression that goes back takes minutes
    assert len(split_passages(text, is_markdown=True)) == 1
