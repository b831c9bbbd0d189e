"""The catalogues of texts for people: they hold each message of the code, complete and with its placeholders."""

from __future__ import annotations

import string
from pathlib import Path

import polib
import pytest

from spade_coreason.domain.texts.translation import (
    DIRECTORY,
    LANGUAGE,
    N_,
    Catalogues,
    translate,
    translate_plural,
    use_language,
)
from tests.translations.catalogues import extract_messages, update_catalogue

LANGUAGES = sorted(path.stem for path in DIRECTORY.glob("*.po"))


def read(language: str) -> polib.POFile:
    return polib.pofile(str(DIRECTORY / f"{language}.po"), encoding="utf-8", check_for_duplicates=True)


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def test_german_and_spanish_are_there() -> None:
    assert {"de", "es"} <= set(LANGUAGES)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_catalogue_has_the_messages_of_the_code_and_no_others(language: str) -> None:
    messages, entries = extract_messages(), {entry.msgid: entry for entry in read(language)}
    update = f"run python -m tests.translations.catalogues {language}"
    assert messages.keys() - entries.keys() == set(), update
    assert entries.keys() - messages.keys() == set(), update
    assert [text for text, message in messages.items() if message.msgid_plural != entries[text].msgid_plural] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_message_is_translated_with_its_placeholders(language: str) -> None:
    for entry in read(language):
        assert not entry.fuzzy, entry.msgid
        forms = list(entry.msgstr_plural.values()) if entry.msgid_plural else [entry.msgstr]
        assert all(form.strip() for form in forms), entry.msgid
        for form in forms:
            assert placeholders(form) == placeholders(entry.msgid_plural or entry.msgid), form
            assert [form.count(mark) for mark in ("`", "**", "\n")] == [entry.msgid.count(m) for m in ("`", "**", "\n")], form
            assert (form[:1].isspace(), form[-1:].isspace()) == (entry.msgid[:1].isspace(), entry.msgid[-1:].isspace()), form


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_message_with_a_number_has_all_plural_forms_of_its_language(language: str) -> None:
    catalogue = read(language)
    count = int(catalogue.metadata["Plural-Forms"].partition("nplurals=")[2].partition(";")[0])
    plurals = [entry for entry in catalogue if entry.msgid_plural]
    assert plurals
    assert [entry.msgid for entry in plurals if len(entry.msgstr_plural) != count] == []


@pytest.mark.parametrize(
    ("tag", "text"),
    [("de", "Erledigt."), ("de-AT", "Erledigt."), ("DE", "Erledigt."), ("es-419", "Hecho."), ("en", "Done."), ("xx", "Done.")],
)
def test_a_tag_with_a_region_falls_back_to_its_language_and_an_unknown_one_to_english(tag: str, text: str) -> None:
    with use_language(tag):
        assert translate("Done.") == text
    assert LANGUAGE.get() is None
    assert translate("Done.") == "Done."


def test_numbers_have_the_plural_and_the_separator_of_the_language() -> None:
    def count(number: int) -> str:
        return translate_plural("{number} message", "{number} messages", number)

    assert [count(1), count(12000)] == ["1 message", "12,000 messages"]
    with use_language("de"):
        assert [count(1), count(12000)] == ["1 Nachricht", "12.000 Nachrichten"]


def test_a_marked_message_is_english_and_translated_later_with_its_values() -> None:
    problem = N_("said nothing for {seconds} s", seconds="30")
    with use_language("de"):
        assert f"{problem}" == "said nothing for 30 s"
        assert translate("My language model {problem}.", problem=problem) == "Mein Sprachmodell hat 30 s lang nichts gesendet."


def test_braces_in_values_and_texts_of_others_stay_as_they_are() -> None:
    with use_language("de"):
        assert translate("I am {name}.", name="{x} {0}") == "Ich bin {x} {0}."
        assert translate("a description by {somebody}") == "a description by {somebody}"


def test_another_language_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / "pt-BR.po"
    catalogue = update_catalogue(path, extract_messages())
    assert len(catalogue.untranslated_entries()) == len(catalogue)
    done = catalogue.find("Done.")
    assert done is not None
    done.msgstr = "Feito."
    catalogue.save(str(path))
    catalogues = Catalogues(tmp_path)
    assert catalogues.languages == ["pt-BR"]
    found = catalogues.find("pt-br")
    assert found is not None
    assert (found.gettext("Done."), found.gettext("Stopped.")) == ("Feito.", "Stopped.")
    assert catalogues.find("pt") is None
    # A later version of the code keeps what is translated.
    updated = update_catalogue(path, extract_messages()).find("Done.")
    assert updated is not None
    assert updated.msgstr == "Feito."
